"""``make gpu-check``: its cells compare engine and trainer, also on the CPU; without a GPU it says
that it checked nothing."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "scripts/gpu_check.py"


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    threads = torch.get_num_threads()
    yield found
    torch.set_num_threads(threads)


def test_without_a_gpu_nothing_is_checked_and_that_is_no_success(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module.main([]) == 2
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "nothing was checked" in said


def test_a_cell_is_checked_on_the_cpu(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = ["--device", "cpu", "--family", "qwen3_vl", "--finetuning", "lora", "--images", "2", "--without-vllm"]
    status, said = module.main(arguments), capsys.readouterr().out
    assert status == 0, said
    row = re.search(r"qwen3_vl +lora +local, 2 pictures +(\S+) +(\S+) +ok", said)
    assert row is not None, said
    assert float(row[1]) <= 1e-4 < float(row[2])
    assert re.search(r"lora +update .* ok", said) and re.search(r"lora +publish .* ok", said)
    assert "all 3 agree" in said


def test_an_engine_that_serves_another_version_is_found(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    local = module.Policy.local
    monkeypatch.setattr(module.Policy, "local", lambda policy, version: local(policy, 0))
    arguments = ["--device", "cpu", "--family", "qwen2_vl", "--finetuning", "full", "--images", "1", "--without-vllm"]
    assert module.main(arguments) == 1
    assert "1 of 3 failed" in capsys.readouterr().out


def test_what_is_too_far_off_failed(module: Any) -> None:
    def cell(mean: float, other: float) -> Any:
        return module.Cell("f", "full", "local", mean, other, 1e-4)

    assert cell(1e-6, 1e-2).agrees
    assert not cell(1e-3, 1e-2).agrees and "FAILED" in cell(1e-3, 1e-2).row()
    assert not cell(5e-5, 4e-5).agrees, "a wrong picture is as good"
    assert not cell(float("nan"), 1e-2).agrees
    assert not module.Cell("f", "", "vLLM", fault="it ended").agrees
    assert module.Cell("f", "full", "update", seconds=1.0).agrees
