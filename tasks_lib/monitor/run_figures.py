"""Figures of a run while it goes, from its files and its workers' states; and their history."""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks_lib.monitor.runs import run_state
from tasks_lib.report.data import RunData, read_measurements
from tasks_lib.worker.live import WorkerState
from training.ledger.store import RunStore
from training.trainer.control.heartbeat import read_heartbeat

RATE_SECONDS = 30.0
"""Seconds over which rates are taken."""
HISTORY_SECONDS = 900.0
STALLED_SECONDS = 120.0
"""Seconds without a change of any file after which a run counts as stalled."""
LOW_DISK = 0.03
"""Share of the disk below which a problem is named."""
TRAINER_PHASES = {"wait": "waits for a batch", "train": "trains", "save": "writes its state and the policy"}


@dataclass(slots=True)
class RunFigures:
    """Makes the figures of a run, anew at each call of `measure`."""

    store: RunStore
    _measured: RunData | None = None
    _metrics: tuple[int, int] = (0, 0)
    """Size and time of the metrics file that was read last."""
    _totals: deque[tuple[float, int, int]] = field(default_factory=deque)
    """(time, ended attempts, steps) of the last `RATE_SECONDS`."""
    _steps: int = 0
    _last_steps: dict[str, dict[int, tuple[str, int]]] = field(default_factory=dict)
    """Episode and step of each slot, by worker."""
    _last_change: float = field(default_factory=time.monotonic)
    _last_state: tuple[object, ...] = ()

    def measure(self, states: Sequence[WorkerState]) -> dict[str, Any]:
        """Return the figures as JSON values. What is not known is ``None`` or missing."""
        run = self._measurements()
        line = run.iterations[-1] if run.iterations else None
        evaluation = run.evaluations[-1] if run.evaluations else None
        trainer = self._trainer()
        disk = self._disk()
        state, problem = self._state(run, states, trainer, disk)
        return {
            "run_id": run.run_id,
            "title": run.run_id,
            "state": state,
            "problem": problem,
            "started": self.store.config_path.stat().st_mtime if self.store.config_path.exists() else None,
            "phase": states[0].phase if states else None,
            "iteration": line.iteration + 1 if line else 0,
            "iterations": run.config.get("iterations"),
            "version": line.version if line else None,
            "success": evaluation.model_dump(include={"mean", "low", "high", "n"}) if evaluation else None,
            "rates": self._rates(states, line),
            "queues": line.queues.model_dump(exclude_none=True) if line else {},
            "versions": _counted(str(slot.version) for state in states for slot in state.slots if slot.episode_id),
            "staleness": dict(line.asynchronous.staleness) if line and line.asynchronous else {},
            "engine": _engine(states, line.batches if line else {}),
            "trainer": trainer,
            "browsers": _counted(
                str(browser.get("state")) for state in states for browser in state.browsers.get("browsers", ())
            ),
            "sites": _added(
                {f"{recipe} {what}": count for recipe, counts in state.sites.items() for what, count in counts.items()}
                for state in states
            ),
            "abstentions": _added(entry.abstentions for entry in run.iterations),
            "finished": _added(state.finished for state in states),
            "cells": _counted(str(slot.doing) for state in states for slot in state.slots),
            "disk": disk,
        }

    def _measurements(self) -> RunData:
        """Return the run's measurements, read again when a line was added."""
        try:
            status = self.store.metrics_path.stat()
            now = (status.st_size, status.st_mtime_ns)
        except OSError:
            now = (0, 0)
        ended = self.store.result_path.exists()
        if self._measured is None or now != self._metrics or ended is (self._measured.result is None):
            self._measured, self._metrics = read_measurements(self.store.root), now
        return self._measured

    def _rates(self, states: Sequence[WorkerState], line: Any) -> dict[str, float | None]:
        """Return episodes and steps a second over the last seconds, and tokens by the last line."""
        for state in states:
            before = self._last_steps.get(state.worker, {})
            here = {number: (slot.episode_id, slot.step) for number, slot in enumerate(state.slots)}
            for number, (episode, step) in here.items():
                same = before.get(number, ("", 0))
                if episode:
                    self._steps += max(0, step - same[1]) if same[0] == episode else step
            self._last_steps[state.worker] = here
        now, ended = time.monotonic(), sum(sum(state.finished.values()) for state in states)
        self._totals.append((now, ended, self._steps))
        while now - self._totals[0][0] > RATE_SECONDS:
            self._totals.popleft()
        since, ended_then, steps_then = self._totals[0]
        seconds = now - since
        tokens = None
        if line is not None and line.response_tokens_mean and line.steps_mean and line.seconds.get("rollout"):
            episodes = sum(line.stop_reasons.values())
            tokens = line.response_tokens_mean * line.steps_mean * episodes / line.seconds["rollout"]
        if seconds < 2:
            return {"episodes": None, "steps": None, "tokens": tokens}
        # The counters of a worker begin anew with its next shards.
        episodes_rate = (ended - ended_then) / seconds if ended >= ended_then else None
        return {"episodes": episodes_rate, "steps": (self._steps - steps_then) / seconds, "tokens": tokens}

    def _trainer(self) -> dict[str, Any]:
        """Return the trainer's phase and the share of its update that is done."""
        phase, share = read_heartbeat(self.store.trainer_path)
        return {"phase": TRAINER_PHASES.get(phase, phase) or None, "share": share}

    def _disk(self) -> dict[str, int] | None:
        try:
            usage = shutil.disk_usage(self.store.root)
        except OSError:
            return None
        return {"free": usage.free, "total": usage.total}

    def _state(
        self, run: RunData, states: Sequence[WorkerState], trainer: dict[str, Any], disk: dict[str, int] | None
    ) -> tuple[str, str | None]:
        """Return the run's state, and a sentence about what is wrong with it."""
        if not self.store.root.is_dir():
            return "unknown", f"The folder {self.store.root} of the run is gone; it is shown again when it is back."
        try:
            state = run_state(self.store, run)
        except OSError as error:
            return "unknown", f"The folder of the run cannot be read: {error.strerror}."
        seen = (self._metrics, trainer["phase"], trainer["share"], *((worker.worker, worker.time) for worker in states))
        if seen != self._last_state:
            self._last_state, self._last_change = seen, time.monotonic()
        silent = time.monotonic() - self._last_change
        if state == "running" and silent > STALLED_SECONDS:
            return "stalled", f"Nothing of the run has changed for {silent / 60:.0f} minutes."
        if disk is not None and disk["free"] < LOW_DISK * disk["total"]:
            return state, f"The disk of the run is nearly full: {disk['free'] / 1e9:.1f} GB are left."
        if state == "stopped":
            return state, "No process works on this run, and it has no result: start the same command again to go on."
        return state, None


