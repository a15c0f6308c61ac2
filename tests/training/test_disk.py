"""A disk that takes no more: one error that names path, reason and fix, whoever writes, and nothing
half written stays."""

from __future__ import annotations

import errno
import gc
import io
import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from envs.types import DiskError, ReadError, RewardBundle, StopReason, StorageError, Trajectory
from tasks_lib.folder.metrics import MetricsLog
from tasks_lib.folder.metrics_lines import IterationMetrics
from training.ledger.checkpoint_files import MANIFEST, file_hashes
from training.ledger.disk import (
    REASONS,
    disk_error,
    raise_disk_errors,
    raise_read_errors,
    remove_leftovers,
    write_fault,
)
from training.ledger.journal import Journal
from training.ledger.store import RunStore, atomic_write_bytes, write_json

FAULTS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO]


def fault(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"w": torch.zeros(100)}, folder / "model.safetensors")
    return folder


def trajectory() -> Trajectory:
    return Trajectory(
        episode_id="i000000-g0000-s00-a0",
        group_id="i000000-g0000",
        task_id="t",
        kind="k",
        seed=0,
        sample=0,
        policy_version=0,
        steps=(),
        stop_reason=StopReason.DONE,
        reward=RewardBundle(score=1.0, passed=True),
    )


WRITES: dict[str, Callable[[RunStore, Path], object]] = {
    "a document": lambda store, _: write_json(store.batch_path(1), {"rows": [1] * 100}),
    "a blob": lambda store, _: store.put_blob(b"\xff\xd8\xff" * 100),
    "a trajectory": lambda store, _: store.put_trajectory(trajectory()),
    "a policy": lambda store, source: store.publish_policy(0, source, {}),
}


@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("call", ["open", "fsync", "replace", "mkdir"])
@pytest.mark.parametrize("what", WRITES)
def test_a_disk_error_at_any_call_names_the_path_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, call: str, number: int
) -> None:
    store, source = RunStore(tmp_path / "run"), checkpoint(tmp_path / "source")
    opened, refused = io.open, False

    def refuse(*arguments: Any, **options: Any) -> Any:
        nonlocal refused
        refused = True
        raise fault(number)

    def refuse_to_write(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        return refuse() if "w" in mode and str(store.root) in str(file) else opened(file, mode, *arguments, **options)

    if call == "open":
        monkeypatch.setattr("builtins.open", refuse_to_write)
    elif call == "mkdir":
        monkeypatch.setattr(Path, "mkdir", refuse)
        monkeypatch.setattr(os, "mkdir", refuse)
    else:
        monkeypatch.setattr(os, call, refuse)
    with suppress(StopIteration):
        if what == "a blob" and call == "fsync":
            WRITES[what](store, source)  # blobs are not synced: they are checked when they are read
            assert not refused
            return
        with pytest.raises(DiskError, match=rf"^cannot write {store.root}/.*: {REASONS[number][0]} \(") as said:
            WRITES[what](store, source)
    assert (
        "\n" not in str(said.value)
        and " free on " in str(said.value)
        and "start the same command again" in str(said.value)
    )
    monkeypatch.undo()
    assert not [path for path in store.root.rglob("*") if path.is_file()]
    WRITES[what](store, source)  # with room again it is written


def circle() -> Exception:
    try:
        raise ValueError("first") from fault(errno.ENOSPC)
    except ValueError as error:
        error.__context__ = error.__cause__
        return error


SAID = {
    "an OSError": (fault(errno.ENOSPC), errno.ENOSPC),
    "behind another": (circle(), errno.ENOSPC),
    "in groups of groups": (
        ExceptionGroup("a", [ValueError("x"), ExceptionGroup("b", [fault(errno.EDQUOT)])]),
        errno.EDQUOT,
    ),
    "sqlite3": (sqlite3.OperationalError("database or disk is full"), errno.ENOSPC),
    "sqlite3, read-only": (sqlite3.OperationalError("attempt to write a readonly database"), errno.EROFS),
    "sqlite3, failing": (sqlite3.OperationalError("disk I/O error"), errno.EIO),
    "safetensors": (
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        errno.ENOSPC,
    ),
    "none": (ValueError("no space in the name"), None),
    "a missing file": (FileNotFoundError(errno.ENOENT, "x"), None),
}


@pytest.mark.parametrize("how", SAID)
def test_a_write_fault_is_found_however_it_is_said(tmp_path: Path, how: str) -> None:
    error, expected = SAID[how]
    assert write_fault(error, tmp_path) == expected
    if expected is None:
        with pytest.raises(type(error)), raise_disk_errors(tmp_path):
            raise error
        assert disk_error(error, tmp_path) is None


def test_a_refused_read_is_no_full_disk(tmp_path: Path) -> None:
    assert disk_error(fault(errno.EACCES), tmp_path) is None and disk_error(fault(errno.EIO), tmp_path) is None
    assert disk_error(RuntimeError("x"), tmp_path) is None
    assert "no space left" in str(disk_error(fault(errno.ENOSPC), tmp_path))


def test_it_comes_through_a_pickle(tmp_path: Path) -> None:
    """Between Dask's processes."""
    with pytest.raises(DiskError) as said, raise_disk_errors(tmp_path / "x", needed=12_300_000):
        raise fault(errno.ENOSPC)
    other = pickle.loads(pickle.dumps(said.value))
    assert isinstance(other, StorageError) and str(other) == str(said.value) and "(12.3 MB needed, " in str(other)


def test_the_lines_of_metrics_survive_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind":"iteration","iteration":0}\n{"kind":"iteration","iteration":1}\n{"ki')
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(fault(errno.ENOSPC)))
    log = MetricsLog(path, tmp_path / "tensorboard")
    assert [line.iteration for line in log.lines(IterationMetrics)] == [0, 1]
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(fault(errno.ENOSPC)))
    with pytest.raises(DiskError, match=r"metrics\.jsonl: no space left"):
        log.append(IterationMetrics(iteration=2), 2)
    monkeypatch.undo()
    log.close()


