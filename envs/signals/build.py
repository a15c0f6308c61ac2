"""Builds `PageSignals` from the browser's answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.types.signals import MAX_SHIFTS, LargestPaint, LayoutShift, PageSignals, PageTrouble, Trouble

VIRTUAL = "the page's clock is virtual"
NO_LAYERS = "no frame was drawn since the layer tree of this document is watched, or it is not watched"
NO_GPU = "Chromium's DevTools protocol does not report it"
NOT_PAINTED = "nothing was painted yet"
NO_INTERACTION = "no interaction of 16 ms or more was reported"
NO_COLLECTOR = "the document could not be read: "
NO_STATUS = "no document was loaded over HTTP"

DURATIONS = {
    "layout_ms": "LayoutDuration",
    "style_ms": "RecalcStyleDuration",
    "script_ms": "ScriptDuration",
    "task_ms": "TaskDuration",
}
"""Counters of ``Performance.getMetrics``, in seconds, whose differences the fields are."""


@dataclass
class SignalReadings:
    """Answers of the browser at the end of a step."""

    document: int
    status: int | None
    main: Mapping[str, Any] | None
    """Answer of the collector in the main frame; ``None`` if it could not be asked."""
    frames: Sequence[Mapping[str, Any]]
    """Answers of the collectors in the other frames."""
    why_not: str
    """Reason why ``main`` is ``None``."""
    metrics: Mapping[str, float]
    before: Mapping[str, float]
    """The metrics of the last reading; empty for the first."""
    layers: int | None
    counts: Mapping[Trouble, int]
    troubles: Sequence[PageTrouble]
    virtual: bool
    """True if the page's clock was virtual during the step."""


@dataclass
class _Fields:
    """Values and reasons while a record is made."""

    values: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: Any, why_not: str) -> None:
        self.values[name] = value
        if value is None:
            self.absent[name] = why_not


def build(reading: SignalReadings) -> PageSignals:
    """Build the signals of a step."""
    fields = _Fields()
    _put_paint(fields, reading)
    _put_shifts(fields, reading)
    _put_timings(fields, reading)
    for name, metric in DURATIONS.items():
        fields.put(name, _difference(metric, reading.metrics, reading.before), f"Chromium gives no {metric}")
    for name, metric in (("heap_bytes", "JSHeapUsedSize"), ("nodes", "Nodes")):
        value = reading.metrics.get(metric)
        fields.put(name, None if value is None else int(value), f"Chromium gives no {metric}")
    fields.put("layers", reading.layers, NO_LAYERS)
    fields.put("gpu_bytes", None, NO_GPU)
    fields.put("status", reading.status, NO_STATUS)
    return PageSignals(
        document=reading.document,
        counts=dict(reading.counts),
        troubles=tuple(reading.troubles),
        absent=fields.absent,
        **fields.values,
    )


def _put_paint(fields: _Fields, reading: SignalReadings) -> None:
    main, why = reading.main, NO_COLLECTOR + reading.why_not
    for name, key in (("first_paint_ms", "fp"), ("first_contentful_paint_ms", "fcp")):
        value = main[key] if main else None
        painted = VIRTUAL if reading.virtual and value is not None else NOT_PAINTED
        fields.put(name, None if reading.virtual else value, painted if main else why)
    largest = main["lcp"] if main else None
    paint = largest and LargestPaint(**{**largest, "ms": None if reading.virtual else largest["ms"]})
    fields.put("largest_paint", paint, NOT_PAINTED if main else why)


def _put_shifts(fields: _Fields, reading: SignalReadings) -> None:
    why = NO_COLLECTOR + reading.why_not
    heard = [reading.main, *reading.frames] if reading.main else []
    for name, key in (("layout_shift", "shift"), ("input_shift", "inputShift")):
        fields.put(name, sum(answer[key] for answer in heard if answer) if heard else None, why)
    shifts = [LayoutShift(**shift) for answer in heard if answer for shift in answer["shifts"]]
    fields.put("shifts", tuple(shifts[:MAX_SHIFTS]), why)


def _put_timings(fields: _Fields, reading: SignalReadings) -> None:
    """Put durations of the real clock; a virtual one stands still while a task runs."""
    why = VIRTUAL if reading.virtual else NO_COLLECTOR + reading.why_not
    heard = [] if reading.virtual or reading.main is None else [reading.main, *reading.frames]
    slowest = max((ms for answer in heard for ms in answer["interactions"]), default=None)
    fields.put("interaction_ms", slowest, NO_INTERACTION if heard else why)
    # A task of one frame is also reported to the other frames of its page, so the main frame has
    # them all.
    fields.put("long_task_ms", tuple(heard[0]["tasks"]) if heard else None, why)


def _difference(metric: str, now: Mapping[str, float], before: Mapping[str, float]) -> float | None:
    """Return milliseconds since the last reading. A page in a new process counts from zero."""
    if metric not in now:
        return None
    since = before.get(metric, 0.0)
    return 1000 * (now[metric] - since if now[metric] >= since else now[metric])