@dataclass(slots=True)
class History:
    """The last minutes of all figures that are numbers, by their dotted path."""

    _values: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def add(self, figures: dict[str, Any], now: float) -> None:
        """Add the numbers of the figures; ``now`` is in seconds since 1970."""
        for path, value in numbers_of(figures):
            self._values.setdefault(path, deque()).append((now, value))
        for path, values in list(self._values.items()):
            while values and now - values[0][0] > HISTORY_SECONDS:
                values.popleft()
            if not values:
                del self._values[path]

    def curve(self, path: str) -> dict[str, list[float]]:
        """Return the times and values of a figure; empty lists if it was not seen."""
        values = self._values.get(path, ())
        return {"times": [time for time, _ in values], "values": [value for _, value in values]}


def numbers_of(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the path and value of each number."""
    for key, inner in value.items():
        path = f"{prefix}{key}"
        if isinstance(inner, dict):
            yield from numbers_of(inner, f"{path}.")
        elif isinstance(inner, int | float) and not isinstance(inner, bool):
            yield path, inner


def _engine(states: Sequence[WorkerState], batches: dict[str, Any]) -> dict[str, float]:
    """Return turns that wait and run, and the turns of a generation batch."""
    doing = Counter(str(slot.doing) for state in states for slot in state.slots)
    engine: dict[str, float] = {"queued": doing["queue"], "running": doing["turn"]}
    if batches.get("batches"):
        engine["batch"] = batches.get("turns", 0) / batches["batches"]
    return engine


def _counted(values: Iterator[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _added(counts: Iterator[dict[Any, Any]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for counter in counts:
        total.update({str(name): value for name, value in counter.items()})
    return dict(total.most_common())
