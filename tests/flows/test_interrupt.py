"""An evaluation, and a sweep, that are interrupted while episodes are played: nothing is blamed on a browser or an arm that we ended ourselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training.ledger.journal import read_group
from training.ledger.store import RunStore, read_json

from .services import as_from_a_terminal

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.dask]

WITHIN = 50.0
"""Seconds in which it ends on a busy machine; five to seven on an idle one."""


def _begun(command: list[str], store: RunStore, log: Path, prefect: dict[str, str]) -> subprocess.Popen[bytes]:
    """The flow in a session of its own, as a terminal has it, once it has stored some episodes."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, **prefect},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=as_from_a_terminal,
        )
    deadline = time.monotonic() + 180
    while len(list((store.root / "trajectories").glob("*/*.json"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("interrupt", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_evaluation_keeps_only_what_was_played(
    tmp_path: Path, ephemeral: dict[str, str], interrupt: signal.Signals
) -> None:
    store, log = RunStore(tmp_path / "mine"), tmp_path / "log"
    settings = ("run_id=mine", f"root={tmp_path}", "episodes=96", "tasks.kinds=[click-link, enter-text]")
    command = [sys.executable, "-m", "flows.evaluate", *(word for each in settings for word in ("--set", each))]
    process = _begun(command, store, log, ephemeral)
    try:
        if interrupt is signal.SIGINT:  # Ctrl-C is for all processes of the terminal's group
            os.killpg(process.pid, interrupt)
        else:
            process.send_signal(interrupt)
        status = process.wait(WITHIN)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if interrupt is signal.SIGINT:
        assert status == 130
        assert "interrupted: what is whole is kept; start the same command again" in log.read_text()
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
    process = _begun(command, store, log, ephemeral)
    try:
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(WITHIN)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert status == 130, log.read_text()
    assert "interrupted: what is whole is kept; start the same command again" in log.read_text()
    arms = read_json(tmp_path / "mine" / "sweep.json")["arms"]
    assert [(arm["state"], arm["error"]) for arm in arms] == [("interrupted", None), ("waiting", None)]
    assert not (tmp_path / "mine-seed1").exists() and not store.evaluation_path(0).exists()
