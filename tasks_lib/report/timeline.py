"""The timeline of an asynchronous run: parallel work as bars over its wall clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks_lib.report.charts import format_duration
from tasks_lib.report.data import RunData

LANES = {
    "rollout": ("groups", "groups"),
    "train": ("updates", "update-"),
    "publish": ("publications", "publish-"),
    "evaluate": ("evaluations", "evaluate-"),
}
"""Name of each lane and prefix of its spans' names, by the key of its colour."""

MAX_SPANS = 2000
"""Maximum number of spans, the newest: a long run has too many groups for one drawing."""

THINNEST = 0.08
"""Minimum width of a bar in per cent: a publication would be invisible otherwise."""

Span = tuple[str, float, float]
"""Name, beginning and end in seconds."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One span; all lengths are in per cent of its lane."""

    left: float
    width: float
    top: float
    height: float
    label: str


@dataclass(frozen=True, slots=True)
class Lane:
    """Spans of one kind; those that overlap lie in different rows."""

    key: str
    name: str
    rows: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lanes over the same wall clock."""

    seconds: float
    lanes: tuple[Lane, ...]


def timeline(run: RunData) -> Timeline | None:
    """Return the timeline of a run; ``None`` if nothing in it ran in parallel."""
    spans = [span for i in run.iterations if i.asynchronous is not None for span in i.asynchronous.timeline]
    spans = sorted(spans, key=lambda span: span[2])[-MAX_SPANS:]
    if not spans:
        return None
    began = min(start for _, start, _ in spans)
    length = max(max(end for _, _, end in spans) - began, 1e-9)
    lanes = []
    for key, (name, prefix) in LANES.items():
        of_lane = [(label, start - began, end - began) for label, start, end in spans if label.startswith(prefix)]
        if of_lane:
            lanes.append(_lane(key, name, of_lane, length))
    return Timeline(length, tuple(lanes))


def _lane(key: str, name: str, spans: Sequence[Span], length: float) -> Lane:
    rows = place_in_rows(spans)
    count = max(rows) + 1
    bars = [
        Bar(
            left=round(100 * start / length, 3),
            width=round(max(100 * (end - start) / length, THINNEST), 3),
            top=round(100 * row / count, 3),
            height=round(90 / count, 3),
            label=f"{label}: {format_duration(start)} to {format_duration(end)}",
        )
        for row, (label, start, end) in zip(rows, spans, strict=True)
    ]
    return Lane(key, name, count, tuple(bars))


def place_in_rows(spans: Sequence[Span]) -> list[int]:
    """Return the row of each span: the first one that is free when it begins.

    So no span covers another, and there are as few rows as possible.

    >>> place_in_rows([("a", 0, 2), ("b", 1, 3), ("c", 2, 4)])
    [0, 1, 0]
    """
    ends: list[float] = []
    rows = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda index: spans[index][1]):
        _, start, end = spans[index]
        row = next((number for number, busy in enumerate(ends) if busy <= start), len(ends))
        if row == len(ends):
            ends.append(end)
        else:
            ends[row] = end
        rows[index] = row
    return rows
