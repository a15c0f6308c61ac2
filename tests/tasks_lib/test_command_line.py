"""``python -m flows.<name>``: what it prints and returns when a flow ends otherwise than well, or does not begin."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prefect.logging.handlers import PrefectConsoleHandler

from envs.types import ConfigError, JudgeError, TaskError
from tasks_lib.command_line import run_command, told_once
from tasks_lib.config import EvaluateConfig, TrainConfig

ARGUMENTS = ["--set", "run_id=mine"]


def looked(_config: Any) -> list[str]:
    return ["2 tasks"]


def never(_config: Any) -> None:
    raise AssertionError("nothing may begin")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted: what is whole is kept; start the same command again to go on\n"),
        (ConfigError("run_id: taken"), 2, "error: run_id: taken\n"),
        (JudgeError("no episode has a reward"), 1, "error: no episode has a reward\n"),
    ],
)
def test_an_end_is_told_in_one_line(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.command_line.api_url", lambda: "http://127.0.0.1:9/api")

    def evaluate(_config: Any) -> None:
        raise error

    assert run_command(evaluate, EvaluateConfig, looked, ARGUMENTS) == status
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_is_refused_is_refused_before_a_server_starts(
    dry: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.command_line.api_url", lambda: never(None))

    def refuse(_config: Any) -> list[str]:
        raise TaskError("tasks.file: not there")

    assert run_command(never, EvaluateConfig, refuse, [*ARGUMENTS, *dry]) == 2
    assert capsys.readouterr().err == "error: tasks.file: not there\n"


def test_presets_are_offered_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(never, EvaluateConfig, looked, ["--preset", "quickstart"])
    assert "unrecognized arguments: --preset" in capsys.readouterr().err
    assert run_command(never, TrainConfig, looked, ["--preset", "quickstart", "--dry-run"]) == 0


def test_a_dry_run_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(never, EvaluateConfig, looked, [*ARGUMENTS, "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("evaluate-mine\n# 2 tasks\n".replace("evaluate-mine", "mine"))


def test_an_error_of_ours_is_left_out_of_the_console_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    console = PrefectConsoleHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [console, logging.NullHandler()])

    def shown(error: Exception, logger: str = "prefect.flow_runs") -> bool:
        return bool(console.filter(logging.LogRecord(logger, 40, "", 1, "", None, (type(error), error, None))))

    with told_once():
        assert not shown(ConfigError("ours"))
        assert shown(ConfigError("ours"), "prefect.task_runs")  # one that is tried again is told nowhere else
        assert shown(ValueError("a mistake"))
    assert shown(ConfigError("ours"))
