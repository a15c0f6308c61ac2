"""The shipped recipes ``oscar`` and ``trac``, where they are built: their tasks, solved by plans in
a real browser, and not solved by doing nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from envs.browser import BrowserPool
from envs.bundled import oscar_tasks, trac_tasks
from envs.bundled.generate.moves import Plan
from envs.bundled.oracles import follow
from envs.env import open_env
from envs.sites import SharedSites, build_of, find_recipe
from envs.sites.recipes.check import check_site
from envs.tasks import load_tasks
from envs.types import Terminate, WebTask

TASKS = Path(__file__).resolve().parents[4] / "datasets" / "tasks"
SITES = {"oscar": oscar_tasks.oscar_tasks, "trac": trac_tasks.trac_tasks}
DATABASES = {"oscar": oscar_tasks.DATABASE, "trac": trac_tasks.DATABASE}
OURS = {"shop": "basket", "tracker": "comments", "directory": "contacts"}
CHANGED = {"oscar": "shop.sqlite:basket_line", "trac": "env/db/trac.db:ticket", **OURS}
"""State that the check of a site changes."""
BUILT = [site for site in SITES if build_of(find_recipe(site)).finished]
MISSING = [
    pytest.param(site, marks=pytest.mark.skip(reason=f"run python -m flows.sites build {site}"))
    for site in SITES
    if site not in BUILT
]


def solved_tasks(site: str) -> list[tuple[WebTask, Plan]]:
    """The tasks of a built site, as its database gives them."""
    return list(SITES[site](build_of(find_recipe(site)).state / DATABASES[site]))


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
    """The last task of each kind of each built site."""
    return [pair for site in BUILT for pair in {task.kind: (task, plan) for task, plan in solved_tasks(site)}.values()]


@pytest.mark.parametrize("site", [*BUILT, *MISSING])
def test_the_task_file_is_that_of_the_built_site(site: str) -> None:
    stored = load_tasks(TASKS / f"{site}.jsonl")
    made = [task for task, _ in solved_tasks(site)]
    assert len(stored) >= 60 and [(each.task_id, each.instruction, each.rubric) for each in stored] == [
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


@pytest.mark.parametrize("name", [*OURS, *BUILT, *MISSING])
async def test_two_episodes_are_alike(name: str, sites: SharedSites) -> None:
    seen = await check_site(await sites.started(name), find_recipe(name))
    assert seen.ok and CHANGED[name] in seen.changed, seen.differences
