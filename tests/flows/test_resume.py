"""Kill anything at any moment, start the same command again: it goes on, nothing is done twice, the
ledger equals the files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import orjson
import psutil
import pytest

from envs.types import StopReason
from flows.train import train
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.config.parameters import parameters_of
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.journal import Journal, read_group
from training.ledger.paths import group_of
from training.ledger.store import RunStore, read_json
from training.records.states import EpisodeState

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.dask]


def committed(store: RunStore) -> dict[Path, str]:
    """Everything that must never change once it is there, by its hash: groups, batches, manifests,
    evaluations."""
    patterns = ("groups/*/*.json", "batches/*.json", f"policies/*/{MANIFEST}", "evaluations/*.json")
    paths = [path for pattern in patterns for path in store.root.glob(pattern)]
    return {path: f"{path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths}


def counted_from_files(store: RunStore) -> Counter[str]:
    """The states of a finished run's episodes, from the JSON of its trajectories and batches
    alone."""
    rows = {
        row["episode_id"] for version in store.versions()[1:] for row in read_json(store.batch_path(version))["rows"]
    }
    found: Counter[str] = Counter()
    for group_id in store.group_ids("i*"):
        record = read_json(store.group_path(group_id))
        played = [
            read_json(store.trajectory_path(each["episode_id"], record.get("token", ""))) for each in record["episodes"]
        ]
        rewards = {each["reward"]["score"] for each in played} - {None}
        for each in played:
            if each["reward"]["score"] is None:
                found["abandoned" if each["stop_reason"] == StopReason.ABANDONED else "abstained"] += 1
            elif each["episode_id"] in rows:
                found["consumed"] += 1
            else:
                assert len(rewards) == 1, f"{each['episode_id']} could be compared and was not trained on"
                found["zero_variance"] += 1
    return found


def check_whole(store: RunStore, iterations: int) -> None:
    """A finished run's files agree with each other."""
    assert store.versions() == list(range(iterations + 1))
    lines = [orjson.loads(line) for line in store.metrics_path.read_bytes().splitlines()]
    assert [line["iteration"] for line in lines if line["kind"] == "iteration"] == list(range(iterations))
    result = read_json(store.result_path)
    episodes = result["episodes"]
    records = [read_group(store, group_id) for group_id in store.group_ids("i*")]
    counted = counted_from_files(store)
    assert episodes == {"started": counted.total(), **{str(state): counted[state] for state in EpisodeState}}
    assert counted.total() == sum(len(record.episodes) for record in records)
    trained = [
        row["episode_id"]
        for version in range(1, iterations + 1)
        for row in read_json(store.batch_path(version))["rows"]
    ]
    assert len(set(trained)) == episodes["consumed"]
    copy = store.root / "journal-copy.sqlite"
    shutil.copy(store.journal_path, copy)
    journal = Journal(copy)
    before = journal.episodes(), journal.updates()
    journal.refresh(store)
    assert (journal.episodes(), journal.updates()) == before == (episodes, list(range(1, iterations + 1)))
    journal.close()


@pytest.mark.timeout(900)
def test_a_run_goes_on_after_a_full_disk_and_after_a_kill(make_run, small_disk, tmp_path):
    """At random moments of an asynchronous run: below. By Ctrl-C during the first rollouts:
    test_server_outage.py."""
    disk = small_disk(64 * 2**20)
    (tmp_path / "runs").symlink_to(disk)
    run = make_run("killed", iterations=2, **{"evaluation.every": 2})
    store, filler = run.store, disk / "filler"

    def played() -> int:
        return len(list(store.root.glob("trajectories/*/i000001-*")))

    run.start()
    run.wait_until(lambda: played() > 2)
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    assert run.process.wait(120) == 1
    run.process = None
    said = run.log().splitlines()
    assert len([line for line in said if "no space left" in line and "| INFO" not in line]) == 1
    assert "Traceback" not in run.log()
    assert said[-1].startswith("error: cannot write ") and "0 B free on" in said[-1]
    filler.unlink()
    kept, before = committed(store), played()

    run.start()
    run.wait_until(lambda: played() > before + 3)
    kept |= committed(store)
    run.kill()
    assert kept.items() <= committed(store).items()
    kept = committed(store)
    run.finish()
    assert kept.items() <= committed(store).items() and not list(disk.rglob("*.tmp"))
    assert {group_id.split("-")[0] for group_id in store.group_ids("e*")} == {"e000000", "e000002"}, (
        "only what was due is evaluated, however often the run was started"
    )
    check_whole(store, iterations=2)


