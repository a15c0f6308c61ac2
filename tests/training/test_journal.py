"""The ledger: every episode is in one state for a reason, files that disagree are refused, and the
files alone give it back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.types import StopReason, StorageError
from training.config import AlgorithmConfig
from training.ledger.journal import Journal, published_batch
from training.ledger.store import RunStore, write_json
from training.records.batches import build_batch
from training.records.groups import GroupRecord
from training.records.states import EpisodeState

GIVEN_UP = "given up"
BLOCKED = "blocked"
outcomes = st.lists(st.sampled_from([None, 0.0, 1.0, GIVEN_UP, BLOCKED]), min_size=2, max_size=6)
iterations = st.lists(st.lists(outcomes, min_size=1, max_size=4), min_size=1, max_size=4)
algorithms = st.sampled_from(["grpo", "filtered_bc"])


def record_of(make_group: Callable[..., GroupRecord], group_id: str, outcomes: list[Any]) -> GroupRecord:
    """A group with these rewards, or ends without one."""
    ends = {GIVEN_UP: StopReason.ABANDONED, BLOCKED: StopReason.BLOCKED}
    record = make_group(group_id, [None if outcome in ends else outcome for outcome in outcomes])
    episodes = tuple(
        episode.model_copy(update={"stop_reason": ends[outcome]}) if outcome in ends else episode
        for episode, outcome in zip(record.episodes, outcomes, strict=True)
    )
    return record.model_copy(update={"episodes": episodes})


def group_name(iteration: int, number: int) -> str:
    """The odd ones belong to a second draw of the iteration."""
    return f"i{iteration:06d}{'-r1' if number % 2 else ''}-g{number:04d}"


def publish(store: RunStore, iteration: int, records: list[GroupRecord], algorithm: str, damaged: set[str]) -> None:
    """The files of an update."""
    config = AlgorithmConfig(name=algorithm)
    batch = build_batch(
        iteration + 1, [record.episodes for record in records], config, dict.fromkeys(damaged, "blob missing")
    )
    write_json(store.batch_path(iteration + 1), batch)
    write_json(store.policy_path(iteration + 1) / "manifest.json", {"version": iteration + 1})


def expected(
    groups: list[list[Any]], algorithm: str, published: bool, damaged: set[str], iteration: int
) -> Counter[str]:
    """The states of an iteration's episodes, from what they came to."""
    found: Counter[str] = Counter()
    for number, group in enumerate(groups):
        rewards = {outcome for outcome in group if isinstance(outcome, float)}
        for sample, outcome in enumerate(group):
            name = f"{group_name(iteration, number)}-s{sample:02d}-a0"
            if not isinstance(outcome, float):
                found["abandoned" if outcome == GIVEN_UP else "abstained"] += 1
            elif not published:
                found["in_flight"] += 1
            elif algorithm == "grpo" and len(rewards) < 2:
                found["zero_variance"] += 1
            elif algorithm == "filtered_bc" and outcome == 0.0:
                found["failed_filter"] += 1
            else:
                found["damaged" if name in damaged else "consumed"] += 1
    return found


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(iterations, st.integers(0, 4), algorithms, st.data())
def test_every_event_and_kill_leaves_the_states_that_the_files_give(
    tmp_path_factory, synthetic_group, groups_by_iteration, published, algorithm, data
):
    """A process goes through the run's events; at any of them it may be killed: the next one
    rebuilds the ledger and goes on."""
    store = RunStore(tmp_path_factory.mktemp("run"))
    journal = Journal(store.journal_path)
    damaged = {"i000000-g0000-s00-a0"} if data.draw(st.booleans(), "damaged") else set()

    def maybe_killed() -> None:
        nonlocal journal
        if data.draw(st.booleans(), "killed"):
            journal.close()
            journal = Journal(store.journal_path)
            journal.refresh(store)

    total: Counter[str] = Counter()
    for iteration, groups in enumerate(groups_by_iteration):
        records = [
            record_of(synthetic_group, group_name(iteration, number), group) for number, group in enumerate(groups)
        ]
        for record in records:
            write_json(store.group_path(record.group_id), record)
        maybe_killed()
        journal.accept(records)
        journal.accept(records)
        maybe_killed()
        if iteration < published:
            publish(store, iteration, records, algorithm, damaged)
            maybe_killed()
            for _ in range(2):
                journal.record_update(published_batch(store, iteration + 1))
        total += expected(groups, algorithm, iteration < published, damaged, iteration)
        assert +Counter(journal.episodes(f"i{iteration:06d}")) == +Counter(
            {**expected(groups, algorithm, iteration < published, damaged, iteration), "started": sum(map(len, groups))}
        )
    counted = journal.episodes()
    assert counted.pop("started") == total.total() and +Counter(counted) == total
    blocked = sum(group.count(BLOCKED) for groups in groups_by_iteration for group in groups)
    assert journal.abstentions().get("block", 0) == blocked
    assert sum(journal.abstentions().values()) == total["abstained"]
    before, updates = set(journal.events()), journal.updates()
    assert all(event.reason for event in before), "every event says why"
    journal.refresh(store)
    assert set(journal.events()) == before
    assert journal.updates() == updates == list(range(1, min(published, len(groups_by_iteration)) + 1))
    journal.close()


