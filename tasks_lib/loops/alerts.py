"""Watches a run for what a person or an automation should act on.

Each condition gives one Prefect event when it begins, and one more only after it has ended.
"""

from __future__ import annotations

import contextvars
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from envs.types import StopReason
from tasks_lib.config.alerts import AlertConfig
from tasks_lib.folder.metrics import count_causes
from tasks_lib.processes.prefect_run import emit
from tasks_lib.worker.live import WorkerState
from training.ledger.store import RunStore
from training.records.groups import GroupRecord
from training.trainer.control.heartbeat import HEARTBEAT

LOOK_SECONDS = 10.0
"""Seconds between two looks at a run's folder and its disk."""
ENOUGH = 1.2
"""Factor of the least free space from which a disk counts as having room again."""

logger = logging.getLogger(__name__)


class RunAlerts:
    """Finds a run that stands still, and a disk that fills up. `look` is to be called regularly.

    Args:
        store: Folder of the run.
        config: Limits.
        log: Logs a line, once for each event.
        now: Monotonic time of the beginning.
    """

    def __init__(self, store: RunStore, config: AlertConfig, log: Callable[[str], object], now: float) -> None:
        self._store, self._config, self._log = store, config, log
        self._progress: tuple[object, ...] = ()
        self._since = now
        self._stalled = self._low = self._failed = False

    def look(self, now: float) -> None:
        """Look once. A folder that cannot be read for the moment is logged, and looked at again."""
        try:
            self._look_at_progress(now)
            self._look_at_disk()
        except (OSError, ValueError) as error:
            if not self._failed:
                logger.warning("%s cannot be watched for the moment: %s", self._store.root, error)
            self._failed = True
        else:
            self._failed = False

    def _look_at_progress(self, now: float) -> None:
        limit = self._config.stalled_minutes * 60
        if not limit:
            return
        progress = self._read_progress()
        if progress != self._progress:
            self._progress, self._since, self._stalled = progress, now, False
        seconds = now - self._since
        if seconds < limit or self._stalled:
            return
        self._stalled = True
        self._log(
            f"[yellow]no episode, update or evaluation has ended for {seconds / 60:.0f} minutes "
            f"(alerts.stalled_minutes); the monitor shows what they wait for: "
            f"python -m flows.monitor --run {self._store.root}[/yellow]"
        )
        payload = {"seconds": round(seconds), "version": self._store.latest_policy(), "folder": str(self._store.root)}
        emit("rollwright.run.stalled", self._store.root.name, payload)

    def _read_progress(self) -> tuple[object, ...]:
        """Return values that change when an episode, an update or an evaluation ends."""
        workers = [
            WorkerState.model_validate_json(path.read_bytes())
            for path in sorted(self._store.live_path("x").parent.glob("[!.]*.json"))
        ]
        heartbeat = self._store.trainer_path / HEARTBEAT
        return (
            *((worker.worker, sum(worker.finished.values())) for worker in workers),
            heartbeat.read_text() if heartbeat.exists() else "",
            self._store.latest_policy(),
            len(list(self._store.evaluation_path(0).parent.glob("v*.json"))),
        )

    def _look_at_disk(self) -> None:
        least = self._config.disk_gb * 1e9
        usage = shutil.disk_usage(self._store.root)
        if self._low or usage.free >= least:
            self._low = self._low and usage.free < ENOUGH * least
            return
        self._low = True
        self._log(
            f"[yellow]{usage.free / 1e9:.1f} GB are free on the disk of {self._store.root} (alerts.disk_gb): "
            f"free some space, or keep fewer policies (trainer.keep_policies)[/yellow]"
        )
        payload = {"free_bytes": usage.free, "total_bytes": usage.total, "folder": str(self._store.root)}
        emit("rollwright.disk.low", self._store.root.name, payload)


@contextmanager
def watched_run(store: RunStore, config: AlertConfig, log: Callable[[str], object]) -> Iterator[None]:
    """Watch a run in a thread of this flow run, which its events belong to."""
    stopped, alerts = threading.Event(), RunAlerts(store, config, log, time.monotonic())

    def watch() -> None:
        while not stopped.wait(LOOK_SECONDS):
            alerts.look(time.monotonic())

    thread = threading.Thread(target=contextvars.copy_context().run, args=(watch,), name="run-alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


class AbstentionAlert:
    """Finds batches and evaluations with many episodes without a reward."""

    def __init__(self, run_id: str, limit: float) -> None:
        self._run_id, self._limit, self._high = run_id, limit, False

    def look(self, iteration: int, records: Sequence[GroupRecord]) -> None:
        """Look at the groups of a batch; episodes that were not needed do not count."""
        played = [
            episode
            for record in records
            for episode in record.episodes
            if episode.stop_reason is not StopReason.ABANDONED
        ]
        abstained = sum(episode.score is None for episode in played)
        self.report({"iteration": iteration}, abstained, len(played), count_causes(played))

    def report(self, place: Mapping[str, int], abstained: int, episodes: int, causes: Mapping[str, int]) -> None:
        """Report the episodes of a batch or an evaluation; the place says which one."""
        share = abstained / max(episodes, 1)
        was_high, self._high = self._high, share >= self._limit
        if self._high and not was_high:
            payload = {**place, "share": share, "abstained": abstained, "episodes": episodes, "causes": dict(causes)}
            emit("rollwright.abstentions.high", self._run_id, payload)
