"""Results of a regrading in a run's folder: rewards by episode, and its settings.

``<run>/regraded/<name>/<shard>/<episode_id>.json`` is a `Regraded`,
``<run>/regraded/<name>/regrading.json`` a `RegradingLog`. The report reads both, so no module that
is slow to import may be imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envs.types import Record, RewardBundle, StorageError
from training.ledger.store import BACKUP, RunStore, move_aside_advice, read_record, write_json


class Regraded(Record):
    """Reward of a stored episode under the regrading's settings."""

    episode_id: str
    task_id: str
    reward: RewardBundle
    before: RewardBundle
    """Reward in the trajectory, which is never changed: it is the one that was trained on."""
    wall: str = ""
    judgement: str = ""
    """Name of the blob with the judge's request and answer, as in a trajectory."""


class RegradingStart(Record):
    """One start of a regrading that had episodes left."""

    at: float
    """Start time in seconds since the epoch."""
    which: str
    """Graded episodes: ``abstained`` or ``all``."""
    episodes: int
    """Number of episodes to have graded at its end, including those of earlier starts."""
    settings: dict[str, Any]
    """Values of ``judge``, ``rewards`` and, if they were named, ``tasks``. They are plain, so that
    settings of another version can be read too."""
    ended: float | None = None
    """End time in seconds since the epoch. ``None`` while it goes on, or if it was stopped."""


class RegradingLog(Record):
    """All starts of one regrading, oldest first."""

    starts: tuple[RegradingStart, ...] = ()


def read_regraded(path: Path) -> Regraded:
    """Read a reward of a regrading; ``StorageError`` when it is missing or damaged."""
    again = "start that regrading again"
    if not path.exists():
        raise StorageError(f"{path} does not exist; {again}")
    remedy = f"{move_aside_advice(path)} and {again}: only this episode is graded"
    return read_record(path, Regraded, "reward of a regrading", remedy)


def read_log(store: RunStore, name: str) -> RegradingLog:
    """Read the starts of a regrading; empty before the first.

    ``StorageError`` when they are damaged.
    """
    path = store.regrading_path(name)
    if not path.exists():
        return RegradingLog()
    # Without it nothing would refuse other settings for a finished regrading.
    return read_record(path, RegradingLog, "log of a regrading", f"{BACKUP}, or start a regrading of another name")


def write_start(store: RunStore, name: str, start: RegradingStart) -> None:
    """Record that a regrading begins, or goes on."""
    write_json(store.regrading_path(name), RegradingLog(starts=(*read_log(store, name).starts, start)), sealed=True)


def write_end(store: RunStore, name: str, now: float) -> None:
    """Record that all episodes of the last start are graded.

    Nothing changes for a regrading without a start, or with a recorded end.
    """
    starts = read_log(store, name).starts
    if starts and starts[-1].ended is None:
        ended = starts[-1].model_copy(update={"ended": now})
        write_json(store.regrading_path(name), RegradingLog(starts=(*starts[:-1], ended)), sealed=True)
