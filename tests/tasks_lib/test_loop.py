"""What the loop says when an iteration has nothing to learn from, and what its line tells of the
judge."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.chat import DamagedLedger, Ledger
from envs.types import StopReason, TrainingError
from tasks_lib.config import PROJECT, TrainConfig, resolve
from tasks_lib.loops.base import PhaseTimer, describe_no_progress
from tasks_lib.loops.run import open_run
from tasks_lib.loops.synchronous import SynchronousLoop
from tasks_lib.rollouts.sampling import phase_name
from tasks_lib.rollouts.shards import RolloutResult, describe_late_batches
from tasks_lib.worker.oversampling import NOT_NEEDED
from training.ledger.journal import read_group
from training.ledger.store import RunStore, write_json
from training.records.batches import TrainingBatch
from training.records.groups import EpisodeSummary, GroupRecord, StepShape


def record(*causes: str | None) -> GroupRecord:
    """A group whose episodes abstained with these causes; ``None``: it failed."""
    episodes = tuple(
        EpisodeSummary(
            episode_id=f"i000004-g0000-s{sample:02d}-a0",
            seed=1,
            sample=sample,
            score=None if cause else 0.0,
            passed=False,
            steps=1,
            response_tokens=1,
            stop_reason=StopReason.ABANDONED if cause == NOT_NEEDED else StopReason.HORIZON,
            abstained=cause,
            shapes=(StepShape(1, 1, 0),),
            sha256="",
        )
        for sample, cause in enumerate(causes)
    )
    return GroupRecord(token="", group_id="i000004-g0000", task_id="t", kind="k", policy_version=4, episodes=episodes)


def test_failures_ask_for_another_policy() -> None:
    said = describe_no_progress(4, [record(None, None), record(None)])
    assert said.startswith("iteration 4: all 3 episodes failed") and "docs/warm-start.md" in said


def test_abstentions_are_counted_by_cause_apart_from_the_policy() -> None:
    said = describe_no_progress(4, [record("no judge", "crash"), record("no judge")])
    assert said.startswith("iteration 4: 3 of 3 episodes abstained (commonest cause, 2 times: no judge)")
    assert "failed" not in said and "warm-start" not in said


def test_what_was_not_needed_is_no_fault() -> None:
    said = describe_no_progress(4, [record(None, None, NOT_NEEDED), record(None, NOT_NEEDED)])
    assert said.startswith("iteration 4: all 3 episodes failed") and "abstained" not in said


def test_both_are_told_apart() -> None:
    said = describe_no_progress(4, [record("no judge", None), record(None)])
    assert "1 of 3 episodes abstained (commonest cause, 1 times: no judge)" in said
    assert "the other 2 failed" in said and "docs/warm-start.md" in said


def test_a_run_that_ended_without_rewards_draws_other_tasks_next(tmp_path: Path) -> None:
    store, played, abstain = RunStore(tmp_path), list[str](), True
    config: TrainConfig = resolve(TrainConfig, {"rollout": {"groups_per_iteration": 2}})

    def play(groups: list[str], *, version: int, workers: int) -> RolloutResult:
        for group_id in groups:
            if not store.group_path(group_id).exists():
                played.append(group_id)
                found = record("no judge", "no judge") if abstain else record(None, None)
                passed = found.episodes[0].model_copy(update={} if abstain else {"score": 1.0, "passed": True})
                update = {"group_id": group_id, "episodes": (passed, *found.episodes[1:])}
                write_json(store.group_path(group_id), found.model_copy(update=update))
        return RolloutResult([read_group(store, group_id) for group_id in groups], {})

    def start() -> TrainingBatch:
        run: Any = SimpleNamespace(
            config=config,
            store=store,
            metrics=SimpleNamespace(lines=lambda model: [], wall=0.0),
            records=lambda names: [read_group(store, name) for name in names],
            sampler=SimpleNamespace(
                groups=lambda iteration, draw: [f"{phase_name(iteration, draw)}-g{number:04d}" for number in range(2)]
            ),
            rollouts=SimpleNamespace(run=play),
            journal=SimpleNamespace(accept=lambda records: None, updates=lambda: []),
        )
        _, batch = SynchronousLoop(run, trainer=None, workers=1, progress=None)._roll_out(4, PhaseTimer())  # type: ignore[arg-type]
        return batch

    for draws in (2, 4):
        with pytest.raises(
            TrainingError, match=r"episodes abstained .* remove the cause, and start the same command again"
        ):
            start()
        assert len(played) == draws * 2
    abstain = False
    assert start().rows and played[8:] == ["i000004-r4-g0000", "i000004-r4-g0001"]
    assert start().rows and len(played) == 10, "what is there is read"
    for group_id in played:
        store.group_path(group_id).unlink()
    played.clear()
    write_json(store.group_path("i000004-g0000"), record("no judge").model_copy(update={"group_id": "i000004-g0000"}))
    abstain = True
    with pytest.raises(TrainingError):
        start()
    assert len(played) == 3, "a process that was killed had not drawn for the last time"


def test_generation_batches_closed_by_a_deadline_are_counted() -> None:
    """The run says when, and by what, it is not exactly repeatable; when none was late it says
    nothing."""
    shards = [{"batches": {"batches": 30, "turns": 90, "late_batches": late, "seconds": 1.5}} for late in (0, 2)]
    batches = RolloutResult([], {}, pipelines=[*shards, {"encode": {}}]).batches
    assert batches == {"batches": 60, "turns": 180, "late_batches": 2, "seconds": 3.0}
    assert describe_late_batches(batches, 2.0).startswith("2 of 60 generation batches closed without")
    assert "rollout.batch_deadline (2 s)" in describe_late_batches(batches, 2.0)
    assert describe_late_batches({**batches, "late_batches": 0}, 2.0) == "" == describe_late_batches({}, 2.0), (
        "older results do not say"
    )


def test_the_line_of_an_iteration_tells_what_the_judge_may_still_spend(tmp_path: Path) -> None:
    manifest = {"seconds": {"save_state": 0.0, "save_policy": 0.0}, "waited_seconds": 0.0, "metrics": {}}

    def line(**rollout: Any) -> dict[str, Any]:
        config: TrainConfig = resolve(TrainConfig, {"rollout": rollout})
        run: Any = SimpleNamespace(
            config=config,
            store=RunStore(tmp_path),
            metrics=SimpleNamespace(lines=lambda model: [], wall=0.0),
            journal=SimpleNamespace(updates=lambda: []),
        )
        loop = SynchronousLoop(run, trainer=None, workers=1, progress=None)  # type: ignore[arg-type]
        return loop._timings(RolloutResult([], {}), manifest, PhaseTimer())

    assert "judge" not in line()
    Ledger(RunStore(tmp_path).spent_path()).pay(300)
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}, "budget_tokens": 1000}
    assert line(judge=judge)["judge"] == {
        "requests": {"spent": 0, "left": None},
        "tokens": {"spent": 300, "left": 700},
    }
    RunStore(tmp_path).spent_path().write_text("[300]")
    with pytest.raises(
        DamagedLedger, match=r"judge_spent\.sqlite: this is no ledger of what was spent .*delete the file"
    ):
        line(judge=judge)


def test_nothing_is_estimated_before_an_episode_was_measured_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first evaluation also loads models and pages: "about 3 s" took 21 to 29 s."""
    said: list[str] = []

    class Said:
        def log(self, line: str) -> None:
            said.append(line)

    def evaluated(_rollouts: object, version: int, *_: object, **more: object) -> dict[str, Any]:
        return {"version": version, "mean": 0.5, "low": 0.4, "high": 0.6, "n": 30, "by_kind": {}, "seconds": 60.0}

    monkeypatch.setattr("tasks_lib.loops.base.evaluate_version", evaluated)
    values = {"preset": "quickstart", "root": str(tmp_path), "run_id": "r", "evaluation": {"episodes": 30}}
    with open_run(resolve(TrainConfig, values)) as run:
        run.store.publish_policy(0, PROJECT / "datasets/policies/reader", {"parent": None, "source": "reader"})
        loop = SynchronousLoop(run, trainer=None, workers=1, progress=Said())  # type: ignore[arg-type]
        loop.announce_remaining_work()
        loop.evaluate()
        loop.evaluate()
        loop.announce_remaining_work()
    assert "about" not in said[0] and "about" not in said[1], "nothing is known yet"
    assert [line for line in said if "about 60 s" in line] == [
        "evaluating version 0 on 30 held-out episodes, about 60 s …"
    ]
    assert said[-1].endswith(" min at the pace of the last evaluation")


