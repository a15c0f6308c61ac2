"""``python -m flows.<name>``: what it prints and returns when a flow ends otherwise than well."""

from __future__ import annotations

from typing import Any

import pytest

from envs.types import ConfigError, JudgeError
from tasks_lib.command_line import run_command
from tasks_lib.config import EvaluateConfig


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted: what is whole is kept; start the same command again to go on\n"),
        (ConfigError("run_id: taken"), 2, "error: run_id: taken\n"),
        (JudgeError("no episode has a reward"), 1, "error: JudgeError: no episode has a reward\n"),
    ],
)
def test_an_end_is_told_in_one_line(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.command_line.api_url", lambda: "http://127.0.0.1:9/api")

    def evaluate(_config: Any) -> None:
        raise error

    assert run_command(evaluate, EvaluateConfig, ["--set", "run_id=mine"]) == status
    assert capsys.readouterr().err == said