@pytest.mark.timeout(900)
def test_a_seed_gives_the_same_episodes_to_a_run_with_staleness_zero(make_run, dask_cluster, prefect_api):
    # No generation batch closes early for a slow page: that changes the last digits, and a busy
    # machine has such pages. The last evaluation is played by the policy that was trained.
    settings = {
        "seed": 5,
        "iterations": 1,
        "rollout.batch_deadline": 60,
        "rollout.groups_per_iteration": 8,
        "evaluation.episodes": 4,
    }
    not_ahead = {
        "mode": "async",
        "pacing.staleness": 0,
        "pacing.running": 8,
        "pacing.replace": "false",
        "pacing.silence": 120,
    }
    in_one_shard = {"rollout.groups_per_task": 8, "rollout.deterministic": "true"}
    elsewhere = {"cluster.address": dask_cluster.address}
    runs = [make_run("one", **settings, **elsewhere), make_run("two", **settings, **not_ahead, **in_one_shard)]
    for run in runs:
        run.finish()
    first, second = (
        {episode_id: run.store.trajectory(episode_id) for episode_id in run.store.episode_ids()} for run in runs
    )
    assert first.keys() == second.keys()
    for episode_id, trajectory in first.items():
        other = second[episode_id]
        assert [s.response_ids for s in trajectory.steps] == [s.response_ids for s in other.steps], episode_id
        assert [s.logprobs for s in trajectory.steps] == [s.logprobs for s in other.steps], episode_id
        assert [s.screenshot for s in trajectory.steps] == [s.screenshot for s in other.steps], episode_id
        assert trajectory.reward == other.reward
    for run, waits in zip(runs, (set(), {"trainer"}), strict=True):
        (line,) = [
            line for line in map(orjson.loads, run.store.metrics_path.read_bytes().splitlines()) if "idle" in line
        ]
        assert line["idle"].keys() == {"browsers", "engines", "trainer"}
        assert all(0 <= share < 1 for share in line["idle"].values()), line["idle"]
        assert line["queues"].keys() == {"permit", "encode", "engine", "reward"} | waits
        assert all(seconds >= 0 for seconds in line["queues"].values())
        assert line["batches"]["turns"] == sum(len(each.steps) for name, each in first.items() if name.startswith("i"))
        assert 0.5 < line["train"]["ess"] <= 1.001 and line["train"]["kl_by_images"].keys() == {"1"}
    weights = [run.store.policy_path(1) / "model.safetensors" for run in runs]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    run = runs[0]
    kept = committed(run.store)
    assert train(**parameters_of(resolve(TrainConfig, run.values))) == read_json(run.store.result_path)
    assert committed(run.store) == kept, "a finished run is only read"


VICTIMS = {"browser": "--remote-debugging-pipe", "trainer": "training.trainer", "worker": "spawn_main", "flow": ""}
"""Words of their command lines; the local engine lives in the worker."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(int(os.environ.get("ROLLWRIGHT_KILLS", "1"))))
def test_whatever_is_killed_each_group_is_trained_once(make_run, seed):
    """Each process once, in any order, at moments that the seed chooses; `make kills` tries twenty
    seeds.

    Every second seed evaluates at boundaries, the others each version on a worker of its own.
    """
    iterations, size, staleness = 3, 4, 2
    ahead = {"mode": "async", "pacing.staleness": staleness, "rollout.groups_per_iteration": size}
    where, every = (("replica", 1), ("boundary", 9))[seed % 2]
    measured = {"evaluation.where": where, "evaluation.every": every, "evaluation.episodes": 4}
    run = make_run("ahead", seed=seed, **ahead, iterations=iterations, **measured)
    chance, store = random.Random(seed), run.store
    run.start()
    for victim in chance.sample(sorted(VICTIMS), len(VICTIMS)):
        wanted = len(list(store.root.glob("trajectories/*/i*"))) + chance.randrange(1, 10)
        run.wait_until(lambda wanted=wanted: len(list(store.root.glob("trajectories/*/i*"))) >= wanted)
        time.sleep(chance.random() / 2)
        kept = committed(store)
        if victim == "flow":
            run.kill()
            run.start()
        else:
            run.wait_until(lambda victim=victim: bool(run.children(VICTIMS[victim])))
            found = run.children(VICTIMS[victim])
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(found).kill()
        assert kept.items() <= committed(store).items(), victim
    run.finish()
    check_whole(store, iterations)
    check_paced(store, iterations, size, staleness)
    check_measured(store, {*range(0, iterations, every), iterations})
    for summary in (e for group_id in store.group_ids() for e in read_group(store, group_id).episodes):
        if summary.stop_reason in {StopReason.BROWSER_ERROR, StopReason.DEADLINE}:
            assert summary.score is None and summary.abstained, "a broken browser must never become a reward"


def check_measured(store: RunStore, versions: set[int]) -> None:
    """Each version has one evaluation, all of whose tokens are its own."""
    assert {int(path.stem[1:]) for path in store.root.glob("evaluations/v*.json")} == versions
    for version in versions:
        episodes = read_json(store.evaluation_path(version))["episodes"]
        assert {group_of(episode) for episode in episodes} == set(store.group_ids(f"e{version:06d}"))
        for step in (step for episode in episodes for step in store.trajectory(episode).steps):
            assert {span.version for span in step.version_spans} | {step.policy_version} == {version}


def check_paced(store: RunStore, iterations: int, size: int, staleness: int) -> None:
    """Counted from batches, group records and trajectories alone."""
    consumed: Counter[str] = Counter()
    for version in range(1, iterations + 1):
        batch = read_json(store.batch_path(version))
        consumed.update(batch["group_ids"])
        trained = {group_of(row["episode_id"]) for row in batch["rows"]}
        given_up = len(batch["group_ids"]) - len(trained) >= 2 * size
        assert len(trained) == size or given_up, "a batch is full, unless too many groups leave nothing to learn from"
        for row, (oldest, newest) in zip(batch["rows"], batch["versions"], strict=True):
            step = store.trajectory(row["episode_id"]).steps[row["step"]]
            spans = [span.version for span in step.version_spans] or [step.policy_version]
            assert (oldest, newest) == (min(spans), max(spans))
            assert 0 <= version - 1 - oldest <= staleness
        for group_id in batch["group_ids"]:
            assert version - 1 - read_group(store, group_id).policy_version <= staleness
        assert not any(left["state"] == EpisodeState.STALE for left in batch["left_out"].values())
    assert set(consumed) == set(store.group_ids("i*")) and set(consumed.values()) == {1}
