"""``flows.simulate``: distributions fitted to a run's files, settings compared."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envs.types import ConfigError
from tasks_lib.config import PROJECT, resolve
from tasks_lib.simulation.compare import compare, document_of, rows_of
from tasks_lib.simulation.config import SimulateConfig
from tasks_lib.simulation.fit import beta_of, fit
from training.ledger.store import RunStore, write_json
from training.records.groups import GroupRecord

from .synthetic_run import SyntheticRun

QUICK: dict[str, Any] = {
    "versions": 3,
    "schedule": {"batch": 2},
    "machine": {"browsers": 16, "engine_gpus": 2, "trainer_gpus": 2, "turns_per_gpu": 4},
    "workload": {"group_size": 4, "update_step_seconds": 0.5},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    store = SyntheticRun(tmp_path_factory.mktemp("runs") / "made", iterations=3).store
    document = json.loads(store.config_path.read_bytes())
    document["config"] = {
        "iterations": 3,
        "rollout": {"concurrency": 8, "groups_per_iteration": 4, "over_sampling": 1},
        "cluster": {"workers": 2},
        "algorithm": {"group_size": 8},
    }
    write_json(store.config_path, document)
    return store


def test_a_run_is_fitted_by_its_own_files(run: RunStore) -> None:
    found = fit(str(run.root))
    records = [
        GroupRecord.model_validate_json(run.group_path(name).read_bytes())
        for name in run.group_ids()
        if name.startswith("i")
    ]
    usable = [episode for record in records for episode in record.episodes if episode.score is not None]
    passed = [episode.steps for episode in usable if episode.passed and episode.steps]
    assert sorted(found.workload.success_steps.values) == sorted(passed)
    assert found.workload.abstain == pytest.approx(1 - len(usable) / sum(len(record.episodes) for record in records))
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    updates = [line["seconds"]["train"] for line in lines if line["kind"] == "iteration"]
    assert list(found.workload.update_seconds.values) == updates
    assert (found.machine.browsers, found.schedule.batch, found.schedule.over_sampling) == (16, 4, 1)
    alpha, beta = found.workload.success
    assert alpha / (alpha + beta) == pytest.approx(sum(each.passed for each in usable) / len(usable))


def test_seconds_of_an_iteration_are_counted_once(run: RunStore) -> None:
    found = fit(str(run.root))
    assert found.period == pytest.approx(21.5)
    assert found.workload.publish_seconds == pytest.approx(0.1 + 0.2 + 1.3)  # sample, batch, orchestrate


def test_an_asynchronous_run_is_fitted_with_its_pacing(run: RunStore, tmp_path: Path) -> None:
    copy = RunStore(shutil.copytree(run.root, tmp_path / "asynchronous"))
    document = json.loads(copy.config_path.read_bytes())
    document["config"] |= {"mode": "async", "pacing": {"staleness": 4, "running": 12}}
    write_json(copy.config_path, document)
    lines = [json.loads(line) for line in copy.metrics_path.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "iteration":
            line["asynchronous"] = {"publish": 0.25}
            line["train_split"] = {"train": 5.0, "save_policy": 1.0}
            line["seconds"] = {"rollout": 9.0, "sample": 0.5, "orchestrate": 0.5, "total": 10.0}
    copy.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = fit(str(copy.root))
    assert (found.schedule.staleness, found.schedule.depth, found.schedule.running) == (4, 2, 12)
    assert (found.period, found.workload.publish_seconds) == (10.0, 0.25)
    assert set(found.workload.update_seconds.values) == {6.0}
    values = {**QUICK, "run": str(copy.root), "compare": {"staleness": [0, 2]}}
    results = {choice["staleness"]: result for choice, result in compare(resolve(SimulateConfig, values))}
    assert set(results) == {0, 2} and results[0].staleness_mean == 0, "the depth follows the compared staleness"
    assert all(result.browser_idle >= 0 for result in results.values())


def test_the_spread_of_tasks_is_found_again() -> None:
    source = random.Random(0)
    groups = []
    for _ in range(4000):
        chance = source.betavariate(0.5, 1.5)
        groups.append((sum(source.random() < chance for _ in range(8)), 8))
    assert beta_of(groups) == pytest.approx((0.5, 1.5), rel=0.1)
    alike = [(sum(source.random() < 0.25 for _ in range(8)), 8) for _ in range(4000)]
    assert sum(beta_of(alike)) > 20  # nothing but the draws differs


def test_a_folder_without_iterations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder of a run"):
        fit(str(tmp_path))
    write_json(tmp_path / "config.json", {"config": {"iterations": 3}})
    with pytest.raises(ConfigError, match="no finished iterations"):
        fit(str(tmp_path))


def test_settings_are_compared_and_the_fastest_is_first() -> None:
    config = resolve(SimulateConfig, {**QUICK, "compare": {"staleness": [0, 2], "browsers": [4, 16]}})
    found = list(compare(config))
    assert len(found) == len(config.choices()) == 4
    rows = rows_of(found)
    rates = [row["episodes_per_hour"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert (
        rows[0] | {"staleness": 2, "browsers": 16} == rows[0] and rows[-1] | {"staleness": 0, "browsers": 4} == rows[-1]
    )
    assert json.loads(json.dumps(document_of(found)))[0]["setting"] == {"staleness": 0, "browsers": 4}


def test_gpus_are_moved_between_engines_and_trainer() -> None:
    config = resolve(SimulateConfig, {**QUICK, "compare": {"engine_gpus": [1, 2, 3]}})
    updates = [result.update for _, result in compare(config)]
    assert updates[0] * 3 == pytest.approx(updates[1] * 2) and updates[2] == pytest.approx(2 * updates[1])
    more = resolve(
        SimulateConfig, {**QUICK, "machine": {**QUICK["machine"], "turns_per_gpu": 1}, "compare": {"replicas": [2, 4]}}
    )
    results = [result for _, result in compare(more)]
    assert results[0].update == pytest.approx(results[1].update) and results[0].period > results[1].period


@pytest.mark.parametrize(
    ("compared", "said"),
    [
        ({"engine_gpus": [4]}, "at least one trains"),
        ({"staleness": [-1]}, "at least 0"),
        ({"browsers": [0]}, "at least 1"),
        ({"engine_gpus": [1], "replicas": [1]}, "not both"),
        ({"browsers": list(range(1, 30)), "batch": list(range(1, 30))}, "fewer values"),
    ],
)
def test_what_cannot_be_compared_is_refused(compared: dict[str, list[int]], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SimulateConfig.model_validate({**QUICK, "compare": compared})


def test_it_runs_without_a_prefect_server(tmp_path: Path) -> None:
    """In a home of its own, in which a server that it started would leave its database."""
    arguments = ["versions=2", "compare.staleness=[0,2]", f"output={tmp_path / 'results.json'}"]
    command = [sys.executable, "-m", "flows.simulate", *(word for each in arguments for word in ("--set", each))]
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": ""}
    done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    announced, *rows, written = done.stderr.splitlines()
    assert announced.startswith("flows.simulate: ") and "results: " in written
    assert sorted(re.findall(r"s  staleness (\d) ", "\n".join(rows))) == ["0", "2"] and len(rows) == 2
    assert len(json.loads((tmp_path / "results.json").read_text())) == 2
    assert not [*tmp_path.rglob("*.db*")]
