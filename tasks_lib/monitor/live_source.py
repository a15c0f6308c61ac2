"""Workers' live states from the files in a run's folder.

Each worker that plays rewrites its file once a second (`tasks_lib.worker.live`). A file that shows
an episode and does not change any more was left by a worker that was killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from envs.types import StorageError
from tasks_lib.worker.live import Doing, SlotState, WorkerState
from training.ledger.store import RunStore

GONE_SECONDS = 20.0
"""Seconds without a change after which a worker with running episodes counts as gone."""


@dataclass(slots=True)
class _LiveFile:
    """One worker's file as it was read last."""

    modified: int
    """Time of the file, in nanoseconds by the clock of its storage."""
    seen: float
    """Time when it was seen to change, by this machine's monotonic clock."""
    state: WorkerState
    gone: bool = False


@dataclass(slots=True)
class FolderSource:
    """Reads the live files of one run."""

    store: RunStore
    problem: str | None = None
    _files: dict[Path, _LiveFile] = field(default_factory=dict)

    def changes(self) -> list[tuple[str, bytes]]:
        """Return the workers whose state is new since the last call, each as JSON of a
        `WorkerState`, or of ``{"worker": NAME, "gone": true}``.

        Files that were left before the first call by workers that no longer run are passed over.
        """
        first, now = not self._files, time.monotonic()
        changed = [self._changed(path, now, first) for path in sorted((self.store.root / "live").glob("*.json"))]
        return [entry for entry in (*changed, *self._gone(now)) if entry is not None]

    def states(self) -> list[WorkerState]:
        """Return the newest states of the workers that are there."""
        return [file.state for file in self._files.values() if not file.gone]

    def episode(self, worker: str, slot: int) -> dict[str, Any] | None:
        """Return the running episode of a slot, or ``None`` if it plays nothing."""
        shown = find_slot(self.states(), worker, slot)
        if shown is None:
            return None
        note = "Its instruction and steps are read from its worker: give --scheduler ADDRESS."
        values = shown.model_dump(mode="json")
        return {**values, "instruction": note, "steps": [], "screenshot": bool(shown.screenshot)}

    def screenshot(self, worker: str, slot: int) -> bytes | None:
        """Return the picture (JPEG) of the slot's last turn, or ``None`` if there is none."""
        shown = find_slot(self.states(), worker, slot)
        if shown is None or not shown.screenshot:
            return None
        try:
            return self.store.blob(shown.screenshot)
        except StorageError:
            return None

    def _changed(self, path: Path, now: float, first: bool) -> tuple[str, bytes] | None:
        """Read a file if it has changed."""
        known = self._files.get(path)
        try:
            modified = path.stat().st_mtime_ns
            if known is not None and known.modified == modified:
                return None
            state = WorkerState.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):  # it is being replaced, or another version of Rollwright wrote it
            return None
        left = first and not _is_idle(state) and time.time() - modified / 1e9 > GONE_SECONDS
        self._files[path] = _LiveFile(modified, now, state, gone=left)
        return None if left else (state.worker, state.model_dump_json().encode())

    def _gone(self, now: float) -> Iterator[tuple[str, bytes]]:
        """Yield the workers that have not written for long, and mark them."""
        for file in self._files.values():
            if not file.gone and not _is_idle(file.state) and now - file.seen > GONE_SECONDS:
                file.gone = True
                yield file.state.worker, orjson.dumps({"worker": file.state.worker, "gone": True})


def _is_idle(state: WorkerState) -> bool:
    """Return True if no slot has an episode; a worker writes so at the end of its shards."""
    return all(slot.doing is Doing.IDLE for slot in state.slots)


def find_slot(states: Iterable[WorkerState], worker: str, slot: int) -> SlotState | None:
    """Return a slot that plays an episode, or ``None``."""
    state = next((state for state in states if state.worker == worker), None)
    if state is None or not 0 <= slot < len(state.slots) or state.slots[slot].doing is Doing.IDLE:
        return None
    return state.slots[slot]


def find_run(folder: Path) -> RunStore:
    """Return the store of a run's folder.

    Raises:
        StorageError: it is no run's folder.
    """
    if not (folder / "config.json").is_file():
        raise StorageError(
            f"--run {folder}: it has no config.json; name the folder of one run, as runs/quickstart-seed0"
        )
    return RunStore(folder)
