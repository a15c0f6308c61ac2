"""Finds which calls of a session form one growing sequence of tokens. Pure.

A call continues an earlier one if its prompt begins with that call's prompt and response, token by
token, and with its images. A trainer may run such calls as one sequence. A chat template that
strips thoughts, or an agent that rewrites its history, breaks the sequence: the call after the
break stands alone, or begins a new sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from training.policy.context import without_thought
from training.proxy.records import RecordedCall

BreakKind = Literal["prompt", "response", "thought", "images"]
"""Part of the call before that the next prompt does not repeat: its prompt (the agent rewrote the
history), its response (its text was changed or split into other tokens), a thought in its response,
or its images."""


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """A call whose prompt does not begin with the call before it."""

    call: int
    """Number of the call."""
    kind: BreakKind
    position: int
    """First token of the call before that is not repeated; for ``images`` the first image."""


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """The calls of a session as sequences."""

    sequences: tuple[tuple[int, ...], ...]
    """Numbers of the calls of each growing sequence; each call is in one."""
    breaks: tuple[PrefixBreak, ...]
    """Calls that do not continue the call before them, and why."""

    @property
    def growing(self) -> tuple[tuple[int, ...], ...]:
        """Sequences of more than one call, which can be trained on as one."""
        return tuple(sequence for sequence in self.sequences if len(sequence) > 1)

    @property
    def alone(self) -> tuple[int, ...]:
        """Calls that can be trained on only alone."""
        return tuple(sequence[0] for sequence in self.sequences if len(sequence) == 1)


def prefix_report(calls: Sequence[RecordedCall]) -> PrefixReport:
    """Return how the calls of one session continue each other.

    A call joins the sequence whose last call is the nearest before it; so agents that hold several
    conversations at once give a sequence for each.

    Args:
        calls: Calls in their order.
    """
    sequences: list[list[RecordedCall]] = []
    breaks: list[PrefixBreak] = []
    for place, call in enumerate(calls):
        if place and (departure := find_break(calls[place - 1], call)) is not None:
            breaks.append(departure)
        ends = sorted(sequences, key=lambda sequence: sequence[-1].index, reverse=True)
        before = next((sequence for sequence in ends if find_break(sequence[-1], call) is None), None)
        if before is None:
            sequences.append([call])
        else:
            before.append(call)
    return PrefixReport(tuple(tuple(call.index for call in sequence) for sequence in sequences), tuple(breaks))


def find_break(before: RecordedCall, call: RecordedCall) -> PrefixBreak | None:
    """Return where a call's prompt departs from the call before it; ``None`` if it continues it."""
    expected = before.ids
    images = _first_difference(before.images, call.images)
    position = _first_difference(expected, call.prompt_ids)
    if position is None:
        return None if images is None else PrefixBreak(call.index, "images", images)
    if position < len(before.prompt_ids):
        return PrefixBreak(call.index, "prompt", position)
    thought = without_thought(before.text) != before.text.strip()
    return PrefixBreak(call.index, "thought" if thought else "response", position)


def _first_difference(expected: Sequence[object], given: Sequence[object]) -> int | None:
    """Return the first place at which ``given`` does not repeat ``expected``, or ``None``."""
    if tuple(given[: len(expected)]) == tuple(expected):
        return None
    pairs = zip(expected, given, strict=False)
    return next((place for place, (left, right) in enumerate(pairs) if left != right), len(given))