@pytest.mark.parametrize(
    ("version", "iterations", "begun", "finished", "due"),
    [
        (0, 9, False, False, True),
        (4, 9, False, False, True),
        (3, 9, False, False, False),
        (3, 9, True, False, True),  # it was the last version when its evaluation was begun
        (3, 9, True, True, False),
        (9, 9, False, False, True),
    ],
)
def test_a_version_is_evaluated_only_where_that_is_due(
    tmp_path: Path, version: int, iterations: int, begun: bool, finished: bool, due: bool
) -> None:
    store = RunStore(tmp_path)
    if begun:
        write_json(store.group_path(f"e{version:06d}-g0000"), {})
    if finished:
        write_json(store.evaluation_path(version), {})
    config = resolve(TrainConfig, {"iterations": iterations, "evaluation": {"every": 4}})
    run: Any = SimpleNamespace(
        config=config,
        store=store,
        version=version,
        metrics=SimpleNamespace(lines=lambda model: [], wall=0.0),
        journal=SimpleNamespace(updates=lambda: []),
    )
    loop = SynchronousLoop(run, trainer=None, workers=1, progress=None)  # type: ignore[arg-type]
    assert loop.evaluation_due is due


def test_a_run_ends_after_three_iterations_without_a_success(tmp_path: Path) -> None:
    lines: list[str] = []
    run: Any = SimpleNamespace(
        config=resolve(TrainConfig, {}),
        store=RunStore(tmp_path),
        metrics=SimpleNamespace(lines=lambda model: [], wall=0.0),
        journal=SimpleNamespace(updates=lambda: []),
    )
    progress: Any = SimpleNamespace(log=lines.append)
    loop = SynchronousLoop(run, trainer=None, workers=1, progress=progress)  # type: ignore[arg-type]
    failed, empty = [record(None, None)], SimpleNamespace(rows=())
    for iteration in (0, 1):
        loop._check_success(iteration, empty, failed)
    loop._check_success(2, SimpleNamespace(rows=(1,)), failed)  # something was learned
    for iteration in (3, 4):
        loop._check_success(iteration, empty, failed)
    assert len(lines) == 4 and all("is published unchanged" in line for line in lines)
    with pytest.raises(TrainingError, match="iteration 5: all 2 episodes failed"):
        loop._check_success(5, empty, failed)
    with pytest.raises(TrainingError, match="iteration 6: 2 of 2 episodes abstained"):
        loop._check_success(6, empty, [record("no judge", "no judge")])
