"""The shipped recipes ``oscar`` and ``trac``, where they are built: their tasks, solved by plans in
a real browser, and not solved by doing nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path

import pytest

from envs.browser import BrowserPool
from envs.bundled import oscar_tasks, trac_tasks
from envs.bundled.generate.moves import Follow, Plan, Say
from envs.bundled.oracles import follow
from envs.env import open_env
from envs.sites import SharedSites, build_of, find_recipe
from envs.sites.recipes.check import check_site
from envs.tasks import load_tasks
from envs.types import Action, WebTask

TASKS = Path(__file__).resolve().parents[4] / "datasets" / "tasks"
SITES = {"oscar": oscar_tasks.oscar_tasks, "trac": trac_tasks.trac_tasks}
DATABASES = {"oscar": oscar_tasks.DATABASE, "trac": trac_tasks.DATABASE}
OURS = {"shop": "basket", "tracker": "comments", "directory": "contacts"}
CHANGED = {"oscar": "shop.sqlite:basket_line", "trac": "env/db/trac.db:ticket", **OURS}
"""State that the check of a site changes."""
AT_ONCE = 4
"""Episodes at one time, in one browser."""
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
    async with BrowserPool(max_sessions=AT_ONCE) as browsers:
        yield browsers


def twenty_tasks(site: str) -> list[tuple[WebTask, Plan]]:
    """The last task of each kind, then the one before it, and so on."""
    kinds = defaultdict(list)
    for task, plan in solved_tasks(site):
        kinds[task.kind].append((task, plan))
    turns = zip_longest(*(reversed(pairs) for pairs in kinds.values()))
    return list(islice((pair for turn in turns for pair in turn if pair is not None), 20))


async def play(pairs: Sequence[tuple[WebTask, Plan]], sites: SharedSites, pool: BrowserPool) -> dict[str, float | None]:
    """Rewards by task and plan."""
    places = asyncio.Semaphore(AT_ONCE)

    async def played(task: WebTask, plan: Plan) -> float | None:
        oracle, history = follow(plan), list[Action]()
        async with places, open_env(task, pool=pool, sites=sites, seed=0) as env:
            step = await env.reset()
            while not step.done:
                history.append(oracle(step.observation, history))
                step = await env.step(history[-1])
            return step.reward

    rewards = await asyncio.gather(*(played(*pair) for pair in pairs))
    return {f"{task.task_id} by {plan[-2:]}": reward for (task, plan), reward in zip(pairs, rewards, strict=True)}


@pytest.mark.parametrize("site", [*BUILT, *MISSING])
def test_the_task_file_is_that_of_the_built_site(site: str) -> None:
    stored = load_tasks(TASKS / f"{site}.jsonl")
    made = [task for task, _ in solved_tasks(site)]
    assert len(stored) >= 60 and [(each.task_id, each.instruction, each.rubric) for each in stored] == [
        (each.task_id, each.instruction, each.rubric) for each in made
    ]


@pytest.mark.parametrize("site", [*BUILT, *MISSING])
async def test_twenty_tasks_are_solved_by_their_plans(site: str, sites: SharedSites, pool: BrowserPool) -> None:
    pairs = twenty_tasks(site)
    rewards = await play(pairs, sites, pool)
    assert len(rewards) == 20 and {name for name, reward in rewards.items() if reward != 1} == set()
    facts = [fact for task, _ in pairs if task.rubric for group in task.rubric.fact_groups for fact in group.facts]
    assert {"server_sql", "dom_element_present", "text", "url", "answer"} == {fact.type for fact in facts}


@pytest.mark.parametrize("site", [*BUILT, *MISSING])
async def test_no_task_is_solved_by_nothing_or_another_s_plan(site: str, sites: SharedSites, pool: BrowserPool) -> None:
    pairs = twenty_tasks(site)
    kinds = len({task.kind for task, _ in pairs})
    alike = zip(pairs[:kinds], pairs[kinds:], strict=False)
    others = [
        (task, other) for (task, plan), (_, other) in alike if not isinstance(plan[-1], Say) or plan[-1] != other[-1]
    ]
    assert len(others) >= kinds - 2, "two tasks may have one answer"
    idle: list[tuple[WebTask, Plan]] = [(task, ()) for task, _ in pairs[:kinds]]
    rewards = await play([*others, *idle], sites, pool)
    assert {name for name, reward in rewards.items() if reward != 0} == set()


@pytest.mark.parametrize("site", [*BUILT, *MISSING])
async def test_a_changed_database_alone_does_not_pass(site: str, sites: SharedSites, pool: BrowserPool) -> None:
    """The right rows, and another page at the end."""
    changing = {"oscar": ("basket", "name"), "trac": ("edit",)}[site]
    pairs = [(task, plan) for task, plan in twenty_tasks(site)[:9] if task.kind.removeprefix(f"{site}-") in changing]
    away = {"oscar": Follow("Hazel and Oak"), "trac": Follow("WIKI")}[site]
    rewards = await play([(task, (*plan, away)) for task, plan in pairs], sites, pool)
    assert {name for name, reward in rewards.items() if reward != 0.5} == set()


@pytest.mark.parametrize("name", [*OURS, *BUILT, *MISSING])
async def test_two_episodes_are_alike(name: str, sites: SharedSites) -> None:
    seen = await check_site(await sites.started(name), find_recipe(name))
    assert seen.ok and CHANGED[name] in seen.changed, seen.differences
