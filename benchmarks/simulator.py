"""What the simulator says of three runs against what they did: it is fitted to a fourth one, whose
engine and trainer only take time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks import Figure
from benchmarks.async_workload import GROUPS
from benchmarks.asynchronous import consumed_per_second, lag_figures, predicted_per_second, train_arm
from tasks_lib.simulation.fit import fit

VERSIONS = 6
"""Of a run, at least; the first, which starts everything, and the last, for which no more groups
start, are not counted. Runs with small batches have more, so that each consumes as many
episodes."""

FITTED: dict[str, Any] = {"mode": "async", "pacing": {"staleness": 2}}
PREDICTED: dict[str, dict[str, Any]] = {
    "synchronous": {"rollout": {"deterministic": False}},
    "staleness 1, 24 groups": {
        "mode": "async",
        "pacing": {"staleness": 1},
        "rollout": {"groups_per_iteration": 24},
    },
    "staleness 4, 8 groups, 32 slots": {
        "mode": "async",
        "pacing": {"staleness": 4},
        "rollout": {"groups_per_iteration": 8, "concurrency": 32},
    },
}
"""Settings of the runs that are predicted; everything else is the benchmark async's."""


def run() -> list[Figure]:
    """How far simulated consumed episodes a second are off measured ones, and the staleness of the
    asynchronous runs."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="rollwright-simulator-") as folder:
        root = Path(folder)
        train_arm("fitted", FITTED, VERSIONS, root)
        base = fit(str(root / "fitted"))
        for number, (name, settings) in enumerate(PREDICTED.items()):
            lines = train_arm(f"run-{number}", settings, versions_of(settings), root)
            measured = consumed_per_second(lines[:-1])
            said = predicted_per_second(base, fit(str(root / f"run-{number}")), versions_of(settings))
            figures.append(Figure(f"consumed episodes per second, {name}", measured, "1/s", ""))
            figures.append(Figure(f"error of the simulation, {name}", abs(said / measured - 1), "share", "<= 0.15"))
            if "pacing" in settings:
                figures += lag_figures(lines, settings["pacing"]["staleness"])
    return figures


def versions_of(settings: dict[str, Any]) -> int:
    """Versions of a run with these settings."""
    groups: int = settings["rollout"].get("groups_per_iteration", GROUPS)
    return max(VERSIONS, VERSIONS * GROUPS // groups)
