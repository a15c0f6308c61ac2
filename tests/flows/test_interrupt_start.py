"""Ctrl-C before a run plays anything: while its modules are imported, and while its Dask workers
start. One line, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from training.trainer.control.processes import wait_until_dead

from .services import PrefectServer, as_from_a_terminal

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.dask]

BEGUN = "interrupted: what is whole is kept; start the same command again to go on"
NOT_BEGUN = "interrupted: nothing has begun"


def _importing(process: psutil.Process, _log: Path) -> bool:
    """It has loaded a library that comes well after the interpreter's own start, and long before
    the last one."""
    return any("pydantic_core" in each.path for each in process.memory_maps())


def _starting_worker(process: psutil.Process, _log: Path) -> bool:
    """Dask's worker has been spawned, and imports its modules."""
    for each in process.children():
        command = " ".join(each.cmdline())
        if "spawn_main" in command and any("numpy" in mapped.path for mapped in each.memory_maps()):
            return True
    return False


@pytest.mark.parametrize(
    ("flow", "moment", "last", "most"),
    [
        ("train", _importing, NOT_BEGUN, 1),
        ("sweep", _starting_worker, BEGUN, 7),
    ],
    ids=["imports", "a sweep arm's worker"],
)
def test_ctrl_c_at_the_start_is_one_line(
    tmp_path: Path,
    server: PrefectServer,
    flow: str,
    moment: Callable[[psutil.Process, Path], bool],
    last: str,
    most: int,
) -> None:
    base = {"train": "", "sweep": "base."}[flow]
    settings = ["run_id=mine", f"root={tmp_path}", f"{base}tasks.kinds=[click-link]"]
    settings += ["grid.seed=[0, 1]"] if flow == "sweep" else []
    command = [sys.executable, "-m", f"flows.{flow}", *(word for each in settings for word in ("--set", each))]
    environment = {**server.environment, "PREFECT_LOGGING_LEVEL": "WARNING"}
    lines = _interrupted(command, environment, tmp_path / "log", moment)
    assert lines[-1] == last and len(lines) <= most, lines


def _interrupted(
    command: list[str], environment: Mapping[str, str], log: Path, moment: Callable[[psutil.Process, Path], bool]
) -> list[str]:
    """What a command says that gets Ctrl-C at this moment; it ends with status 130, without a
    traceback, and so does all that it started."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # as a terminal has it: Ctrl-C is for the whole group
            preexec_fn=as_from_a_terminal,
        )
    family: list[psutil.Process] = []
    try:
        started, deadline = psutil.Process(process.pid), time.monotonic() + 180
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            try:
                if moment(started, log):
                    break
            except psutil.Error:  # one that was listed is gone, or is not yet what it will be
                pass
            time.sleep(0.05)
        family = started.children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    alive = wait_until_dead(family, 30)
    assert status == 130 and not alive and "Traceback" not in log.read_text(), log.read_text()
    announced, *lines = log.read_text().splitlines()
    assert announced.startswith("flows."), "a command says at once what it does"
    return lines


def test_ctrl_c_in_a_check_closes_its_browser(tmp_path: Path) -> None:
    """Its processes and its folder, with episodes under way."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def playing(process: psutil.Process, _log: Path) -> bool:
        return any("--type=renderer" in each.cmdline() for each in process.children(recursive=True))

    command = [sys.executable, "-m", "flows.build_tasks", "--check", "datasets/tasks/miniwob.jsonl"]
    lines = _interrupted(command, {"TMPDIR": str(temporary)}, tmp_path / "log", playing)
    assert lines == ["interrupted: nothing was written"]
    assert list(temporary.iterdir()) == []


def test_ctrl_c_in_the_doctor_is_one_line(tmp_path: Path) -> None:
    """While it reads a file, of which nothing comes."""
    run = tmp_path / "run"
    run.mkdir()
    pipe = run / "config.json"
    os.mkfifo(pipe)

    writers: list[int] = []

    def reading(_process: psutil.Process, _log: Path) -> bool:
        try:
            writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # which fails until there is a reader
        except OSError:
            return False
        return True

    command = [sys.executable, "-m", "flows.doctor", "--run", str(run)]
    try:
        assert _interrupted(command, {}, tmp_path / "log", reading) == ["interrupted: nothing was changed"]
    finally:
        for each in writers:
            os.close(each)
