"""Checkpoints that a configuration names: hub ids, and models under another model's chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from envs.types import ConfigError, PolicyError
from tasks_lib.checkpoints import check_checkpoint, check_model_template
from tasks_lib.config import EvaluateConfig, TrainConfig, WarmStartConfig, resolve, resolve_path
from tasks_lib.preflight import look_at_evaluation, look_at_training, look_at_warm_start

READER = Path("datasets/policies/reader")


@pytest.mark.parametrize("given", ["Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-8B-Thinking", "me/a_b.c"])
def test_a_hub_id_is_answered_with_the_command_that_fetches_it(given: str) -> None:
    with pytest.raises(PolicyError) as refused:
        check_checkpoint(resolve_path(given))
    assert f"hf download {given} --local-dir {given.split('/')[1]}" in str(refused.value)


@pytest.mark.parametrize("given", ["nix", "datasets/nix", "/nix/nix", "a/b/c"])
def test_any_other_path_is_only_a_folder_that_is_not_there(given: str) -> None:
    with pytest.raises(PolicyError, match="is no Hugging Face checkpoint folder"):
        check_checkpoint(resolve_path(given))


def copy_as(model_type: str, folder: Path) -> Path:
    """The reader's files under another model's name."""
    shutil.copytree(READER, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    return folder


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
    policy = {"checkpoint": str(folder), "template": template}
    common = {"root": str(tmp_path), "run_id": "r"}
    training = resolve(TrainConfig, {"preset": "quickstart", "policy": policy, **common})
    evaluation = resolve(EvaluateConfig, {"policy": policy, "tasks": {"kinds": ["click-test"]}, **common})
    warm_start = resolve(
        WarmStartConfig,
        {
            "preset": "reader",
            "base": str(folder),
            "policy": {"template": template},
            "output": str(tmp_path / "out"),
            **common,
        },
    )
    for look, config in (
        (look_at_training, training),
        (look_at_evaluation, evaluation),
        (look_at_warm_start, warm_start),
    ):
        with pytest.raises(ConfigError, match=says):
            look(config)  # type: ignore[operator]


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
