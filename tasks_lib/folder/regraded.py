"""Results of a regrading in a run's folder: rewards by episode, and its settings.

``<run>/regraded/<name>/<shard>/<episode_id>.json`` is a `Regraded`, ``<run>/regraded/<name>/regrading.json`` a `RegradingLog`. The report reads
both, so nothing that is slow to import may be imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envs.types import Record, RewardBundle, StorageError
from training.ledger.seal import unsealed_bytes
from training.ledger.store import BACKUP, RunStore, describe_first_error, move_aside_advice, write_json


class Regraded(Record):
    """The reward of a stored episode as it would be now."""

    episode_id: str
    task_id: str
    reward: RewardBundle
    before: RewardBundle
    """As it is in the trajectory, which is never changed: what was trained on stays as it was."""
    wall: str = ""
    judgement: str = ""
    """Name of the blob of what the judge was asked and said, as in a trajectory."""


class RegradingStart(Record):
    """One start of a regrading that had episodes left."""

    at: float
    """Seconds since the epoch."""
    which: str
    """``abstained`` or ``all``."""
    episodes: int
    """How many it was to have graded at its end, those of earlier starts included."""
    settings: dict[str, Any]
    """``judge``, ``rewards`` and, if they were named, ``tasks``: plain values, so that settings of another version can be read too."""
    ended: float | None = None
    """``None``: it goes on, or was stopped."""


class RegradingLog(Record):
    """All starts of one regrading, oldest first."""

    starts: tuple[RegradingStart, ...] = ()


def read_regraded(path: Path) -> Regraded:
    """A reward of a regrading; ``StorageError`` when it is missing or damaged."""
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
    """The starts of a regrading; none of one from before they were kept.

    ``StorageError`` when they are damaged.
    """
    path = store.regrading_path(name)
    if not path.exists():
        return RegradingLog()
    try:
        return RegradingLog.model_validate_json(unsealed_bytes(path, path.read_bytes(), BACKUP))
    except ValidationError as error:
        # Without it nothing would refuse other settings for a regrading that is done.
        raise StorageError(
            f"{path} does not say how a regrading was started ({describe_first_error(error)}); {BACKUP}, or start a regrading "
            f"of another name"
        ) from error


def write_start(store: RunStore, name: str, start: RegradingStart) -> None:
    """Keep that a regrading begins, or goes on."""
    write_json(store.regrading_path(name), RegradingLog(starts=(*read_log(store, name).starts, start)), sealed=True)


def write_end(store: RunStore, name: str, now: float) -> None:
    """Keep that everything of the last start is graded.

    Of a regrading without a start, or that is marked already, nothing changes.
    """
    starts = read_log(store, name).starts
    if starts and starts[-1].ended is None:
        ended = starts[-1].model_copy(update={"ended": now})
        write_json(store.regrading_path(name), RegradingLog(starts=(*starts[:-1], ended)), sealed=True)
