"""Stored successes of other runs become demonstrations of a warm start."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.types import ConfigError, StorageError, TrainingError
from tasks_lib.warm_start.successes import check_runs, take_successes
from tests.builders import stored_blob
from tests.training.trainer.conftest import HandMadeRun, make_run
from training.config import AlgorithmConfig, PolicyConfig
from training.ledger.journal import read_group
from training.ledger.store import RunStore, write_json
from training.policy.renderer import Renderer
from training.records.batches import build_batch
from training.records.groups import EpisodeSummary, GroupRecord
from training.trainer.rows import read_rows

READER = Path(__file__).parents[2] / "datasets/policies/reader"
POLICY = PolicyConfig(template="qwen2_vl")


def played(folder: Path, scores: list[float]) -> HandMadeRun:
    """A run with one group; an episode has as many steps as its place says."""
    run = make_run(folder, READER)
    group_id = "i000000-g0000"
    episodes = []
    for sample, score in enumerate(scores):
        made = run.add_episode(f"{group_id}-s{sample:02d}-a0", sample + 1, score, seed=sample)
        episodes.append(EpisodeSummary.of(made.model_copy(update={"sample": sample})))
    record = GroupRecord(token="", group_id=group_id, task_id="t", kind="k", policy_version=0, episodes=tuple(episodes))
    write_json(run.store.group_path(group_id), record)
    return run


def test_successes_are_encoded_for_the_policy_that_is_warmed_up(tmp_path: Path) -> None:
    runs = [played(tmp_path / "a", [1.0, 0.0, 1.0]), played(tmp_path / "b", [0.0, 1.0])]
    warm = make_run(tmp_path / "warm", READER)
    folders = [run.store.root for run in runs]
    check_runs(folders)
    found = take_successes(warm.store, folders, POLICY, "i000000", 10)
    assert [len(record.episodes) for record in found.records] == [1, 1, 1]
    groups = [read_group(warm.store, group_id).episodes for group_id in sorted(warm.store.group_ids("i*"))]
    batch = build_batch(1, groups, AlgorithmConfig(name="filtered_bc"))
    rows = read_rows(warm.store, batch)
    assert len(rows) == 1 + 3 + 2

    first = runs[0].store.trajectory("i000000-g0000-s00-a0").steps[0]
    renderer = Renderer(READER, "qwen2_vl")
    text = renderer.tokenizer.decode(rows[0].prompt_ids)
    assert first.prompt in text and text.endswith("<|im_start|>assistant\n")
    assert renderer.decode(rows[0].response_ids) == renderer.decode(first.response_ids)
    assert rows[0].response_ids[-1] == renderer.tokenizer.eos_token_id and set(rows[0].behaviour) == {0.0}
    assert rows[0].screenshots == (runs[0].store.blob(first.screenshot),)
    again = take_successes(warm.store, folders, POLICY, "i000000", 10)
    assert again.records == found.records


def test_no_more_than_asked_and_at_least_one(tmp_path: Path) -> None:
    run, warm = played(tmp_path / "a", [1.0, 1.0, 1.0]), make_run(tmp_path / "warm", READER)
    assert len(take_successes(warm.store, [run.store.root], POLICY, "i000000", 2).records) == 2
    failed = played(tmp_path / "b", [0.0, 0.0])
    with pytest.raises(TrainingError, match=r"no training episode of .*b passed, so there is nothing to clone"):
        take_successes(warm.store, [failed.store.root], POLICY, "i000000", 2)
    with pytest.raises(ConfigError, match=r"episodes: .*warm-not holds no training episodes"):
        check_runs([tmp_path / "warm-not"])


def test_a_lost_picture_is_named(tmp_path: Path) -> None:
    run, warm = played(tmp_path / "a", [1.0]), make_run(tmp_path / "warm", READER)
    name = run.store.trajectory("i000000-g0000-s00-a0").steps[0].screenshot
    stored_blob(RunStore(run.store.root), name).unlink()
    with pytest.raises(StorageError, match=name[:12]):
        take_successes(warm.store, [run.store.root], POLICY, "i000000", 2)
