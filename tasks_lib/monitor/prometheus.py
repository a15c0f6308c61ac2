"""Figures of a run as Prometheus reads them: gauges with units, and labels of few values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tasks_lib.worker.live import WorkerState

RUN_STATES = ("running", "stalled", "stopped", "ended", "unknown")

PLAIN = {
    "iteration": ("iterations_done", "Iterations that have ended."),
    "iterations": ("iterations_planned", "Iterations of the run."),
    "version": ("policy_version", "Newest policy version."),
    "rates.episodes": ("episodes_per_second", "Episodes that end in a second, over the last 30 s."),
    "rates.steps": ("steps_per_second", "Steps in a second, over the last 30 s."),
    "rates.tokens": ("response_tokens_per_second", "Response tokens in a second, in the last iteration."),
    "success.mean": ("success_ratio", "Success of the last evaluation."),
    "success.low": ("success_low_ratio", "Lower end of the success's 95 % interval."),
    "success.high": ("success_high_ratio", "Upper end of the success's 95 % interval."),
    "engine.queued": ("engine_waiting_turns", "Turns that wait for the encoder or the engine."),
    "engine.running": ("engine_running_turns", "Turns that the policy generates."),
    "engine.batch": ("engine_batch_turns", "Mean turns of a generation batch in the last iteration."),
    "disk.free": ("disk_free_bytes", "Free bytes of the run's disk."),
    "disk.total": ("disk_size_bytes", "Bytes of the run's disk."),
}
"""Name and help of each figure that has no label, by its path among the figures."""

LABELLED = {
    "cells": ("environments", "operation", "Environments by what they wait for."),
    "queues": ("queue_wait_seconds", "queue", "Mean wait in a queue, in the last iteration."),
    "browsers": ("browsers", "state", "Browsers by the state of their connection."),
    "sites": ("sites", "count", "Site instances by recipe and state, launches, resets, and bytes of memory."),
}
"""Name, label and help of each group of figures whose names are few."""


@dataclass(eq=False, slots=True)
class _RunCollector(Collector):
    """Collects one moment of a run."""

    figures: Mapping[str, Any]
    workers: Iterable[WorkerState]
    viewers: int

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; a figure that is not known is left out."""
        figures, workers = self.figures, list(self.workers)
        yield _labelled("run", "run", "1, with the name of the run.", {str(figures.get("run_id") or ""): 1})
        state = {name: float(figures.get("state") == name) for name in RUN_STATES}
        yield _labelled("run_state", "state", "1 for the state that the run is in.", state)
        yield _gauge("problem", "1 while the monitor names a problem.", bool(figures.get("problem")))
        for path, (name, what) in PLAIN.items():
            if (value := _value(figures, path)) is not None:
                yield _gauge(name, what, value)
        for group, (name, label, what) in LABELLED.items():
            yield _labelled(name, label, what, figures.get(group) or {})
        staleness = {int(age): rows for age, rows in (figures.get("staleness") or {}).items()}
        if rows := sum(staleness.values()):
            mean = sum(age * count for age, count in staleness.items()) / rows
            yield _gauge("staleness_mean_versions", "Mean age of the last batch's rows.", mean)
            yield _gauge("staleness_max_versions", "Greatest age of the last batch's rows.", max(staleness))
        abstentions = sum((figures.get("abstentions") or {}).values())
        yield CounterMetricFamily("rollwright_abstentions", "Episodes of the run without a reward.", value=abstentions)
        yield _gauge("workers", "Workers that are there.", len(workers))
        lag = max((worker.lag for worker in workers), default=0.0)
        yield _gauge("worker_lag_seconds", "Time by which the latest worker's event loop was late.", lag)
        slow = sum(slot.slow for worker in workers for slot in worker.slots)
        yield _gauge("slow_environments", "Environments slower than 99 of 100 of their kind.", slow)
        yield _gauge("monitor_viewers", "Pages that show the monitor.", self.viewers)


def render_metrics(figures: Mapping[str, Any], workers: Iterable[WorkerState], viewers: int) -> bytes:
    """Return the metrics of a run in Prometheus' text format.

    Args:
        figures: Figures of the run (`RunFigures.measure`).
        workers: Newest states of its workers.
        viewers: Number of pages that show them.
    """
    registry = CollectorRegistry()
    registry.register(_RunCollector(figures, workers, viewers))
    return generate_latest(registry)


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"rollwright_{name}", what, value=float(value))


def _labelled(name: str, label: str, what: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"rollwright_{name}", what, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], float(value))
    return family


def _value(figures: Mapping[str, Any], path: str) -> float | None:
    """Return the number at a dotted path, or ``None``."""
    value: Any = figures
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None
