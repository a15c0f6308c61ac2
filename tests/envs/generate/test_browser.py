"""Generated tasks in a real Chromium: solutions get 1, doing nothing does not pass, episodes do not
meet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from envs.actions.parsing import format_action
from envs.browser import BrowserPool, WebSession
from envs.bundled.generate import TEMPLATES, solution_of
from envs.bundled.generate.moves import Plan
from envs.bundled.oracles.generated import action_of
from envs.episodes import part_sources
from envs.rewards import GradingEvidence, grade_by_program, record_answers
from envs.sites import Site, make_site
from envs.types import Answer, Invalid, RewardBundle, StopReason, Trajectory, WebTask
from tasks_lib.config import RewardConfig, RolloutConfig
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tasks_lib.worker.reward_stage import RewardStage
from tests.turns import make_turn
from training.records.groups import GroupSpec

from .making import by_kind, something_else, world_seed

SESSIONS = 6
FEW = ("shop-order-gift", "tracker-whole", "tracker-show-3", "directory-city")
"""Between them every kind of move and most kinds of facts; the rest is in the slow test."""


async def play(session: WebSession, task: WebTask, plan: Plan) -> RewardBundle:
    """What a plan gets, graded from what the session shows and what the server said."""
    frame = await session.reset(task, world_seed(task))
    assert frame.observation.url.endswith(task.path), "the address is the site's own"
    for move in plan:
        action = action_of(move, frame.observation)
        assert not isinstance(action, Invalid), action
        frame = await session.step(action)
        assert frame.observation.error is None, frame.observation.error
    assert task.rubric is not None and session.server is not None
    answers = await record_answers(task.rubric, session.server)
    evidence = GradingEvidence(final=frame.observation, answer=frame.said, server=answers)
    return grade_by_program(task.rubric, evidence, expected_hash=task.rubric_hash)


async def prove(pool: BrowserPool, site: Site, task: WebTask) -> list[str]:
    """What is wrong with a task, in words."""
    found = []
    async with pool.lease(site) as session:
        solved = await play(session, task, solution_of(task))
        if not (solved.score == 1.0 and solved.passed):
            found.append(f"{task.task_id} {task.instruction}: {[(part.name, part.evidence) for part in solved.parts]}")
        idle = await play(session, task, ())
        if idle.score is None or idle.passed:
            found.append(f"{task.task_id} is passed by doing nothing")
    return found


async def prove_all(kinds: Sequence[str], each: int) -> list[str]:
    found = []
    for name in sorted({TEMPLATES[kind].site for kind in kinds}):
        site = make_site(name)
        await site.start()
        try:
            async with BrowserPool(max_sessions=SESSIONS, screenshots=False) as pool:
                tasks = [task for kind in kinds if TEMPLATES[kind].site == name for task in by_kind()[kind][:each]]
                found += await asyncio.gather(*(prove(pool, site, task) for task in tasks))
        finally:
            await site.close()
    return [problem for problems in found for problem in problems]


async def test_solutions_get_1_and_doing_nothing_does_not_pass() -> None:
    assert await prove_all(FEW, 1) == []


@pytest.mark.slow
@pytest.mark.long
async def test_a_task_of_every_template() -> None:
    assert await prove_all(sorted(TEMPLATES), 1) == []


async def test_episodes_side_by_side_do_not_meet() -> None:
    site = make_site("shop")
    await site.start()
    try:
        task = by_kind()["shop-basket-2"][0]
        async with (
            BrowserPool(screenshots=False) as pool,
            pool.lease(site) as one,
            pool.lease(site) as other,
            pool.lease(site) as third,
        ):
            rewards = await asyncio.gather(
                play(one, task, solution_of(task)),
                play(other, task, ()),
                play(third, task, (*something_else(task), *solution_of(task))),
            )
            assert [reward.score for reward in rewards] == [1.0, 0.0, 0.0]
            again = await play(one, task, ())
            assert again.score == 0.0, "a reset begins with the world as it was"
    finally:
        await site.close()


class Scripted:
    """Turns that write down the moves of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = list(plan)

    async def run(self, situation: Any) -> Any:
        observation = situation.frame.observation
        action = action_of(self.plan.pop(0), observation) if self.plan else Answer(text="done")
        return make_turn(situation, format_action(action))


async def run_episode(task: WebTask, plan: Plan) -> Trajectory:
    """One episode as rollouts play it, stored and read again."""

    @contextmanager
    def clock(doing: str) -> Iterator[None]:
        yield

    site = make_site(task.site)
    await site.start()
    try:
        async with BrowserPool(screenshots=False) as pool:
            runner = EpisodeRunner(
                pool=pool,
                sites={task.site: site},
                actor=SimpleNamespace(policy_version=0),  # type: ignore[arg-type]
                turns=Scripted(plan),  # type: ignore[arg-type]
                clock=clock,  # type: ignore[arg-type]
                rollout=RolloutConfig(attempts=1),
            )
            group = GroupSpec(group_id="i000000-g0000", task=task, seeds=(world_seed(task),))
            (ended,) = await runner.run(group, 0, SlotStatus())
    finally:
        await site.close()
    stage = RewardStage(RewardConfig(), clock, sources=part_sources(), screenshot=lambda name: b"")  # type: ignore[arg-type]
    trajectory = await stage.grade(task, ended)
    stored = Trajectory.model_validate_json(trajectory.model_dump_json())
    assert stored == trajectory
    return stored


async def test_a_stored_episode_is_graded_again_after_its_server_is_gone() -> None:
    task = by_kind()["shop-order-1"][0]
    stored = await run_episode(task, solution_of(task))
    assert stored.stop_reason is StopReason.ANSWER and stored.reward.score == 1.0 and stored.reward.passed
    assert task.rubric is not None
    again = grade_by_program(task.rubric, GradingEvidence.of(stored), expected_hash=task.rubric_hash)
    assert again == stored.reward
    assert any("/api/orders/" in part.evidence for part in again.parts)
    idle = await run_episode(task, ())
    assert idle.reward.score == 0.0 and idle.reward.abstained is None and not idle.reward.passed
