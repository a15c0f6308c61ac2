"""Runs under a root: a row for each, curves to compare, and keys in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.types import StorageError
from tasks_lib.folder.lock import check_unlocked
from tasks_lib.folder.metrics_lines import EvaluationMetrics, Success
from tasks_lib.report.data import RunData, read_measurements
from tasks_lib.report.page import flatten
from training.ledger.store import RunStore

MAX_COMPARED = 12
"""Most runs whose curves and keys are shown together."""


@dataclass(slots=True)
class RunShelf:
    """The runs in the folders under a root. A run's files are read again when they have changed."""

    root: Path
    _known: dict[str, tuple[tuple[int, ...], RunData]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return the names of the runs, those that were written last first."""
        runs = [path for path in self.root.iterdir() if (path / "config.json").is_file()] if self.root.is_dir() else []
        return [path.name for path in sorted(runs, key=_written, reverse=True)]

    def store(self, name: str) -> RunStore:
        """Return the folder of a run.

        Raises:
            KeyError: the root has no such run. A name that leaves the root is none.
        """
        if name not in self.names():
            raise KeyError(name)
        return RunStore(self.root / name)

    def measurements(self, name: str) -> RunData:
        """Return the measurements of a run, without its tasks and groups."""
        store = self.store(name)
        files = (store.config_path, store.metrics_path, store.result_path)
        state = tuple(value for path in files for value in _state(path))
        known = self._known.get(name)
        if known is None or known[0] != state:
            known = self._known[name] = (state, read_measurements(store.root))
        return known[1]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run, as JSON values."""
        return [run_row(self.store(name), self.measurements(name)) for name in self.names()]

    def comparison(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the curves of several runs and the keys in which their configurations differ."""
        runs = [self.measurements(name) for name in names[:MAX_COMPARED]]
        return {"curves": {run.run_id: curves(run) for run in runs}, "keys": differing_keys(runs)}


def run_row(store: RunStore, run: RunData) -> dict[str, Any]:
    """Return a run's row of the list."""
    last = run.evaluations[-1] if run.evaluations else None
    config = run.config
    return {
        "run": run.run_id,
        "flow": "train" if run.trains else "evaluate",
        "preset": config.get("preset") or config.get("name") or "",
        "state": run_state(store, run),
        "started": store.config_path.stat().st_mtime if store.config_path.exists() else None,
        "measured": run.measured_at,
        "iteration": run.iterations[-1].iteration + 1 if run.iterations else 0,
        "iterations": config.get("iterations"),
        "seconds": next((line.wall for line in reversed(run.iterations) if line.wall is not None), None),
        "before": _rate(run.evaluations[0] if len(run.evaluations) > 1 else None),
        "after": _rate(last),
        "started_by": str(run.started.get("by") or ""),
        "deployment": str(run.started.get("deployment") or ""),
        "flow_run": str(run.started.get("flow_run") or ""),
        "tags": [str(tag) for tag in run.started.get("tags") or ()],
        "seed": config.get("seed"),
        "problems": len(run.problems),
    }


def run_state(store: RunStore, run: RunData) -> str:
    """Return ``ended``, ``running`` or ``stopped``: a run that goes on holds its folder's lock."""
    if run.result is not None:
        return "ended"
    try:
        check_unlocked(store.root)
    except StorageError:
        return "running"
    return "stopped"


def curves(run: RunData) -> dict[str, list[Any]]:
    """Return held-out and training success by version, episodes and seconds.

    ``evaluations`` has rows of (version, episodes, seconds, mean, low, high) and ``training`` rows
    of (version, episodes, seconds, mean). What was not measured is ``None``.
    """
    episodes, counted = 0, []
    for line in run.iterations:
        episodes += int(sum(line.stop_reasons.values()))
        counted.append((line.iteration + 1, episodes))
    evaluations = []
    for measured in run.evaluations:
        before = [count for version, count in counted if version <= measured.version]
        rate = _rate(measured) or {}
        evaluations.append(
            [
                measured.version,
                before[-1] if before else 0,
                measured.wall,
                rate.get("mean"),
                rate.get("low"),
                rate.get("high"),
            ]
        )
    training = [
        [version, count, line.wall, line.success]
        for (version, count), line in zip(counted, run.iterations, strict=True)
    ]
    return {"evaluations": evaluations, "training": training}


def differing_keys(runs: Iterable[RunData]) -> list[list[str]]:
    """Return rows of a key and its value in each run, where they differ; a key that a run lacks has
    the value "–"."""
    flat = [dict(flatten(run.config)) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = ([key, *(values.get(key, "–") for values in flat)] for key in keys)
    return [row for row in rows if len(set(row[1:])) > 1]


def run_page(store: RunStore, run: RunData) -> dict[str, Any]:
    """Return the values of a run's page, without its episodes."""
    last = run.evaluations[-1] if run.evaluations else None
    by_kind = {} if last is None else {kind: _rate(success) for kind, success in last.by_kind.items()}
    versions = [
        {"version": version, "published": store.policy_path(version).stat().st_mtime} for version in store.versions()
    ]
    return {
        **run_row(store, run),
        "curves": curves(run),
        "kinds": by_kind,
        "versions": versions,
        "config": list(flatten(run.config)),
        "packages": run.versions,
        "commit": run.git_commit,
        "notes": run.problems[:20],
        "report": store.report_path.joinpath("index.html").is_file(),
    }


def _rate(success: Success | EvaluationMetrics | None) -> dict[str, Any] | None:
    """Return a success rate as JSON values."""
    if success is None:
        return None
    return {"mean": success.mean, "low": success.low, "high": success.high, "n": success.n}


def _state(path: Path) -> tuple[int, int]:
    """Return size and time of a file, by which a change is seen; zeros if there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _written(run: Path) -> float:
    """Return the time when a run was written last: its metrics, or its configuration."""
    return max(_state(run / name)[1] for name in ("metrics.jsonl", "config.json"))
