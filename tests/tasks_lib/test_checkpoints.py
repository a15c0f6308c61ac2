"""Checkpoints that a configuration names: hub ids, and models under another model's chat
template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envs.types import ConfigError, PolicyError
from tasks_lib.config import PROJECT, EvaluateConfig, TrainConfig, WarmStartConfig, resolve, resolve_path
from tasks_lib.config.differences import comparable_settings
from tasks_lib.folder.checkpoints import check_checkpoint, check_model_template, publish_base, with_template
from tasks_lib.loops.run import open_run
from tasks_lib.preflight.flows import check_evaluation, check_training, check_warm_start
from training.ledger.store import read_json

READER = Path("datasets/policies/reader")


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ("Qwen/Qwen2.5-VL-3B-Instruct", "hf download Qwen/Qwen2.5-VL-3B-Instruct --local-dir Qwen2.5-VL-3B-Instruct"),
        ("me/a_b.c", "hf download me/a_b.c --local-dir a_b.c"),
        ("hf://Qwen/Q", "hf download Qwen/Q --local-dir Q"),
        ("https://huggingface.co/Qwen/Q", "hf download Qwen/Q --local-dir Q"),
        ("https://huggingface.co/Qwen/Q.git", "hf download Qwen/Q --local-dir Q"),
        ("huggingface.co/Qwen/Q/tree/main/", "hf download Qwen/Q --local-dir Q"),
        ("https://hf.co/Qwen/Q/tree/v1.2", "hf download Qwen/Q --local-dir Q --revision v1.2"),
        ("Qwen/Q@abc", "hf download Qwen/Q --local-dir Q --revision abc"),
        ("https://modelscope.cn/models/Qwen/Q", "modelscope download --model Qwen/Q --local_dir Q"),
        ("https://www.modelscope.ai/models/Qwen/Q", "modelscope download --model Qwen/Q --local_dir Q"),
    ],
)
def test_a_hub_id_is_answered_with_the_command_that_fetches_it(given: str, command: str) -> None:
    with pytest.raises(PolicyError) as refused:
        check_checkpoint(resolve_path(given).resolve(), "base")
    folder = command.split("--local")[1].split()[1]
    assert f"nothing is downloaded from a model hub; fetch it first, in {PROJECT}: {command}, then" in str(
        refused.value
    )
    assert str(refused.value).endswith(f"then set base={folder}")


@pytest.mark.parametrize("given", ["nix", "datasets/nix", "runs/mine", "models/nix", "/nix/nix", "a/b/c", "../nix/nix"])
def test_any_other_path_is_only_a_folder_that_is_not_there(given: str) -> None:
    with pytest.raises(PolicyError, match="is no Hugging Face checkpoint folder"):
        check_checkpoint(resolve_path(given))


@pytest.mark.parametrize(
    ("gone", "added", "says"),
    [
        ("*.safetensors", "", r"has no weights \(model\*\.safetensors or pytorch_model\*\.bin\)"),
        ("*.safetensors", "adapter_config.json", "holds only an adapter .* merge it into its base"),
        ("[!t]*", "adapter_config.json adapter_model.safetensors", "holds only an adapter"),
        ("*", "model-Q4.gguf", "holds GGUF weights, .* give the Hugging Face folder"),
    ],
)
def test_a_folder_that_is_no_whole_checkpoint_is_refused_by_what_it_is(
    gone: str, added: str, says: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(READER, folder, ignore=shutil.ignore_patterns(gone))
    for name in added.split():
        (folder / name).write_text("{}")
    with pytest.raises(PolicyError, match=rf"^policy\.checkpoint: {folder} {says}"):
        check_checkpoint(folder)
    if added.endswith(".gguf"):
        with pytest.raises(PolicyError, match=says):
            check_checkpoint(folder / added)


def test_adapters_and_old_weights_are_checkpoints_a_text_model_is_not(
    tmp_path: Path,
) -> None:
    folder = copy_as("qwen2_vl", tmp_path / "model")
    (folder / "recipe.json").unlink()  # it lists the folder's files
    for name in ("adapter_config.json", "model-Q4.gguf"):
        (folder / name).write_text("{}")
    check_checkpoint(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    check_checkpoint(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3", "hidden_size": 64}')
    with pytest.raises(PolicyError, match="is a qwen3 model, which reads text only; give a vision-language model"):
        check_checkpoint(folder)


def copy_as(model_type: str, folder: Path) -> Path:
    """The reader's files under another model's name."""
    shutil.copytree(READER, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    return folder


INSTRUCT = "{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
THINKING = INSTRUCT.replace("assistant\\n", "assistant\\n<think>\\n")
HYBRID = INSTRUCT + "{% if enable_thinking is false %}{{- '<think>\\n\\n</think>' }}{% endif %}"


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("model_type", "chat", "template"),
    [
        ("qwen2_vl", INSTRUCT, "qwen2_vl"),
        ("qwen2_5_vl", INSTRUCT, "qwen2_vl"),
        ("qwen3_vl", INSTRUCT, "qwen3_vl_nothink"),
        ("qwen3_vl", THINKING, "qwen3_vl"),
        ("qwen3_vl_moe", THINKING.replace("\\n", "\n"), "qwen3_vl"),
        ("qwen3_vl_moe", HYBRID, "qwen3_vl_nothink"),
        ("llava", THINKING, ""),
    ],
)
def test_an_empty_template_is_derived_from_the_checkpoint(
    model_type: str, chat: str, template: str, place: str, tmp_path: Path
) -> None:
    folder = copy_as(model_type, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    if place.endswith(".jinja"):
        (folder / place).write_text(chat)
    else:
        path = folder / place
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(
            json.dumps(known | {"chat_template": chat, "added_tokens_decoder": {"9": {"content": "<think>"}}})
        )
    configs = configs_of(folder, "", tmp_path)
    assert [with_template(config).policy.template for _, config in configs] == [template] * 3
    for check, config in () if template else configs:
        with pytest.raises(ConfigError, match=r"^policy\.template: .* is a llava model, cannot be derived; set the"):
            check(config)


def test_a_run_has_the_derived_template_everywhere_and_goes_on_as_it_began(tmp_path: Path) -> None:
    folder = copy_as("qwen3_vl", tmp_path / "model")
    (_, config), *_ = configs_of(folder, "", tmp_path)
    with open_run(config) as run:
        publish_base(run.store, folder)
        assert read_json(run.store.config_path)["config"]["policy"]["template"] == "qwen3_vl_nothink"
        assert run.rollouts.policy.template == run.config.policy.template == "qwen3_vl_nothink"
    for template in ("", "qwen3_vl_nothink"):
        check_training(configs_of(folder, template, tmp_path)[0][1])
    with pytest.raises(ConfigError, match=r"policy\.template: qwen3_vl_nothink then, qwen3_vl now"):
        check_training(configs_of(folder, "qwen3_vl", tmp_path)[0][1])
    shutil.rmtree(folder)
    check_training(config)  # the run has its copy, and knows its template


def test_an_arm_is_the_same_with_its_template_named_or_derived() -> None:
    derived = {"policy": {"checkpoint": str(READER), "template": ""}}
    assert comparable_settings(derived) == comparable_settings(
        {"policy": {"checkpoint": str(READER), "template": "qwen2_vl"}}
    )


def configs_of(folder: Path, template: str, root: Path) -> list[tuple[Any, Any]]:
    """A training, an evaluation and a warm start of one checkpoint, and what looks at each."""
    policy = {"checkpoint": str(folder), "template": template}
    common = {"root": str(root), "run_id": "r"}
    evaluation = {"policy": policy, "tasks": {"kinds": ["click-test"]}, **common}
    warm_start = {"preset": "reader", "base": str(folder), "policy": {"template": template}, **common}
    return [
        (check_training, resolve(TrainConfig, {"preset": "quickstart", "policy": policy, **common})),
        (check_evaluation, resolve(EvaluateConfig, evaluation)),
        (check_warm_start, resolve(WarmStartConfig, warm_start | {"output": str(root / "out")})),
    ]


@pytest.mark.parametrize(
    ("model_type", "template", "fix"),
    [
        ("qwen3_vl", "qwen2_vl", "qwen3_vl_nothink or qwen3_vl"),
        ("qwen3_vl_moe", "qwen2_vl", "qwen3_vl_nothink or qwen3_vl"),
        ("qwen2_vl", "qwen3_vl", "qwen2_vl"),
        ("qwen2_5_vl", "qwen3_vl_nothink", "qwen2_vl or mimo_vl"),
        ("qwen2_vl", "llava", "qwen2_vl"),
        ("llava", "qwen2_vl", "the template of that model"),
    ],
)
def test_a_model_under_another_model_s_template_is_refused(
    model_type: str, template: str, fix: str, tmp_path: Path
) -> None:
    folder = copy_as(model_type, tmp_path / "model")
    says = (
        rf"^policy\.template: {template} is not a chat template of .*model, which is a {model_type} model; set .*{fix}$"
    )
    for check, config in configs_of(folder, template, tmp_path):
        with pytest.raises(ConfigError, match=says):
            check(config)


@pytest.mark.parametrize(
    ("model_type", "template"),
    [
        ("qwen2_vl", "qwen2_vl"),
        ("qwen2_5_vl", "qwen2_vl"),
        ("qwen2_5_vl", "mimo_vl"),
        ("qwen3_vl", "qwen3_vl"),
        ("qwen3_vl", "qwen3_vl_nothink"),
        ("llava", "llava"),
    ],
)
def test_a_model_s_own_templates_are_taken(model_type: str, template: str, tmp_path: Path) -> None:
    check_model_template(copy_as(model_type, tmp_path / "model"), template)
