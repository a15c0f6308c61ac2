"""The ledger: counters add up, entering twice changes nothing, and the files alone give it back."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training.batches import build_batch
from training.config import AlgorithmConfig
from training.journal import Journal
from training.store import RunStore, write_json

scores = st.lists(st.sampled_from([None, 0.0, 1.0]), min_size=2, max_size=6)
iterations = st.lists(st.lists(scores, min_size=1, max_size=4), min_size=1, max_size=4)


def write_run(store, make_group, groups_by_iteration, published):
    """Files of a run whose first ``published`` iterations are trained; the same entered into a journal as a flow would."""
    journal = Journal(store.journal_path)
    for iteration, groups in enumerate(groups_by_iteration):
        # The odd ones belong to a second draw of the iteration.
        names = [f"i{iteration:06d}{'-r1' if n % 2 else ''}-g{n:04d}" for n in range(len(groups))]
        records = [make_group(name, scores) for name, scores in zip(names, groups, strict=True)]
        for record in records:
            write_json(store.group_path(record.group_id), record)
        journal.accept(records)
        journal.accept(records)
        if iteration < published:
            batch = build_batch(iteration + 1, [record.episodes for record in records], AlgorithmConfig())
            write_json(store.batch_path(iteration + 1), batch)
            write_json(store.policy_path(iteration + 1) / "manifest.json", {"version": iteration + 1})
            for _ in range(2):
                journal.record_update(batch, [record.group_id for record in records])
    return journal


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(iterations, st.integers(0, 4))
def test_counters_add_up_and_rebuild_gives_them_back(tmp_path_factory, synthetic_group, groups_by_iteration, published):
    store = RunStore(tmp_path_factory.mktemp("run"))
    journal = write_run(store, synthetic_group, groups_by_iteration, published)
    counters = journal.episodes()
    assert counters["started"] == sum(len(group) for groups in groups_by_iteration for group in groups)
    assert counters["abstained"] == sum(group.count(None) for groups in groups_by_iteration for group in groups)
    parts = ("consumed", "discarded", "abstained", "in_flight")
    assert all(counters[part] >= 0 for part in parts)
    assert sum(counters[part] for part in parts) == counters["started"]
    updates = journal.updates()
    journal.rebuild(store)
    assert journal.episodes() == counters
    assert journal.updates() == updates == list(range(1, min(published, len(groups_by_iteration)) + 1))
    journal.close()


def test_only_groups_that_taught_something_are_consumed(tmp_path, synthetic_group):
    store = RunStore(tmp_path)
    journal = write_run(store, synthetic_group, [[[0, 1, 1, None], [1, 1, 1, 1]], [[0, 1]]], published=1)
    assert journal.episodes() == {"started": 10, "consumed": 3, "discarded": 4, "abstained": 1, "in_flight": 2}


def test_a_ledger_of_another_run_is_replaced(tmp_path, synthetic_group):
    store = RunStore(tmp_path / "a")
    journal = write_run(store, synthetic_group, [[[0, 1]]], published=1)
    journal.accept([synthetic_group("i000009-g0000", [1, 1])])
    assert journal.episodes()["started"] == 4
    journal.rebuild(store)
    assert journal.episodes()["started"] == 2
    with pytest.raises(Exception, match="closed"):
        journal.close()
        journal.episodes()
