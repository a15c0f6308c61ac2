"""Results of a regrading in a run's folder: rewards by episode, and its settings.

``<run>/regraded/<name>/<shard>/<episode_id>.json`` is a `Regraded`,
``<run>/regraded/<name>/regrading.json`` a `RegradingLog`. The report reads both, so no module that
is slow to import may be imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envs.types import Record, RewardBundle, StorageError
from training.ledger.seal import describe_first_error, unsealed_bytes
from training.ledger.store import BACKUP, RunStore, move_aside_advice, write_json


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
    try:
        return Regraded.model_validate_json(unsealed_bytes(path, path.read_bytes(), _advice(path)))
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist; start that regrading again") from error
    except ValidationError as error:
        raise StorageError(
            f"{path} is no reward of a regrading ({describe_first_error(error)}); {_advice(path)}"
        ) from error


def _advice(path: Path) -> str:
    return f"{move_aside_advice(path)} and start that regrading again: only this episode is graded"


def read_log(store: RunStore, name: str) -> RegradingLog:
    """Read the starts of a regrading; empty before the first.

    ``StorageError`` when they are damaged.
    """
    path = store.regrading_path(name)
    if not path.exists():
        return RegradingLog()
    try:
        return RegradingLog.model_validate_json(unsealed_bytes(path, path.read_bytes(), BACKUP))
    except ValidationError as error:
        # Without it nothing would refuse other settings for a finished regrading.
        raise StorageError(
            f"{path} does not say how a regrading was started ({describe_first_error(error)}); {BACKUP}, or start a regrading "
            f"of another name"
        ) from error


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
