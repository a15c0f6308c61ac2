"""Containers as instances, with a small image that is made here: a static busybox and its httpd."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.sites.recipes.build import build_site, clean_builds
from envs.sites.recipes.check import check_site
from envs.sites.recipes.container import PROCESSES
from envs.sites.recipes.engine import ContainerEngine, find_engine
from envs.sites.recipes.recipe import read_recipe
from envs.sites.recipes.site import RecipeSite
from envs.types import SiteError

from .making import Visitor, visited
from .test_instances import TASK

pytestmark = pytest.mark.docker

BUSYBOX = shutil.which("busybox")
PROBE = "rollwright-probe"
FILES = 128
"""Files that a container may open; its default may be more than is allowed here."""
DOCKERFILE = """FROM scratch
COPY . /
ENTRYPOINT ["/bin/busybox"]
"""
PAGES = {
    "leave": 'echo "$QUERY_STRING" > /data/note; echo mark > /tmp/mark; cp /new.sqlite /data/shop.sqlite; echo left',
    "look": "cat /data/note /tmp/mark 2>&1",
    "root": "echo mark > /mark && echo written",
    "reach": "nc -w 1 ${QUERY_STRING%:*} ${QUERY_STRING#*:} < /dev/null && echo reached || echo alone",
    "route": "ip route",
    "drawn": "cat /proc/sys/kernel/random/uuid > /data/note; echo drawn",
    "shown": "echo $SHOWN; ulimit -n",
}
"""Shell scripts below ``/cgi-bin``."""
RECIPE: dict[str, Any] = {
    "kind": "container",
    "build": {"context": "context"},
    "start": {
        "port": 8099,
        "command": ["httpd", "-f", "-p", "{port}", "-h", "/www"],
        "environment": {"SHOWN": "by the recipe"},
    },
    "ready": {"path": "/cgi-bin/look"},
    "state": {"folders": ["/data"], "databases": {"": "/data/shop.sqlite"}, "ephemeral": ["data/*.log"]},
    "limits": {"free_memory_mb": 64, "memory_mb": 64, "open_files": FILES, "ahead": 1},
    "check": {"requests": [{"path": "/cgi-bin/leave?value"}, {"path": "/cgi-bin/look"}]},
}


def write_context(folder: Path) -> None:
    """Write the folder of the image: busybox, pages, two databases."""
    assert BUSYBOX is not None
    for name in ("bin", "www/cgi-bin", "data", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    shutil.copy(BUSYBOX, folder / "bin" / "busybox")
    for page, script in PAGES.items():
        text = f"#!/bin/busybox sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'\n{script}\n"
        (folder / "www" / "cgi-bin" / page).write_text(text)
        (folder / "www" / "cgi-bin" / page).chmod(0o755)
    for name, item in (("data/shop.sqlite", "of the seed"), ("new.sqlite", "tea")):
        with closing(sqlite3.connect(folder / name)) as shop, shop:
            shop.execute("CREATE TABLE orders (item TEXT)")
            shop.execute("INSERT INTO orders VALUES (?)", (item,))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ContainerEngine:
    """The engine of this machine, once it has run a container: some answer that cannot."""
    if BUSYBOX is None or subprocess.run(["ldd", BUSYBOX], capture_output=True).returncode == 0:
        pytest.skip("there is no static busybox (package busybox-static)")
    context, limits = tmp_path_factory.mktemp("probe"), (f"nofile={FILES}:{FILES}", f"nproc={PROCESSES}:{PROCESSES}")
    write_context(context)
    try:
        engine = find_engine()
        engine.run("build", "--tag", PROBE, str(context))
        try:
            engine.run("run", "--rm", "--network", "none", *(f"--ulimit={limit}" for limit in limits), PROBE, "true")
        finally:
            engine.remove_image(PROBE)
    except SiteError as error:
        pytest.skip(f"no container runs here: {error}")
    return engine


@pytest.fixture(scope="module")
def recipe(engine: ContainerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder, before = tmp_path_factory.mktemp("containers"), left_over(engine)
    write_context(folder / "context")
    path = folder / "boxes.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWRIGHT_SITE_BUILDS", str(folder / "builds"))
        built = build_site(read_recipe(path))
        image = built.image
        assert built.finished and engine.has_image(image)
        yield path
        assert built.folder in clean_builds([]) and not engine.has_image(image)
    assert left_over(engine) == before


@pytest.fixture(scope="module", params=["namespace", "port"])
async def site(recipe: Path, request: pytest.FixtureRequest) -> AsyncIterator[RecipeSite]:
    isolate = request.param == "namespace"
    if isolate and os.geteuid():
        pytest.skip("only root can enter the network namespace of a container")
    made = RecipeSite(read_recipe(recipe), isolate=isolate)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


def left_over(engine: ContainerEngine) -> set[str]:
    """All containers of recipes, and the volumes that no container uses."""
    containers = engine.run("ps", "--all", "--quiet", "--filter", "label=rollwright.owner").split()
    return {*containers, *engine.run("volume", "ls", "--quiet", "--filter", "dangling=true").split()}


async def test_a_container_is_an_episode_of_its_own(site: RecipeSite) -> None:
    check = await check_site(site, site.recipe)
    assert check.ok and check.changed == ["data/note", "data/shop.sqlite:orders"], check.differences
    async with visited(site) as one, visited(site) as two:
        await one.text("/cgi-bin/leave?mark")
        assert (await one.text("/cgi-bin/look")).split() == ["mark", "mark"]
        assert (await two.text("/cgi-bin/look")).count("No such file") == 2
        assert "written" not in await one.text("/cgi-bin/root"), "the image itself is read-only"
        assert (await two.text("/cgi-bin/shown")).split() == ["by", "the", "recipe", str(FILES)]


async def test_a_container_reaches_nothing_but_itself(site: RecipeSite) -> None:
    assert site.report is not None
    async with visited(site) as one:
        assert await one.text("/cgi-bin/reach?127.0.0.1:8099") == "reached\n"
        assert await one.text(f"/cgi-bin/reach?127.0.0.1:{site.origin.rpartition(':')[2]}") == "alone\n"
        route = await one.text("/cgi-bin/route")
        assert ("default" not in route) == site.report.isolated == (not site.report.notices)


async def test_grading_reads_a_database_in_a_container(site: RecipeSite) -> None:
    episode = await site.open_episode(TASK, 0)
    try:
        assert episode.state is not None
        assert await episode.state.sql("SELECT item FROM orders", "") == [("of the seed",)]
        await Visitor(site, episode.instance).text("/cgi-bin/leave?mark")
        assert await episode.state.sql("SELECT item FROM orders", "") == [("tea",)]
    finally:
        await episode.close()


async def test_a_container_that_fails_says_why(site: RecipeSite, engine: ContainerEngine) -> None:
    async with visited(site) as one:
        engine.run("kill", f"{one.instance.template.folder.name}-{one.instance.name}")
        assert (await one.ask("/cgi-bin/look")).status_code == 502
        assert "the server of this episode ended with status 137" in await site.failure_of(one.instance.token)


async def test_a_fork_of_a_container_is_asked_the_same_requests(site: RecipeSite) -> None:
    assert not site.fork_problem()
    async with visited(site) as one:
        site.keep_answers(one.instance)
        await one.text("/cgi-bin/leave?mark")
        here = await site.hash_state(one.instance)
        (fork,) = [Visitor(site, made) for made in await site.fork(one.instance, 1)]
        assert await site.hash_state(fork.instance) == here
        await site.go_on(fork.instance)
        assert await fork.text("/cgi-bin/look") == "mark\nmark\n", "/tmp is in memory"
        await fork.text("/cgi-bin/leave?other")
        assert (await fork.text("/cgi-bin/look")).startswith("other")
        assert (await one.text("/cgi-bin/look")).startswith("mark")
        await site.drop(fork.instance)
        await one.text("/cgi-bin/drawn")
        with pytest.raises(SiteError, match="cannot be forked: the same requests leave other content in data/note"):
            await site.fork(one.instance, 1)
        assert list(site._front.kept) == [one.instance.token]


WORKER = """
import asyncio, sys
from pathlib import Path
from envs.sites.recipes.recipe import read_recipe
from envs.sites.recipes.site import RecipeSite

