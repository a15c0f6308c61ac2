"""Aggregates the signals of steps to those of an episode. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from envs.types.signals import EpisodeSignals, PageSignals, Trouble

LONG_TASK_MS = 50.0
"""Duration from which a task is long (https://www.w3.org/TR/longtasks)."""
PER_OUTLIER = 50
"""Number of interactions for each slowest one that INP ignores."""
NO_STEPS = "the episode has no steps"

SUMS = ("layout_shift", "layout_ms", "style_ms", "script_ms", "task_ms")
MEASURED = (
    "first_paint_ms",
    "first_contentful_paint_ms",
    "largest_paint",
    *SUMS,
    "input_shift",
    "interaction_ms",
    "long_task_ms",
    "layers",
    "heap_bytes",
    "nodes",
    "gpu_bytes",
)
"""Fields of a step that may be absent."""


def aggregate(steps: Sequence[PageSignals]) -> EpisodeSignals:
    """Aggregate the signals of steps. Values that no step has are absent, with the last reason."""
    values: dict[str, Any] = {}
    absent: dict[str, str] = {}

    def put(name: str, source: str, over: Callable[[list[Any]], Any], pick: Callable[[Any], Any] = lambda v: v) -> None:
        known = [pick(getattr(step, source)) for step in steps if getattr(step, source) is not None]
        known = [value for value in known if value is not None]
        values[name] = over(known) if known else None
        if not known:
            reasons = [step.absent[source] for step in steps if source in step.absent]
            absent[name] = reasons[-1] if reasons else NO_STEPS if not steps else "no step gives its time"

    for name in SUMS:
        put(name, name, sum)
    put("worst_layout_shift", "layout_shift", max)
    put("first_contentful_paint_ms", "first_contentful_paint_ms", max)
    put("largest_paint_ms", "largest_paint", max, lambda paint: paint.ms)
    put("interaction_ms", "interaction_ms", next_paint)
    put("long_tasks", "long_task_ms", lambda known: sum(len(durations) for durations in known))
    put("blocking_ms", "long_task_ms", lambda known: sum(ms - LONG_TASK_MS for durations in known for ms in durations))
    put("most_layers", "layers", max)
    put("peak_heap_bytes", "heap_bytes", max)
    put("peak_nodes", "nodes", max)
    put("gpu_bytes", "gpu_bytes", max)
    return EpisodeSignals(
        steps=len(steps),
        documents=len({step.document for step in steps}),
        known={name: sum(getattr(step, name) is not None for step in steps) for name in MEASURED},
        counts=_sum_counts(step.counts for step in steps),
        absent=absent,
        **values,
    )


def next_paint(interactions: Sequence[float]) -> float:
    """Return the INP of interactions with these durations.

    It is the slowest, the second slowest from 50 interactions on, and so forth.
    """
    return sorted(interactions, reverse=True)[min(len(interactions) // PER_OUTLIER, len(interactions) - 1)]


def _sum_counts(counts: Iterable[dict[Trouble, int]]) -> dict[Trouble, int]:
    total: Counter[Trouble] = Counter()
    for step_counts in counts:
        total.update(step_counts)
    return dict(total)
