"""One process at a time works on a run's folder; looks at it keep no start out."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from envs.types import StorageError
from tasks_lib.folder import lock
from tasks_lib.folder.lock import check_unlocked, run_lock


def test_looks_go_on_beside_each_other_and_not_beside_an_owner(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        pass
    with open(tmp_path / "run.lock") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        check_unlocked(tmp_path)
    with run_lock(tmp_path), pytest.raises(StorageError, match="another process is working on"):
        check_unlocked(tmp_path)


def test_a_start_waits_for_a_look_at_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_lock(tmp_path):
        pass
    look = open(tmp_path / "run.lock")  # noqa: SIM115 - closed by the wait
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: look.close())
    with run_lock(tmp_path):
        assert look.closed


def test_a_start_beside_an_owner_is_refused(tmp_path: Path) -> None:
    with (
        run_lock(tmp_path),
        pytest.raises(StorageError, match="another process is working on"),
        run_lock(tmp_path),
    ):
        raise AssertionError("two owners")
