"""The performance quality of an episode: a weighted mean over the signals that were measured.

Each signal is worth 1 at its full mark or better, 0 at its zero mark or worse, and is linear
between. Weights and marks are those of W8's bundle (facts section 2.5); where it gives one bound
only (paint, style), the line starts at 0, as it does for layout. ``touch`` has no published marks:
we take those of INP (https://web.dev/articles/inp).

A signal that was not measured is left out, never 0; the result says which and why.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from envs.types import JudgeError, RewardPart
from envs.types.record import Record
from envs.types.signals import EpisodeSignals

MEBIBYTE = 2**20


class Mark(NamedTuple):
    """Weight and bounds of a signal."""

    weight: float
    full: float
    """Value from which on it is worth 1."""
    zero: float
    """Value from which on it is worth 0; above ``full``."""
    unit: str


MARKS = {
    "layout": Mark(0.15, 0, 200, "ms"),
    "layout_shift": Mark(0.15, 0, 0.25, ""),
    "layers": Mark(0.10, 5, 30, ""),
    "gpu": Mark(0.10, 10, 100, "MiB"),
    "touch": Mark(0.10, 200, 500, "ms"),
    "paint": Mark(0.10, 0, 100, "ms"),
    "style": Mark(0.10, 0, 50, "ms"),
    "largest_paint": Mark(0.10, 1000, 4000, "ms"),
}
"""Marks by signal. The weights sum to 0.9: the mean divides by the weights present."""


class Measured(Record):
    """One signal and what it is worth."""

    name: str
    measured: float
    """Measured value, in the unit of its mark."""
    value: float
    """Score in [0, 1]."""
    weight: float


class Quality(Record):
    """The weighted mean and what it is made of."""

    value: float | None
    """Score in [0, 1]; ``None`` when no signal was measured."""
    measured: tuple[Measured, ...]
    left_out: dict[str, str]
    """Reason why a signal does not count, by its name."""

    def part(self, weight: float = 1.0) -> RewardPart:
        """Make the part of a reward bundle named ``performance``."""
        seen = [
            f"{one.name} {one.measured:g} {MARKS[one.name].unit}".rstrip()
            + f" = {one.value:.3f} (weight {one.weight:g})"
            for one in self.measured
        ]
        seen += [f"{name} left out: {reason}" for name, reason in self.left_out.items()]
        return RewardPart(name="performance", value=self.value, weight=weight, evidence="; ".join(seen))


def score_signal(name: str, measured: float) -> float:
    """Score a signal, in [0, 1].

    Raises:
        JudgeError: The value is not a finite number.
    """
    if not math.isfinite(measured):
        raise JudgeError(
            f"signal {name}: expected a finite number, got {measured}; drop it and give the reason in `absent`"
        )
    mark = MARKS[name]
    return min(1.0, max(0.0, (mark.zero - measured) / (mark.zero - mark.full)))


def episode_quality(signals: EpisodeSignals) -> Quality:
    """Score an episode: work per measured step, shifts per document, slowest paints, most layers
    and memory."""
    values: dict[str, float | None] = {
        "layout": _per_step(signals, "layout_ms"),
        "layout_shift": None if signals.layout_shift is None else signals.layout_shift / max(1, signals.documents),
        "layers": signals.most_layers,
        "gpu": None if signals.gpu_bytes is None else signals.gpu_bytes / MEBIBYTE,
        "touch": signals.interaction_ms,
        "paint": signals.first_contentful_paint_ms,
        "style": _per_step(signals, "style_ms"),
        "largest_paint": signals.largest_paint_ms,
    }
    fields = {
        "layout": "layout_ms",
        "layout_shift": "layout_shift",
        "layers": "most_layers",
        "gpu": "gpu_bytes",
        "touch": "interaction_ms",
        "paint": "first_contentful_paint_ms",
        "style": "style_ms",
        "largest_paint": "largest_paint_ms",
    }
    measured = tuple(
        Measured(name=name, measured=value, value=score_signal(name, value), weight=MARKS[name].weight)
        for name, value in values.items()
        if value is not None
    )
    left_out = {name: signals.absent.get(fields[name], "") for name, value in values.items() if value is None}
    if not measured:
        return Quality(value=None, measured=(), left_out=left_out)
    total = math.fsum(one.weight * one.value for one in measured) / math.fsum(one.weight for one in measured)
    return Quality(value=min(1.0, max(0.0, total)), measured=measured, left_out=left_out)


def _per_step(signals: EpisodeSignals, field: str) -> float | None:
    total: float | None = getattr(signals, field)
    return None if total is None else total / max(1, signals.known.get(field, signals.steps))