def run_of_two(store: RunStore, make_group: Callable[..., GroupRecord], algorithm: str = "grpo") -> Journal:
    """One published iteration, and one that is under way."""
    groups = [[0.0, 1.0, 1.0, None], [1.0, 1.0, 1.0, 1.0]]
    records = [make_group(f"i000000-g{number:04d}", scores) for number, scores in enumerate(groups)]
    for record in [*records, make_group("i000001-g0000", [0.0, 1.0])]:
        write_json(store.group_path(record.group_id), record)
    publish(store, 0, records, algorithm, set())
    return Journal(store.journal_path)


def edit(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


FAULTS = {
    "an episode dropped from a record": (
        "groups/i000000/i000000-g0000.json", lambda d: d["episodes"].pop(1), "i000000-g0000-s01-a0"
    ),
    "one without variance dropped from a record": (
        "groups/i000000/i000000-g0001.json", lambda d: d["episodes"].pop(3), "i000000-g0001-s03-a0"
    ),
    "an episode listed twice": (
        "groups/i000000/i000000-g0000.json", lambda d: d["episodes"].append(d["episodes"][3]), "i000000-g0000-s03-a0"
    ),
    "an episode of another group": (
        "groups/i000001/i000001-g0000.json",
        lambda d: d["episodes"][0].update(episode_id="i000000-g0000-s00-a0"),
        "i000000-g0000-s00-a0",
    ),
    "another group's record": (
        "groups/i000001/i000001-g0000.json", lambda d: d.update(group_id="i000001-g0007"), "i000001-g0007"
    ),
    "an episode dropped from a batch": (
        "batches/v000001.json",
        lambda d: d.update(rows=[row for row in d["rows"] if row["episode_id"] != "i000000-g0000-s02-a0"]),
        "i000000-g0000-s02-a0",
    ),
    "a row that is there twice": (
        "batches/v000001.json", lambda d: d["rows"].append(d["rows"][0]), "i000000-g0000-s00-a0"
    ),
    "an episode both trained on and left out": (
        "batches/v000001.json",
        lambda d: d["left_out"].update({"i000000-g0000-s00-a0": {"state": "stale", "reason": "old"}}),
        "i000000-g0000-s00-a0",
    ),
    "an abstention trained on": (
        "batches/v000001.json",
        lambda d: d["rows"].append({**d["rows"][0], "episode_id": "i000000-g0000-s03-a0"}),
        "i000000-g0000-s03-a0",
    ),
    "an episode that nobody played": (
        "batches/v000001.json",
        lambda d: d["rows"].append({**d["rows"][0], "episode_id": "i000000-g0009-s00-a0"}),
        "i000000-g0009-s00-a0",
    ),
    "a reason lost": (
        "batches/v000001.json", lambda d: d["left_out"].pop("i000000-g0001-s02-a0"), "i000000-g0001-s02-a0"
    ),
    "another version's batch": ("batches/v000001.json", lambda d: d.update(version=2), "version 2"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_ledger_refuses_files_that_disagree_and_names_the_episode(tmp_path, synthetic_group, fault):
    store = RunStore(tmp_path)
    journal = run_of_two(store, synthetic_group)
    journal.refresh(store)
    assert journal.episodes()["started"] == 10
    name, change, named = FAULTS[fault]
    edit(store.root / name, change)
    with pytest.raises(StorageError, match=named):
        journal.refresh(store)
    assert journal.episodes()["started"] == 0, "nothing half"
    journal.close()


def test_a_group_that_is_gone_is_missed(tmp_path, synthetic_group):
    store = RunStore(tmp_path)
    journal = run_of_two(store, synthetic_group)
    store.group_path("i000000-g0001").unlink()
    with pytest.raises(StorageError, match="version 1 was made of group i000000-g0001, which has no record"):
        journal.refresh(store)
    journal.close()


def test_states_of_a_small_run(tmp_path, synthetic_group):
    store = RunStore(tmp_path)
    journal = run_of_two(store, synthetic_group)
    journal.refresh(store)
    counted = {"started": 10, "consumed": 3, "zero_variance": 4, "abstained": 1, "in_flight": 2}
    assert journal.episodes() == dict.fromkeys(EpisodeState, 0) | counted
    assert journal.abstentions() == {"infrastructure": 1}
    (event,) = [event for event in journal.events() if event.state is EpisodeState.ABSTAINED]
    assert (event.episode_id, event.reason) == ("i000000-g0000-s03-a0", "the browser died")
    journal.close()


def test_a_ledger_of_another_run_is_replaced(tmp_path, synthetic_group):
    store = RunStore(tmp_path / "a")
    journal = run_of_two(store, synthetic_group)
    journal.accept([synthetic_group("i000009-g0000", [1, 1])])
    assert journal.episodes()["started"] == 2
    journal.refresh(store)
    assert journal.episodes()["started"] == 10
    with pytest.raises(Exception, match="closed"):
        journal.close()
        journal.episodes()
