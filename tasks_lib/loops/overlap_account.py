"""Times of an asynchronous run between two of its metrics lines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tasks_lib.folder.metrics import sum_by_name
from tasks_lib.folder.metrics_lines import Overlap
from tasks_lib.loops.base import PhaseTimer
from tasks_lib.worker.requests import RolloutReport
from training.pacing.staleness import staleness, staleness_histogram
from training.records.batches import TrainingBatch


class OverlapAccount:
    """Collects the times of work that runs in parallel, for the next line."""

    def __init__(self) -> None:
        self.clock = PhaseTimer()
        """Seconds of the loop's own thread, by phase."""
        self.reports: list[RolloutReport] = []
        """Reports on the shards that ended."""
        self._timeline: list[tuple[str, float, float]] = []
        """Work that ended: name, beginning and end in seconds since 1970."""

    def mark(self, name: str, began: float) -> None:
        """Add work that began at a monotonic time and ends now."""
        now = time.time()
        self._timeline.append((name, round(now - (time.monotonic() - began), 2), round(now, 2)))

    def seconds(self) -> dict[str, float]:
        """Return shares of the loop's own wall time; all other work runs beside it."""
        total, spent = self.clock.total(), self.clock.seconds
        seconds = {name: spent[name] for name in ("batch", "sample", "orchestrate")}
        seconds["orchestrate"] += spent["ledger"]
        return {"rollout": total - sum(seconds.values()), **seconds, "total": total}

    def rollout_split(self) -> dict[str, float]:
        """Return the workers' seconds by activity."""
        return dict(sum_by_name(report.seconds for report in self.reports))

    def overlap(self, batch: TrainingBatch, manifest: Mapping[str, Any], **measured: Any) -> Overlap:
        """Return the line's part on parallel work.

        Args:
            batch: Batch of the line's version.
            manifest: Manifest of that version.
            measured: Fields that follow from neither.
        """
        lags = [staleness(batch.policy_version_before, oldest) for oldest, _ in batch.versions]
        split = self.rollout_split()
        return Overlap(
            staleness={str(lag): rows for lag, rows in staleness_histogram(lags).items()},
            train=sum(manifest["seconds"].values()),
            trainer_idle=manifest["waited_seconds"],
            workers_idle=split.get("idle", 0.0) / max(sum(split.values()), 1e-9),
            timeline=self._timeline,
            **measured,
        )
