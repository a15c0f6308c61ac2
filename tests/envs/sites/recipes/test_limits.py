"""Limits of an instance: what a hostile application takes ends its own episode and no other."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from envs.browser import BrowserPool
from envs.env import open_env
from envs.sites.recipes.site import RecipeSite
from envs.types import Goto, StopReason

from .making import CANARY, Visitor, started, visited, write_recipe
from .test_instances import TASK

HEADER = "rollwright-problem"
LIMITS = {
    "free_memory_mb": 64,
    "disk_mb": 256,
    "memory_mb": 192,
    "processes": 12,
    "open_files": 64,
    "written_mb": 12,
}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RecipeSite]:
    place = tmp_path_factory.mktemp("limits")
    start = {
        "application": "hostile:application",
        "after_fork": "hostile:forked",
        "environment": {"HOST_FOLDER": str(place)},
    }
    build = {"code": str(CANARY), "seed": ["python", "-m", "canary"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWRIGHT_SITE_BUILDS", str(place / "builds"))
        recipe = write_recipe(place, "hostile", build=build, start=start, limits=LIMITS)
        async with started(recipe) as made:
            assert made.report is not None
            if not (made.report.own_users and made.report.storage == "btrfs"):
                pytest.skip(f"no limits here: {made.report.notices}")
            yield made


def users(site: RecipeSite, visitor: Visitor) -> set[int]:
    """Users of all processes below a site's template, without the template's."""
    below = psutil.Process(visitor.instance.template.pid).children(recursive=True)
    return {process.uids().real for process in below} - {0}


def loop_devices(folder: Path) -> list[str]:
    """The loop devices on files of a template; other tests have theirs meanwhile."""
    lines = subprocess.run(["losetup", "--all"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if str(folder) in line]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/fork", "processes"),
        ("/eat", "memory_mb"),
        ("/fill", "written_mb"),
        ("/fill-temporary", "written_mb"),
        ("/enlarge", "written_mb"),
        ("/open", "open_files"),
    ],
)
async def test_what_is_taken_fails_one_episode_alone(site: RecipeSite, path: str, key: str) -> None:
    async with visited(site) as neighbour:
        wanted = await site.hash_state(neighbour.instance)
        folder = neighbour.instance.template.folder
        before = sorted(one.name for one in folder.iterdir())
        loops = loop_devices(folder)
        own = users(site, neighbour)
        assert len(own) == 1
        async with visited(site) as hostile:
            answer = await hostile.ask(path)
            assert answer.status_code >= 500 and f"reached limits.{key} of the recipe" in answer.headers[HEADER]
            assert len(users(site, hostile)) == 2
            below = psutil.Process(hostile.instance.template.pid).children(recursive=True)
            assert len(below) <= 2 + LIMITS["processes"]
            ready = await neighbour.ask("/")
            assert ready.status_code == 200 and HEADER not in ready.headers
            assert await site.hash_state(neighbour.instance) == wanted
            async with visited(site) as third:
                assert (await third.ask("/")).status_code == 200
        assert users(site, neighbour) == own, "all of its processes have ended"
        assert sorted(one.name for one in folder.iterdir()) == before
        assert loop_devices(folder) == loops
        assert await neighbour.text("/processes") == "<p>1</p>"


async def test_each_instance_is_a_user_that_may_change_its_state_alone(site: RecipeSite) -> None:
    async with visited(site) as one, visited(site) as two:
        texts = [await visitor.text("/who") for visitor in (one, two)]
        first, second = (text.removeprefix("<p>").split() for text in texts)
        assert first[0] != second[0] and "0" not in (first[0], second[0]) and first[1] == second[1]
        assert all(text.endswith("[]</p>") for text in texts), "it can write nothing of the host"


async def test_an_episode_ends_with_the_limit_as_its_error(site: RecipeSite) -> None:
    task = TASK.model_copy(update={"path": "/", "site": site.name})
    async with BrowserPool() as pool, open_env(task, pool=pool, site=site, seed=0) as env:
        await env.reset()
        step = await env.step(Goto(url=f"{site.origin}/eat"))
        assert step.done and env.trajectory.stop_reason == StopReason.HTTP_ERROR
        assert "reached limits.memory_mb of the recipe (MemoryError)" in str(env.trajectory.model_dump())
