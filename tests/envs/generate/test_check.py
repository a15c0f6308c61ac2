"""Every template's solution solves it, and nothing less does: played on the real applications,
without a browser."""

from __future__ import annotations

import pytest

from envs.bundled.generate import solution_of
from envs.bundled.generate.check import checker
from envs.bundled.generate.moves import Choose, Fill, Follow, Plan, Push, Say, Tick
from envs.types import RewardBundle, TaskError, WebTask

from .making import by_kind, something_else, world_seed


def described(task: WebTask, reward: RewardBundle) -> str:
    return f"{task.task_id}: {task.instruction} {[(part.name, part.value, part.evidence) for part in reward.parts]}"


async def test_solutions_solve() -> None:
    async with checker() as check:
        for tasks in by_kind().values():
            for task in tasks[:2]:
                reward = await check.solve(task)
                assert reward.score == 1.0 and reward.passed and reward.binary == 1.0, described(task, reward)
                assert all(part.value == 1.0 for part in reward.parts), "gates too"
                assert reward.rubric_hash == task.rubric_hash


async def test_doing_nothing_or_stopping_early_does_not() -> None:
    async with checker() as check:
        for tasks in by_kind().values():
            task = tasks[-1]
            plan = solution_of(task)
            reward = await check.play(task, ())
            assert reward.score == 0.0 and not reward.passed, described(task, reward)
            reward = await check.play(task, plan[:-1])
            assert reward.score is not None and reward.score < 1 and not reward.passed, described(task, reward)


async def test_whoever_also_does_something_else_gets_nothing() -> None:
    async with checker() as check:
        for tasks in by_kind().values():
            task = tasks[0]
            reward = await check.play(task, (*something_else(task), *solution_of(task)))
            assert reward.score == 0.0 and not reward.passed, described(task, reward)


async def test_the_solution_of_another_task_of_the_family_does_not() -> None:
    def last_words(plan: Plan) -> str:
        return plan[-1].text if isinstance(plan[-1], Say) else ""

    async with checker() as check:
        tried = 0
        for tasks in by_kind().values():
            task = tasks[0]
            for other in tasks[1:]:
                plan = solution_of(other)
                same_answer = last_words(plan) and last_words(plan) == last_words(solution_of(task))
                if world_seed(other) == world_seed(task) and not same_answer:
                    reward = await check.play(task, plan)
                    assert reward.score is not None and reward.score < 1 and not reward.passed, described(task, reward)
                    tried += 1
                    break
        assert tried > 0.7 * len(by_kind())


async def test_partial_work_gets_partial_credit() -> None:
    async with checker() as check:
        task = by_kind()["shop-basket-2"][0]
        plan = solution_of(task)
        half = plan[: 1 + next(at for at, move in enumerate(plan) if move == Push("Add to basket"))]
        reward = await check.play(task, half)
        assert reward.score == 0.5 and reward.binary == 0.0 and not reward.passed


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (Follow("Nothing"), "has no link 'Nothing'"),
        (Push("Buy it all"), "has no button 'Buy it all'; it has \\['Search'\\]"),
        (Fill("Colour", "red"), "has no text 'Colour'"),
        (Choose("Brand", "X"), "has no select 'Brand'"),
        (Tick("Gift wrapping"), "has no checkbox"),
    ],
)
async def test_a_move_that_cannot_be_made_says_so(move: object, message: str) -> None:
    async with checker() as check:
        with pytest.raises(TaskError, match=message):
            await check.play(by_kind()["shop-open"][0], (move,))  # type: ignore[arg-type]


async def test_tasks_of_other_sites_are_refused() -> None:
    async with checker() as check:
        task = by_kind()["shop-open"][0]
        for update in ({"site": "miniwob"}, {"rubric": None}):
            with pytest.raises(TaskError, match="is on"):
                await check.play(task.model_copy(update=update), ())