def test_leftovers_of_dead_processes_only_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".output.{dead.pid}.00000000.tmp").mkdir()
    (tmp_path / "a").mkdir()
    for pid, name in ((dead.pid, ".x.json"), (os.getpid(), ".x.json"), (dead.pid, "x.json")):
        (tmp_path / "a" / f"{name}.{pid}.00000000.tmp").touch()
    assert remove_leftovers(tmp_path) == 2
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        f".x.json.{os.getpid()}.00000000.tmp",
        f"x.json.{dead.pid}.00000000.tmp",
    ]


@pytest.fixture(scope="module")
def tiny(small_disk: Callable[[int], Path]) -> Path:
    """A file system of a megabyte."""
    return small_disk(2**20)


def fill(folder: Path) -> None:
    with suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


FULL: dict[str, Callable[[RunStore, Path], object]] = {
    **WRITES,
    "torch": lambda store, _: _saved(store, lambda path: torch.save({"w": torch.zeros(10**5)}, path)),
    "safetensors": lambda store, _: _saved(store, lambda path: save_file({"w": torch.zeros(10**5)}, path)),
    "the journal": lambda store, _: Journal(store.journal_path).close(),
}


def _saved(store: RunStore, save: Callable[[Path], object]) -> None:
    with raise_disk_errors(store.root / "saved"):
        save(store.root / "saved")


@pytest.mark.parametrize("what", FULL)
def test_a_disk_that_is_really_full(tiny: Path, tmp_path: Path, what: str) -> None:
    gc.collect()  # errors of the tests before hold files open, whose room would be given back later
    for path in tiny.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    store = RunStore(tiny / "run")
    store.root.mkdir()
    fill(tiny)
    with pytest.raises(DiskError, match=rf"no space left on the disk \(.*0 B free on {tiny}\)") as said:
        FULL[what](store, checkpoint(tmp_path / "source"))
    assert str(tiny) in str(said.value).partition(":")[0]
    assert not [path for path in store.root.rglob("*") if path.name.endswith(".tmp") or path.name == MANIFEST]
    (tiny / "filler").unlink()
    FULL[what](store, tmp_path / "source")


def test_a_disk_that_is_really_read_only(tiny: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    try:
        with pytest.raises(DiskError, match="the file system is read-only"):
            atomic_write_bytes(tiny / "run" / "x.json", b"{}")
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(tiny)], check=True)


PASSING_FAULTS = [
    OSError(errno.EIO, os.strerror(errno.EIO), "model.safetensors"),
    OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
    TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)),
    SafetensorError("Error while deserializing: IoError(Stale file handle (os error 116))"),
    RuntimeError("unable to open file: Input/output error (os error 5)"),
    shutil.Error([("a", "b", "[Errno 5] Input/output error: 'a'")]),
]
LASTING_FAULTS = [
    FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "model.safetensors"),
    PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
    OSError("Error no file named model.safetensors found in directory"),
    SafetensorError("Error while deserializing header: HeaderTooLarge"),
    SafetensorError("No such file or directory (os error 2)"),
    ValueError("its bytes at [Errno: 5] are wrong"),
]


@pytest.mark.parametrize("fault", [*PASSING_FAULTS, *LASTING_FAULTS], ids=repr)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_read_fault_that_may_pass_is_told_from_a_wrong_file(
    fault: Exception, is_wrapped: bool, tmp_path: Path
) -> None:
    """Libraries raise what they will from it: ``OSError: Can't load the configuration of …``."""
    passes = fault in PASSING_FAULTS
    with pytest.raises(ReadError if passes else Exception) as said, raise_read_errors(tmp_path / "model"):
        try:
            raise fault
        except Exception as error:
            if is_wrapped:
                raise OSError("Can't load the configuration of 'model'") from error
            raise
    assert isinstance(said.value, ReadError) is passes
    if passes:
        assert re.fullmatch(rf"cannot read {tmp_path}/model for the moment: [A-Z][^;\n]*; [^\n]*", str(said.value))


def test_a_policy_that_cannot_be_read_for_the_moment_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moving it aside, as is advised for a damaged one, would be wrong."""
    store = RunStore(tmp_path)
    weights = store.policy_path(0) / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    write_json(weights.parent / "manifest.json", {"version": 0, "files": file_hashes(weights.parent)})
    os.utime(weights)  # hashed once for as long as it is not changed
    read_bytes, real_open = Path.read_bytes, open

    def fail(path: object) -> None:
        if str(path).endswith(failing):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "read_bytes", lambda path: fail(path) or read_bytes(path))
    monkeypatch.setattr("builtins.open", lambda path, *rest, **more: fail(path) or real_open(path, *rest, **more))
    for failing in ("manifest.json", "model.safetensors"):
        with pytest.raises(ReadError, match=rf"cannot read .*{failing} for the moment: Input/output error"):
            store.check_policy(0)
    monkeypatch.undo()
    store.check_policy(0)
