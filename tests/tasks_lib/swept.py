"""A stand-in for the flow that trains: for tests of sweeps, which ask only what a run leaves
behind."""

from __future__ import annotations

from typing import Any

from tasks_lib.config import TrainConfig
from tasks_lib.folder.metrics import wilson_interval
from tasks_lib.folder.values import freeze_config
from training.ledger.store import RunStore, write_json


def interval(passed: int, n: int) -> dict[str, Any]:
    low, high = wilson_interval(passed, n)
    return {"mean": passed / n if n else 0.0, "low": low, "high": high, "n": n}


class Train:
    """Stands in for ``flows.train``: leaves what a finished run leaves, and counts. Success after
    is 10 episodes of 20 and one for each seed."""

    def __init__(self, **trouble: BaseException) -> None:
        self.trouble = trouble
        self.played: list[str] = []

    def __call__(self, config: TrainConfig) -> None:
        self.played.append(config.run_id)
        store = RunStore(config.run_dir)
        freeze_config(config, store)
        if (error := self.trouble.get(config.run_id.replace("-", "_"))) is not None:
            raise error
        before, after = interval(4, 20), interval(10 + config.seed, 20)
        for version, found in ((0, before), (config.iterations, after)):
            write_json(store.evaluation_path(version), {"version": version, "by_kind": {}, "seconds": 1.0, **found})
        (store.report_path).mkdir(exist_ok=True)
        (store.report_path / "index.html").write_text("a run's page")
        result = {
            "success_before": before,
            "success_after": after,
            "seconds": {"total": 90.0},
            "updates": config.iterations,
        }
        write_json(store.result_path, result)
