"""The shop of the recipe ``oscar``, if it is built here: its tasks, solved by plans in a real
browser, and not solved by doing nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from envs.browser import BrowserPool
from envs.bundled.generate.moves import Plan
from envs.bundled.oracles import follow
from envs.bundled.oscar_tasks import SITE, oscar_tasks
from envs.env import open_env
from envs.sites import SharedSites, build_of, find_recipe
from envs.sites.recipes.check import check_site
from envs.sites.recipes.site import RecipeSite
from envs.tasks import load_tasks
from envs.types import Terminate, WebTask

FILE = Path(__file__).resolve().parents[4] / "datasets" / "tasks" / "oscar.jsonl"
BUILD = build_of(find_recipe(SITE))
pytestmark = pytest.mark.skipif(not BUILD.finished, reason="run python -m flows.sites build oscar")


@pytest.fixture(scope="module")
async def sites() -> AsyncIterator[SharedSites]:
    shared = SharedSites()
    try:
        yield shared
    finally:
        await shared.close()


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool() as browsers:
        yield browsers


def of_each_kind() -> list[tuple[WebTask, Plan]]:
    """The last task of each kind."""
    if not BUILD.finished:
        return []
    return list({task.kind: (task, plan) for task, plan in oscar_tasks(BUILD.state / "shop.sqlite")}.values())


def test_the_task_file_is_that_of_the_built_shop() -> None:
    stored = load_tasks(FILE)
    made = [task for task, _ in oscar_tasks(BUILD.state / "shop.sqlite")]
    assert len(stored) == 60 and [(each.task_id, each.instruction, each.rubric) for each in stored] == [
        (each.task_id, each.instruction, each.rubric) for each in made
    ]


@pytest.mark.parametrize(("task", "plan"), of_each_kind(), ids=lambda value: getattr(value, "kind", ""))
async def test_a_task_is_solved_by_its_plan_and_not_by_nothing(
    task: WebTask, plan: Plan, sites: SharedSites, pool: BrowserPool
) -> None:
    oracle, history = follow(plan), []
    async with open_env(task, pool=pool, sites=sites, seed=0) as env:
        step = await env.reset()
        assert (await env.step(Terminate())).reward == 0
        step = await env.reset()
        while not step.done:
            action = oracle(step.observation, history)
            history.append(action)
            step = await env.step(action)
        assert step.reward == 1, (history, env.trajectory.reward)


async def test_two_instances_of_the_shop_are_alike(sites: SharedSites) -> None:
    site = await sites.started(SITE)
    assert isinstance(site, RecipeSite)
    seen = await check_site(site)
    assert seen.ok and "shop.sqlite:basket_line" in seen.changed, seen.differences
