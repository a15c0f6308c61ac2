"""What a run draws, iteration after iteration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from envs.types import StopReason
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.planning import evaluation_groups
from tasks_lib.run import TrainingRun, open_run
from training.groups import EpisodeSummary, GroupRecord, GroupSpec
from training.store import RunStore, write_json

QUICKSTART = {
    "i000000": "ac0ce20747825d5f",
    "i000001": "9d5ac9797c4f1d3d",
    "i000001-r1": "c9903282a1b2ff7f",
    "i000002": "88cbcffde0e9e0b2",
}
"""Draws of the quickstart before there were samplers to choose from (commit 01475eb)."""
QUICKSTART_EVALUATION = "cb063dba40698519"


def digest(groups: Sequence[GroupSpec]) -> str:
    """Of everything that a draw decides."""
    told = [[g.group_id, g.task.task_id, g.task.horizon, list(g.seeds), g.greedy] for g in groups]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def made_up(group: GroupSpec, number: int) -> GroupRecord:
    """What came of a group: scores and abstentions that differ from group to group."""
    episodes = []
    for sample in range(len(group.seeds)):
        lost = (number + sample) % 11 == 0
        score = None if lost else float((len(group.task.kind) * 7 + sample * number) % 5 < 2)
        episodes.append(
            EpisodeSummary(
                episode_id=group.episode_id(sample, 0),
                seed=group.seeds[sample],
                sample=sample,
                score=score,
                passed=bool(score),
                steps=1,
                response_tokens=1,
                stop_reason=StopReason.DONE,
                abstained="lost" if lost else None,
            )
        )
    return GroupRecord(
        group_id=group.group_id,
        task_id=group.task.task_id,
        kind=group.task.kind,
        policy_version=0,
        episodes=tuple(episodes),
    )


def play(run: TrainingRun, iteration: int, draw: int = 0) -> list[GroupSpec]:
    """Draw groups and commit what came of them."""
    groups = run.sample(iteration, draw)
    for number, group in enumerate(groups):
        write_json(run.store.group_path(group.group_id), made_up(group, number))
    return groups


def test_the_quickstart_draws_what_it_always_drew(tmp_path: Path) -> None:
    config: TrainConfig = resolve(TrainConfig, {"preset": "quickstart", "root": str(tmp_path)})
    with open_run(config) as run:
        drawn = [play(run, 0), play(run, 1), play(run, 1, 1), play(run, 2)]
        evaluated = evaluation_groups(run.tasks, phase="e000000", episodes=config.evaluation.episodes)
    assert {groups[0].group_id.rpartition("-")[0]: digest(groups) for groups in drawn} == QUICKSTART
    assert digest(evaluated) == QUICKSTART_EVALUATION
    assert RunStore(config.run_dir).tasks_path.exists()
