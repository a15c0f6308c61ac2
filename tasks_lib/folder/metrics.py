"""Metrics of a run: success with confidence interval, ``metrics.jsonl``, TensorBoard, peak memory.

``metrics.jsonl`` has one line for each phase, and TensorBoard has the same numbers.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import psutil

from envs.types import StorageError
from tasks_lib.folder.metrics_lines import RATE, L, Line, parse_line, parse_lines
from tasks_lib.folder.trackers import Tracker
from training.ledger.disk import raise_disk_errors
from training.ledger.store import atomic_write_bytes
from training.records.groups import EpisodeSummary, GroupRecord

logger = logging.getLogger(__name__)

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""

MAX_CAUSES = 3
"""Maximum number of causes of missing rewards in a message."""


def wilson_interval(successes: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927).

    It stays in [0, 1] and is accurate near its ends.

    >>> [round(x, 3) for x in wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    if total == 0:
        return 0.0, 1.0
    p, z2 = successes / total, Z95**2
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * math.sqrt(p * (1 - p) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def success(episodes: Sequence[EpisodeSummary]) -> dict[str, Any]:
    """Return the share of usable episodes that passed: ``{mean, low, high, n}``.

    Abstentions are left out. Without usable episodes nothing is known: all but n are ``None``.
    """
    usable = [episode for episode in episodes if episode.score is not None]
    if not usable:
        return {**dict.fromkeys(RATE), "n": 0}
    passed = sum(episode.passed for episode in usable)
    low, high = wilson_interval(passed, len(usable))
    return {"mean": passed / len(usable), "low": low, "high": high, "n": len(usable)}


def describe_success(result: Mapping[str, Any], digits: int = 3) -> str:
    """Return a `success` in words: ``0.954 [0.920, 0.974]``.

    Where no episode has a reward it is unknown, which is no success of 0.
    """
    if not result["n"]:
        return "unknown, no episode has a reward"
    mean, low, high = (f"{result[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def format_share(value: float | None) -> str:
    """Return a success without its interval: ``0.954``, or ``unknown``."""
    return "unknown" if value is None else f"{value:.3f}"


def count_causes(episodes: Iterable[EpisodeSummary]) -> dict[str, int]:
    """Count the episodes without a reward by cause, the most frequent causes first."""
    return dict(
        Counter(episode.abstained or "?" for episode in episodes if episode.score is None).most_common(MAX_CAUSES)
    )


def success_by_kind(records: Iterable[GroupRecord]) -> dict[str, dict[str, Any]]:
    """Return ``success`` of each task kind, in alphabetical order."""
    by_kind: dict[str, list[EpisodeSummary]] = {}
    for record in records:
        by_kind.setdefault(record.kind, []).extend(record.episodes)
    return {kind: success(by_kind[kind]) for kind in sorted(by_kind)}


def episode_figures(records: Sequence[GroupRecord]) -> dict[str, Any]:
    """Return what the groups of an iteration give for its `IterationMetrics`."""
    episodes = [episode for record in records for episode in record.episodes]
    usable = [episode for episode in episodes if episode.score is not None]
    return {
        "success": success(episodes)["mean"],
        "success_by_kind": success_by_kind(records),
        "steps_mean": _mean([float(episode.steps) for episode in usable]),
        "response_tokens_mean": _mean([episode.response_tokens / max(episode.steps, 1) for episode in usable]),
        "stop_reasons": dict(Counter(str(episode.stop_reason) for episode in episodes)),
        "forms": dict(sum_by_name(episode.forms for episode in episodes)),
        "cut_turns": sum(len(episode.cut_turns) for episode in usable) / max(sum(e.steps for e in usable), 1),
        "action_errors": dict(sum_by_name(episode.action_errors for episode in episodes)),
        "settled": dict(sum_by_name(episode.settled for episode in episodes)),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def sum_by_name(parts: Iterable[Mapping[str, float]]) -> defaultdict[str, float]:
    """Return the sum of the values of each name. Integers stay integers."""
    total = defaultdict[str, float](int)
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return total


class MetricsLog:
    """Appends lines to ``metrics.jsonl`` and their numbers to TensorBoard and trackers.

    When the file is opened, a last line torn by a kill is cut off. Damaged lines before it are
    removed, and the file as it was is kept as ``metrics.jsonl.damaged``.
    """

    def __init__(self, path: Path, tensorboard: Path, trackers: Sequence[Tracker] = ()) -> None:
        self._path = path
        self._trackers = trackers
        with raise_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.wall = 0.0
        """Seconds of the loop at the newest line."""
        self._lines: list[Line] = []
        """All lines of the file."""
        if path.exists():
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                # Truncating needs no space: writing anew on a full disk would lose all lines.
                os.truncate(path, len(whole))
            self._lines = _take_out_damaged(path, whole)
            for line in self._lines[-1:]:
                self.wall = line.wall or 0.0
        from tensorboard.summary import Writer  # most processes write no metrics

        self._tensorboard = tensorboard
        with raise_disk_errors(tensorboard):
            self._writer = Writer(str(tensorboard))

    def lines(self, model: type[L]) -> list[L]:
        """Return all lines of one kind, oldest first; read once, when the log is opened."""
        return [line for line in self._lines if isinstance(line, model)]

    def append(self, line: Line, step: int) -> None:
        """Write one line; every number in it becomes the TensorBoard scalar ``<kind>/<path>`` at
        ``step``.

        Unknown values (null) have no point.
        """
        content = line.content()
        data = orjson.dumps(content) + b"\n"
        with raise_disk_errors(self._path, needed=len(data)), open(self._path, "ab") as file:
            file.write(data)
        if (written := parse_line(data)) is not None:
            self._lines.append(written)
        with raise_disk_errors(self._tensorboard):
            for tag, value in numbers(content, line.kind):
                self._writer.add_scalar(tag, float(value), step)
            self._writer.flush()
        for tracker in self._trackers:
            tracker.log(line.kind, dict(numbers(content, line.kind)), step)

    def close(self, failed: bool = False) -> None:
        """Close TensorBoard's file and the trackers, which may show that the run failed."""
        for tracker in self._trackers:
            tracker.close(failed)
        with raise_disk_errors(self._tensorboard):
            self._writer.close()


