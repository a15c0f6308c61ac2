"""Flows that are interrupted while episodes are played: nothing is blamed on a browser or an arm
that we ended ourselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from training.ledger.journal import read_group
from training.ledger.store import RunStore, read_json

from .conftest import SMALL
from .services import PrefectServer, as_from_a_terminal
from .test_resume import check_paced, check_whole

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.dask]

WITHIN = 50.0
"""Seconds in which it ends on a busy machine; five to seven on an idle one."""


@contextmanager
def _begun(
    command: list[str], store: RunStore, log: Path, prefect: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The flow in a session of its own, as a terminal has it, once it has stored some episodes;
    what is left of it at the end is killed."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, **prefect},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=as_from_a_terminal,
        )
    try:
        wait_until(process, lambda: len(list((store.root / "trajectories").glob("*/*.json"))) >= 3, log)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(process: subprocess.Popen[bytes], condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("interrupt", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_evaluation_keeps_only_what_was_played(
    tmp_path: Path, server: PrefectServer, interrupt: signal.Signals
) -> None:
    store, log = RunStore(tmp_path / "interrupted"), tmp_path / "log"
    settings = ("run_id=interrupted", f"root={tmp_path}", "episodes=96", "tasks.kinds=[click-link, enter-text]")
    command = [sys.executable, "-m", "flows.evaluate", *(word for each in settings for word in ("--set", each))]
    with _begun(command, store, log, server.environment) as process:
        if interrupt is signal.SIGINT:  # Ctrl-C is for all processes of the terminal's group
            os.killpg(process.pid, interrupt)
        else:
            process.send_signal(interrupt)
        status = process.wait(WITHIN)
    if interrupt is signal.SIGINT:
        assert status == 130
        said = log.read_text()
        assert "interrupted: what is whole is kept; start the same command again" in said and "Traceback" not in said
        (flow_run,) = server.flow_runs("interrupted")
        assert flow_run["state_name"] == "Cancelled" and "run:interrupted" in flow_run["tags"]
    assert not store.evaluation_path(0).exists()
    stored = [store.attempt_trajectory(*each)[0] for each in store.stored_trajectories()]
    assert stored and all(each.error is None for each in stored)
    groups = [read_group(store, group) for group in store.group_ids()]
    assert all(episode.score is not None for group in groups for episode in group.episodes)


@pytest.mark.long
def test_a_sweep_that_is_interrupted_ends_at_once_and_blames_no_arm(tmp_path: Path, ephemeral: dict[str, str]) -> None:
    store, log = RunStore(tmp_path / "mine-seed0"), tmp_path / "log"
    settings = ("run_id=mine", f"root={tmp_path}", "base.tasks.kinds=[click-link, enter-text]", "grid.seed=[0, 1]")
    command = [sys.executable, "-m", "flows.sweep", *(word for each in settings for word in ("--set", each))]
    with _begun(command, store, log, ephemeral) as process:
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(WITHIN)
    assert status == 130, log.read_text()
    assert "interrupted: what is whole is kept; start the same command again" in log.read_text()
    arms = read_json(tmp_path / "mine" / "sweep.json")["arms"]
    assert [(arm["state"], arm["error"]) for arm in arms] == [("interrupted", None), ("waiting", None)]
    assert not (tmp_path / "mine-seed1").exists() and not store.evaluation_path(0).exists()


@pytest.mark.long
@pytest.mark.parametrize("where", ["boundary", "replica"])
def test_an_asynchronous_run_that_is_interrupted_during_an_update_goes_on(
    tmp_path: Path, ephemeral: dict[str, str], where: str
) -> None:
    store, log = RunStore(tmp_path / "mine"), tmp_path / "log"
    settings = {**SMALL, "mode": "async", "evaluation.where": where, "evaluation.every": 1, "run_id": "mine"}
    command = [sys.executable, "-m", "flows.train", "--preset", "quickstart", "--set", f"root={tmp_path}"]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with _begun(command, store, log, ephemeral) as process:
        wait_until(process, lambda: store.batch_path(1).exists(), log)
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(WITHIN)
    assert status == 130, log.read_text()
    said = log.read_text()
    assert "interrupted: what is whole is kept; start the same command again" in said and "Traceback" not in said
    stored = [store.attempt_trajectory(*each)[0] for each in store.stored_trajectories()]
    assert stored and all(each.error is None for each in stored)
    again = subprocess.run(command, env={**os.environ, **ephemeral}, capture_output=True, timeout=400)
    assert again.returncode == 0, again.stdout + again.stderr
    check_whole(store, 3)
    check_paced(store, 3, 4, 2)
