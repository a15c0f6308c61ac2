"""The timeline of an asynchronous run: what was under way at the same time, as bars in per cent of its wall clock."""

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
"""Name of each lane and what the names of its spans begin with, by the key of its colour."""

MAX_SPANS = 2000
"""Newest spans that are drawn: a long run has too many groups for one picture."""

THINNEST = 0.08
"""Per cent: a publication would not be seen otherwise."""

Span = tuple[str, float, float]
"""Name, beginning and end in seconds."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One span; all lengths are per cent of its lane."""

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
    """The timeline of a run; ``None`` if nothing of it ran side by side."""
    spans = [span for i in run.iterations if i.asynchronous is not None for span in i.asynchronous.timeline]
    spans = sorted(spans, key=lambda span: span[2])[-MAX_SPANS:]
    if not spans:
        return None
    began = min(start for _, start, _ in spans)
    length = max(max(end for _, _, end in spans) - began, 1e-9)
    lanes = []
    for key, (name, prefix) in LANES.items():
        found = [(label, start - began, end - began) for label, start, end in spans if label.startswith(prefix)]
        if found:
            lanes.append(_lane(key, name, found, length))
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
    """The row of each span: the first one that is free when it begins, so that none covers another and there are as few as can be.

    >>> place_in_rows([("a", 0, 2), ("b", 1, 3), ("c", 2, 4)])
    [0, 1, 0]
    """
    ends: list[float] = []
    rows = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda each: spans[each][1]):
        _, start, end = spans[index]
        row = next((number for number, busy in enumerate(ends) if busy <= start), len(ends))
        if row == len(ends):
            ends.append(end)
        else:
            ends[row] = end
        rows[index] = row
    return rows
