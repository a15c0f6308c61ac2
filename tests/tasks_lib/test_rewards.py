"""The reward stage: what waits, how many are graded at once, deadlines, counters, and what fails
loudly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envs.chat import DamagedLedger, Ledger
from envs.episodes import part_sources
from envs.episodes.grading import JUDGED_WALL
from envs.rewards import Component, GradingEvidence, page_reward, read_rubric, score
from envs.rewards import rubric as grading
from envs.rewards.judge import Judge, Judgement
from envs.types import ConfigError, Cost, JudgeError, RewardPart, StopReason, Trajectory, WebTask
from tasks_lib.config import EvaluateConfig, RewardConfig, TrainConfig, resolve
from tasks_lib.worker.activity import ActivityClock
from tasks_lib.worker.reward_stage import RewardStage
from tests.envs.rewards.played import trajectory
from tests.envs.rewards_judge.fake_judge import FakeJudge, completion, config, fake_judge, jpeg, judged, says

RUBRIC = read_rubric(
    {
        "fact_groups": [
            {"name": "order", "facts": [{"id": "at", "type": "url", "url": "/orders/12"}]},
            {"name": "seen", "facts": [{"id": "red", "type": "judge", "description": "the lamp is red"}]},
        ]
    }
)
TASK = WebTask(task_id="shop/lamp", site="shop", kind="lamp", path="/", difficulty=1, horizon=10, seeds={})
RUBRIC_TASK = TASK.model_copy(update={"rubric": RUBRIC})
DONE: dict[str, float | bool | str] = {"done": True, "raw_reward": 1.0}


class Source:
    """Parts that take their time; counts how many episodes it looks at."""

    component = Component.FORMAT

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error = seconds, error
        self.busy = self.most_busy = 0

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            await asyncio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
        finally:
            self.busy -= 1
        return (RewardPart(name="slow", value=0.5, weight=1, evidence="seen", cost=Cost(tokens=7)),)


def make_stage(*sources: Any, judge: Judge | None = None, threads: Any = None, **settings: Any) -> RewardStage:
    return RewardStage(
        RewardConfig(**settings),
        ActivityClock(("reward",)),
        sources=list(sources),
        threads=threads,
        judge=judge,
        screenshot=lambda name: jpeg(9),
        keep=keep,
    )


KEPT: list[bytes] = []


def keep(data: bytes) -> str:
    """A store of blobs whose names are their places."""
    KEPT.append(data)
    return str(len(KEPT) - 1)


async def graded(stage: RewardStage, task: WebTask, *episodes: Trajectory) -> list[Trajectory]:
    return await asyncio.gather(*(stage.grade(task, each) for each in episodes))


async def test_with_the_defaults_a_page_is_graded_as_ever() -> None:
    (episode,) = await graded(make_stage(*part_sources()), TASK, trajectory(page_facts=DONE))
    assert episode.reward == score([page_reward(DONE, steps=3)])
    assert episode == trajectory(page_facts=DONE, reward=episode.reward)


async def test_so_many_at_once_and_the_rest_waits() -> None:
    source = Source(0.02)
    stage = make_stage(source, concurrency=2, format=1.0)
    done = await graded(stage, TASK, *[trajectory(page_facts=DONE)] * 6)
    assert [each.reward.score for each in done] == [0.75] * 6 and source.most_busy == 2
    counts = stage.counts.metrics()
    assert (counts["graded"], counts["abstained"], counts["waiting"], counts["tokens"]) == (6, 0, 0, 42)
    assert 4 <= counts["most_waiting"] <= 6 and counts["waiting_seconds"] > 0.1
    assert counts["seconds"]["format"] > 0.1 and set(counts["seconds"]) == {"format"}


async def test_an_episode_that_failed_for_anothers_fault_is_not_graded() -> None:
    broken = trajectory(error="gone", stop_reason=StopReason.CRASH, reward=score([], abstained="gone"))
    stage = make_stage(Source(error=AssertionError("asked")), format=1.0)
    assert await graded(stage, TASK, broken) == [broken] and stage.counts.graded == 0


async def test_past_its_deadline_it_abstains_and_what_was_known_is_kept() -> None:
    stage = make_stage(Source(30), deadline=0.05, format=1.0)
    (episode,) = await graded(stage, RUBRIC_TASK, trajectory())
    reward = episode.reward
    assert reward.abstained == "not graded within 0.05 s (rewards.deadline)" and reward.score is None
    assert [(part.name, part.value) for part in reward.parts] == [("order/at", 1.0), ("seen/red", None)]
    assert (stage.counts.abstained, stage.counts.timed_out) == (1, 1)


async def test_a_judge_that_hangs_is_given_up_with_its_episode() -> None:
    async def hang(fake: FakeJudge, request: Any) -> bytes:
        with suppress(asyncio.CancelledError):  # when the test ends
            await asyncio.sleep(30)
        return b""

    async with fake_judge(hang) as fake, Judge(config(fake.url, timeout=60, retries=0)) as judge:
        stage = make_stage(judge=judge, deadline=0.3)
        episode = await stage.grade(RUBRIC_TASK, trajectory())
        await asyncio.sleep(0.05)
        left = [task for task in asyncio.all_tasks() if "RubricJudge._hear" in repr(task.get_coro())]
        left = len(left)
    assert episode.reward.abstained == "not graded within 0.3 s (rewards.deadline)" and left == 0


async def test_what_was_paid_before_the_deadline_is_told() -> None:
    async def hang(fake: FakeJudge, request: Any) -> bytes:
        with suppress(asyncio.CancelledError):  # when the test ends
            await asyncio.sleep(30)
        return b""

    async with fake_judge(judged(criterion_b=hang)) as fake, Judge(config(fake.url, timeout=60)) as judge:
        reward = (episode := (await make_stage(judge=judge, deadline=1.0).grade(RUBRIC_TASK, trajectory()))).reward
    assert reward.abstained == "not graded within 1 s (rewards.deadline)"
    assert [(part.name, part.value) for part in reward.parts] == [("order/at", 1.0), ("seen/red", None)]
    assert reward.parts[1].evidence.endswith(reward.abstained) and reward.cost.tokens == 3 * 110
    asked = Judgement.model_validate_json(KEPT[int(episode.judgement)])
    assert asked.state == "abstained" and asked.reason == reward.abstained
    assert [(call.purpose, call.error) for call in asked.calls][-1] == ("criterion_b", "cancelled")
    assert len(asked.calls) == 4, "blocking, two of the three screenshots, and the one that hung"


async def test_waiting_for_the_judge_is_no_part_of_the_deadline() -> None:
    async def slow(fake: FakeJudge, request: Any) -> bytes:
        await asyncio.sleep(0.2)
        return says("SUCCESS")

    limits: dict[str, Any] = {"concurrency": 1, "style": "webvoyager"}  # one call an episode, one episode at once
    async with fake_judge(slow) as fake, Judge(config(fake.url, **limits)) as judge:
        stage = make_stage(judge=judge, concurrency=4, deadline=1.0)
        judged_ones = asyncio.gather(*(stage.grade(RUBRIC_TASK, trajectory()) for _ in range(8)))
        await asyncio.sleep(0.05)
        # Eight wait for the judge, one of them before it: an episode that needs no judge goes by.
        beside = await stage.grade(TASK, trajectory(page_facts=DONE))
        assert stage.counts.graded == 1
        episodes = await judged_ones
    assert [each.reward.abstained for each in episodes] == [None] * 8 and stage.counts.timed_out == 0
    assert beside.reward.score == 1.0 and stage.counts.waiting_seconds > 8 * 0.2


async def test_what_nobody_foresaw_ends_the_run_and_what_was_foreseen_does_not() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await graded(make_stage(Source(error=ZeroDivisionError("oops")), format=1.0), TASK, trajectory())
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
    stage = make_stage(Source(error=JudgeError("no reference")), format=1.0)
    (episode,) = await graded(stage, TASK, trajectory(page_facts=DONE))
    assert episode.reward.score == 1.0 and episode.reward.parts[1].evidence == "no reference"
    with pytest.raises(ExceptionGroup) as caught:
        await graded(make_stage(Source(error=TimeoutError("of another")), format=1.0), TASK, trajectory())
    assert isinstance(caught.value.exceptions[0], TimeoutError), "a time-out of somebody else is none of the stage"


async def test_an_episode_is_not_given_up_because_a_ledger_was_damaged(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spent")

    async with fake_judge(judged()) as fake, Judge(config(fake.url, budget_requests=100), ledger) as judge:
        stage = make_stage(judge=judge)
        first = await stage.grade(RUBRIC_TASK, trajectory())
        ledger.path.write_text("[]")
        asked = len(fake.requests)
        with pytest.raises(DamagedLedger, match=f"{ledger.path}: this is no ledger .* delete the file"):
            await stage.grade(RUBRIC_TASK, trajectory())
        assert len(fake.requests) == asked and stage.counts.graded == 1
        ledger.start_path.write_text('{"requests": 99, "tokens": 0}')
        ledger.path.unlink()
        first, last = [first, await stage.grade(RUBRIC_TASK, trajectory())]
    assert first.reward.binary == 1.0 and last.reward.binary is None, "a budget that is used up is no damage"
    assert any("budget of 100 requests is used up" in part.evidence for part in last.reward.parts)


async def test_facts_are_checked_once_and_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    real = grading.check

    def check(fact: Any, pages: Any) -> Any:
        checked.append(threading.current_thread().name)
        return real(fact, pages)

    monkeypatch.setattr(grading, "check", check)

    with ThreadPoolExecutor(1, "grade") as threads:
        async with fake_judge(judged()) as fake, Judge(config(fake.url)) as judge:
            stage = make_stage(judge=judge, threads=threads)
            episode = await stage.grade(RUBRIC_TASK, trajectory())
    assert stage.counts.seconds.keys() == {"program", "ask"}
    reward = episode.reward
    assert reward.passed and reward.cost.tokens > 0
    assert len(checked) == 2 and all(name.startswith("grade") for name in checked)


async def test_a_site_that_only_the_judge_saw_shut() -> None:
    async def main(task: WebTask, episode: Trajectory) -> Trajectory:
        async with fake_judge(judged(blocking=says("BLOCKED", "a captcha"))) as fake, Judge(config(fake.url)) as judge:
            return await make_stage(judge=judge).grade(task, episode)

    for answer in ({}, {"answer": "", "stop_reason": StopReason.HORIZON}):
        episode = await main(RUBRIC_TASK, trajectory(**answer))
        assert episode.wall == JUDGED_WALL and episode.reward.abstained == "blocked: a captcha"
        assert [part.value for part in episode.reward.parts] == [1.0, None]


@pytest.mark.parametrize("lost", [True, False])
async def test_an_abstaining_judgement_is_kept_and_paid_for(lost: bool) -> None:
    answer = judged(criterion_a=completion("I cannot tell") if lost else says("NOT SUCCESS", "it is blue"))
    prices = {"prompt_price": 3.0, "answer_price": 15.0}
    async with fake_judge(answer) as fake, Judge(config(fake.url, retries=1, **prices)) as judge:
        stage = make_stage(judge=judge)
        episode = await stage.grade(RUBRIC_TASK, trajectory())
        counts = stage.counts.metrics()
    asked = Judgement.model_validate_json(KEPT[int(episode.judgement)])
    assert asked.state == ("abstained" if lost else "failed")
    assert [check.purpose for check in asked.checks if check.holds is None] == (["criterion_a"] if lost else [])
    # blocking, two of three screenshots and the fact; a fact that is lost is asked for twice
    requests = 3 + (2 if lost else 1) + 1
    assert asked.requests == requests and asked.tokens == 110 * requests
    part = next(part for part in episode.reward.parts if part.name == "seen/red")
    assert part.value == (None if lost else 0.0) and part.cost.tokens == counts["tokens"] == 110 * requests
    assert part.cost.dollars == pytest.approx(requests * (100 * 3 + 10 * 15) / 1e6)
    assert counts["dollars"] == pytest.approx(part.cost.dollars)


async def test_a_changed_rubric_is_refused() -> None:
    task = RUBRIC_TASK.model_copy(update={"rubric_hash": "f" * 64})
    with pytest.raises(JudgeError, match="f" * 64):
        await graded(make_stage(), task, trajectory())


def test_performance_needs_signals() -> None:
    for model in (TrainConfig, EvaluateConfig):
        with pytest.raises(ConfigError, match=r"rewards\.performance: 0\.1 needs rollout\.signals=true"):
            resolve(model, {"rewards": {"performance": 0.1}})
        assert (
            resolve(model, {"rewards": {"performance": 0.1}, "rollout": {"signals": True}}).rewards.performance == 0.1
        )
    with pytest.raises(ConfigError, match=r"rewards\.length: .*<= 1"):
        resolve(TrainConfig, {"rewards": {"length": 2}})
    assert RewardConfig().weights() == {
        component: float(component in (Component.TASK, Component.VISUAL, Component.SEMANTIC)) for component in Component
    }
