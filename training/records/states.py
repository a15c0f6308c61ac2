"""States of an episode in the ledger, and their transitions. Pure: no files.

Every episode of a training group is in exactly one state, entered by an event with a reason. A
group's record enters each of its episodes as in flight, abstained or abandoned. The batch of its
iteration, once its version is published, moves each one that is in flight to consumed (it gave
rows) or to the state under which the batch names it in ``left_out``. An episode that a batch names
twice or not at all is an error; no count is made by subtraction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from envs.types import Record, StopReason


class EpisodeState(StrEnum):
    """State of an episode; its value appears in metrics, the result and the report."""

    IN_FLIGHT = "in_flight"
    """Its group is committed, and the update that decides about it is not published."""
    CONSUMED = "consumed"
    """It gave rows to a published update."""
    ZERO_VARIANCE = "zero_variance"
    """All rewards of its group were equal, so that there is nothing to compare (GRPO)."""
    FAILED_FILTER = "failed_filter"
    """It failed the algorithm's filter (``filtered_bc``: successes only), or has no step."""
    STALE = "stale"
    """It was played by a policy version that is too old to be trained on."""
    DAMAGED = "damaged"
    """Its trajectory or a screenshot was lost before its update, so that it cannot be trained
    on."""
    ABSTAINED = "abstained"
    """It has no usable reward."""
    ABANDONED = "abandoned"
    """It was abandoned because its group had enough others."""


LEFT_OUT = (EpisodeState.ZERO_VARIANCE, EpisodeState.FAILED_FILTER, EpisodeState.STALE, EpisodeState.DAMAGED)
"""States that a batch gives to episodes that have a reward and gave no rows."""

NEXT: Mapping[EpisodeState | None, tuple[EpisodeState, ...]] = {
    None: (EpisodeState.IN_FLIGHT, EpisodeState.ABSTAINED, EpisodeState.ABANDONED),
    EpisodeState.IN_FLIGHT: (EpisodeState.CONSUMED, *LEFT_OUT),
}
"""States that may follow a state (``None``: the episode is new). States without a key are final."""

CAUSES: Mapping[StopReason, str] = {
    StopReason.BLOCKED: "block",
    StopReason.HTTP_ERROR: "site",
    StopReason.CRASH: "infrastructure",
    StopReason.BROWSER_ERROR: "infrastructure",
    StopReason.DEADLINE: "infrastructure",
    StopReason.ENGINE_ERROR: "engine",
    StopReason.CONTEXT_OVERFLOW: "context",
}
"""Cause of an abstention by stop reason. An episode that stopped otherwise was played, and its
grading gave no reward: ``grading``."""

GRADING = "grading"


class LeftOut(Record):
    """State and reason of an episode with a reward but no rows."""

    state: EpisodeState
    reason: str


@dataclass(frozen=True, slots=True)
class Event:
    """Entry of an episode into a state."""

    episode_id: str
    group_id: str
    state: EpisodeState
    reason: str
    cause: str = ""
    """Cause of an abstention (`abstention_cause`); else empty."""
    version: int | None = None
    """Published version whose batch decided; ``None`` if the group's record did."""


def abstention_cause(stop_reason: StopReason) -> str:
    """Return ``infrastructure``, ``engine``, ``context``, ``site``, ``block`` or ``grading``."""
    return CAUSES.get(stop_reason, GRADING)


def count_states(states: Iterable[EpisodeState]) -> dict[str, int]:
    """Count episodes: ``started``, then the number in each state.

    The numbers of the states add up to ``started``, as each episode is counted in one state.
    """
    counts = Counter(states)
    return {"started": counts.total(), **{str(state): counts[state] for state in EpisodeState}}