def _take_out_damaged(path: Path, data: bytes) -> list[Line]:
    """Remove damaged lines from the file, and return the others."""
    lines = list(parse_lines(path))
    damaged = [number for number, line in enumerate(lines, start=1) if isinstance(line, StorageError)]
    if damaged:
        copy, kept = path.with_name(f"{path.name}.damaged"), enumerate(data.splitlines(keepends=True), start=1)
        atomic_write_bytes(copy, data)
        atomic_write_bytes(path, b"".join(line for number, line in kept if number not in damaged))
        logger.warning(
            "%s: %d damaged lines are taken out, the first is line %d; %s has them",
            path,
            len(damaged),
            damaged[0],
            copy.name,
        )
    return [line for line in lines if line is not None and not isinstance(line, StorageError)]


def numbers(value: Any, path: str) -> Iterable[tuple[str, float]]:
    """Yield the numbers in nested mappings, each under its keys: ``train/kl_by_images/1``."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from numbers(child, f"{path}/{key}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


class MemoryMonitor:
    """Samples the resident memory of this process and its descendants, every five seconds.

    A sample costs some 50 ms of CPU.
    """

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> MemoryMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(5.0):
            self.peak_mb = max(self.peak_mb, family_rss_mb())


def family_rss_mb() -> float:
    """Return resident megabytes (2**20 bytes) of this process and its descendants.

    Memory that they share is counted once.
    """
    process = psutil.Process()
    return sum(_resident(member) for member in [process, *process.children(recursive=True)]) / 2**20


def _resident(process: psutil.Process) -> int:
    """Return the proportional set size in bytes on Linux, else the resident size.

    Chromium's many processes share most of their pages.
    """
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        return int(process.memory_info().rss)
    except (OSError, psutil.NoSuchProcess):  # it has ended meanwhile
        return 0