async def main():
    site = RecipeSite(read_recipe(Path(sys.argv[1])))
    await site.start()
    await site.launch()
    print("launched", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_containers_of_a_killed_worker_are_removed_by_the_next(recipe: Path, engine: ContainerEngine) -> None:
    root, before = Path(__file__).resolve().parents[4], left_over(engine)
    path = recipe.with_name("alone.yaml")
    path.write_text(yaml.safe_dump({**RECIPE, "limits": {"free_memory_mb": 64}}))
    build_site(read_recipe(path))
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(path)], stdout=subprocess.PIPE, cwd=root)
    assert worker.stdout is not None and worker.stdout.readline() == b"launched\n"
    (container,) = left_over(engine) - before
    assert engine.remove_leftovers() == [], "it belongs to a process that lives"
    worker.kill()
    worker.wait()
    assert [one[:12] for one in engine.remove_leftovers()] == [container] and left_over(engine) == before


@pytest.mark.parametrize(
    ("command", "words"),
    [(["httpd", "-h", "/nowhere"], "/nowhere"), (["tail", "-c", "190m", "/dev/zero"], r"limits\.memory_mb")],
)
async def test_an_image_that_does_not_serve_says_why(recipe: Path, command: list[str], words: str) -> None:
    path = recipe.with_name("wrong.yaml")
    path.write_text(yaml.safe_dump({**RECIPE, "start": {**RECIPE["start"], "command": command}}))
    build_site(read_recipe(path))
    site = RecipeSite(read_recipe(path))
    try:
        await site.start()
        with pytest.raises(SiteError, match=f"ended before it was ready(?s:.*){words}"):
            await site.launch()
    finally:
        await site.close()
