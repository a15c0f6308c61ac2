"""Launches, resets, forks, disk and memory of a site's instances: forks of a warm template against
a cold start of the same server, and against a container of it.

The site is the recipe ``oscar``, which has to be built. All arms have one interpreter, one state,
one page and one client; a launch is timed from the request to the first 200 of a page, the state
included. The arms take turns. Isolation is in the forked arm: mount, network, process and
IPC namespaces of its own.

The container's image is made of the same build; it needs an engine that runs, and `BASE`, an image
with Python 3.11. Without an engine this arm is left out.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import httpx
import psutil
import yaml

from benchmarks import Figure, site_rollouts
from envs.browser import BrowserPool
from envs.sites import RecipeSite, build_of, build_site, find_engine, find_recipe
from envs.sites.recipes.engine import BUILD_SECONDS, REPOSITORY
from envs.sites.recipes.instance import SiteInstance
from envs.sites.recipes.recipe import read_recipe
from envs.sites.recipes.template import SiteTemplate
from envs.tasks import load_tasks
from envs.types import Goto, SiteError, Split

PAGE = "/accounts/login/"
"""The page of log-ins, 15 to 30 ms to make; `/catalogue/` takes half a second in every arm."""
ROUNDS = 10
"""Of a forked and a cold launch each, in turns."""
MANY = 50
"""Instances at one time, for memory and disk."""
CROWD = 200
"""Instances at one time, each of which answers and keeps what was written to it."""
AT_ONCE = 2
"""Launches of the crowd at one time."""
DOCKERFILE = """ARG BASE
FROM ${BASE}
COPY env/lib/python3.11/site-packages /packages
COPY code /code
COPY state /state
ENV PYTHONPATH=/code:/packages SITE_STATE=/state PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
"""
WRITES = 20
"""Products put into the basket of each instance, for disk and memory after writes."""
FORKS, FORKED_WRITES = 20, 5
"""Forks of one instance, and products in its basket."""
WHOLE_FORKS = 7
"""Forks of one episode, with browsers."""
COLD = (
    "import sys; from wsgiref.simple_server import make_server, WSGIServer; from socketserver import ThreadingMixIn; "
    "S = type('S', (ThreadingMixIn, WSGIServer), {{'daemon_threads': True}}); from {module} import {name} as app; "
    "make_server('127.0.0.1', int(sys.argv[1]), app, S).serve_forever()"
)
PARTS = ("launches", "forks", "many", "crowd", "rollouts")


def run(parts: Sequence[str] = PARTS) -> list[Figure]:
    """Measure the figures of the parts."""
    seen = asyncio.run(figures(parts)) if set(parts) != {"rollouts"} else []
    return [*seen, *site_rollouts.figures()] if "rollouts" in parts else seen


async def figures(parts: Sequence[str]) -> list[Figure]:
    """Figures of one site, without those of rollouts."""
    recipe = find_recipe("oscar")
    build_of(recipe).require_finished()
    site = RecipeSite(recipe)
    await site.start()
    seen = list[Figure]()
    try:
        if "launches" in parts:
            with tempfile.TemporaryDirectory() as folder:
                async with _boxed(site, Path(folder)) as boxed:
                    seen += await _launches(site, boxed)
        if "forks" in parts:
            seen += [*await _forks(site), *await _whole_forks(site)]
        if "many" in parts:
            seen += await _many(site)
        if "crowd" in parts:
            seen += await _crowd(site)
    finally:
        await site.close()
    return seen


@asynccontextmanager
async def _boxed(site: RecipeSite, folder: Path) -> AsyncIterator[RecipeSite | None]:
    """The same application as a site of kind container; ``None`` where no engine runs."""
    try:
        engine = find_engine()
    except SiteError as error:
        print(f"no container is measured: {error}")
        yield None
        return
    build, base = build_of(site.recipe), os.environ.get("BASE", "python:3.11-slim-bookworm")
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text(DOCKERFILE)
    engine.run(
        *("build", "--build-arg", f"BASE={base}", "--file", str(dockerfile), "--iidfile", str(folder / "id")),
        *("--tag", f"{REPOSITORY}/benchmark", str(build.folder)),
        seconds=BUILD_SECONDS,
    )
    module, name = site.recipe.start.application.split(":")
    values = {
        "kind": "container",
        "start": {
            "image": (folder / "id").read_text(),
            "port": 8000,
            "command": ["python3", "-P", "-c", COLD.format(module=module, name=name), "{port}"],
            "environment": site.recipe.start.environment,
        },
        "ready": {"path": PAGE},
        "state": {"folders": ["/state"]},
    }
    file = folder / "boxed.yaml"
    file.write_text(yaml.safe_dump(values))
    recipe = read_recipe(file)
    build_site(recipe)
    boxed = RecipeSite(recipe)
    try:
        await boxed.start()
        yield boxed
    finally:
        await boxed.close()
        shutil.rmtree(build_of(recipe).folder)
        engine.remove_image(f"{REPOSITORY}/benchmark")


async def _launches(site: RecipeSite, boxed: RecipeSite | None) -> list[Figure]:
    forked, cold, resets, contained = list[float](), list[float](), list[float](), list[float]()
    await site.drop((await _forked(site))[0])  # the first one finds no page cached
    for _ in range(ROUNDS):
        instance, seconds, _ = await _forked(site)
        forked.append(seconds)
        cold.append(await _cold(site))
        begun = time.perf_counter()
        await site.drop(instance)
        after = await site.launch()
        resets.append(time.perf_counter() - begun)
        await site.drop(after)
        if boxed is not None:
            begun = time.perf_counter()
            container = await boxed.launch()  # ready is the first 200 of the page
            contained.append(time.perf_counter() - begun)
            await boxed.drop(container)
    ratios = [slow / fast for slow, fast in zip(cold, forked, strict=True)]
    return [
        Figure("launch to first page, cold / forked, median of rounds", statistics.median(ratios), "ratio", ">= 12"),
        Figure("launch to first page, forked, median", 1000 * statistics.median(forked), "ms", "<= 50"),
        Figure("launch to first page, forked, slowest", 1000 * max(forked), "ms", "<= 120"),
        Figure("launch to first page, cold, median", 1000 * statistics.median(cold), "ms", ""),
        Figure("reset: drop and launch until ready, median", 1000 * statistics.median(resets), "ms", "<= 20"),
        *_container_figures(contained, forked),
    ]


def _container_figures(contained: list[float], forked: list[float]) -> list[Figure]:
    if not contained:
        return []
    ratios = [slow / fast for slow, fast in zip(contained, forked, strict=True)]
    return [
        Figure(
            "launch to first page, container / forked, median of rounds", statistics.median(ratios), "ratio", ">= 15"
        ),
        Figure("launch to first page, container, median", 1000 * statistics.median(contained), "ms", ""),
    ]


async def _crowd(site: RecipeSite) -> list[Figure]:
    """Two hundred instances at once, each with one to three products in its basket.

    Their launches are timed by both protocols of WEBSERV: from the request, and from the answer to
    it, which its own headline counts from.
    """
    places, seconds, created = asyncio.Semaphore(AT_ONCE), list[float](), list[float]()

    async def launch() -> SiteInstance:
        async with places:
            instance, whole, page = await _forked(site)
            seconds.append(whole)
            created.append(page)
            return instance

    instances = await asyncio.gather(*(launch() for _ in range(CROWD)))
    writers = asyncio.Semaphore(2 * AT_ONCE)

    async def write(number: int) -> None:
        async with writers:
            await _write(site, instances[number], 1 + number % 3)

    await asyncio.gather(*(write(number) for number in range(CROWD)))
    wrong = [await _lines(site, instance) != 1 + number % 3 for number, instance in enumerate(instances)]
    await asyncio.gather(*(site.drop(instance) for instance in instances))
    asked = {50: "<= 50", 95: "<= 120"}
    return [
        Figure(f"{CROWD} instances with another basket than theirs", sum(wrong), "instances", "<= 0"),
        *_percentiles(f"launch to first page of {CROWD}, {AT_ONCE} at once", seconds, asked),
        *_percentiles(f"created to first page of {CROWD}, {AT_ONCE} at once", created, {}),
    ]


def _percentiles(name: str, seconds: list[float], asked: Mapping[int, str]) -> list[Figure]:
    ordered = sorted(seconds)
    return [
        Figure(f"{name}, p{share}", 1000 * ordered[len(ordered) * share // 100], "ms", asked.get(share, ""))
        for share in (50, 95, 99)
    ]


async def _forks(site: RecipeSite) -> list[Figure]:
    """Forks of an instance in the middle, without a browser, until the copy is ready."""
    instance, seconds, wrong = await site.launch(), list[float](), 0
    site.keep_answers(instance)
    await _write(site, instance, FORKED_WRITES)
    for _ in range(FORKS):
        begun = time.perf_counter()
        (fork,) = await site.fork(instance, 1)
        seconds.append(time.perf_counter() - begun)
        wrong += await _lines(site, fork) != FORKED_WRITES
        await site.drop(fork)
    await site.drop(instance)
    return [
        Figure(f"fork in the middle, server, median of {FORKS}", 1000 * statistics.median(seconds), "ms", "<= 80"),
        Figure("fork in the middle, server, slowest", 1000 * max(seconds), "ms", ""),
        Figure("forks with another basket than their episode's", wrong, "instances", "<= 0"),
    ]


async def _whole_forks(site: RecipeSite) -> list[Figure]:
    """Forks of an episode after three pages, with a browser context that has shown them too."""
    task, seconds = load_tasks("datasets/tasks/oscar.jsonl")[0], list[float]()
    async with BrowserPool(max_sessions=2) as pool, pool.lease(site) as session:
        await session.reset(task, task.seeds[Split.TRAIN].start, forkable=True)
        for page in (PAGE, "/basket/", PAGE):
            await session.step(Goto(url=f"{site.origin}{page}"))
        for _ in range(WHOLE_FORKS):
            begun = time.perf_counter()
            async with session.fork(1):
                seconds.append(time.perf_counter() - begun)
    return [Figure("fork after three actions, with its browser, median", 1000 * statistics.median(seconds), "ms", "")]


async def _many(site: RecipeSite) -> list[Figure]:
    """Fifty instances at once, each with its own basket."""
    begun = time.perf_counter()
    instances = await asyncio.gather(*(site.launch() for _ in range(MANY)))
    makespan = time.perf_counter() - begun
    before = _disk(instances[0])
    for number, instance in enumerate(instances):
        await _write(site, instance, WRITES - number % 2)
    wrong = 0
    for number, instance in enumerate(instances):
        wrong += await _lines(site, instance) != WRITES - number % 2
    memory = _unique_memory(instances[0])
    disk = (_disk(instances[0]) - before) / MANY
    await asyncio.gather(*(site.drop(instance) for instance in instances))
    return [
        Figure(f"{MANY} instances with another basket than theirs", wrong, "instances", "<= 0"),
        Figure(f"{MANY} instances launched and ready", makespan, "s", ""),
        Figure("unique memory of an instance after writes, median", memory, "MB", "<= 14"),
        Figure("disk of an instance after writes", disk, "MB", "<= 0.4"),
    ]


def _new_client() -> httpx.AsyncClient:
    """Return a client, made before a launch begins; reading certificates takes 20 ms."""
    return httpx.AsyncClient(trust_env=False, verify=False, timeout=60)


async def _forked(site: RecipeSite) -> tuple[SiteInstance, float, float]:
    """An instance, seconds of its launch and its first page, and of its first page alone."""
    async with _new_client() as client:
        begun = time.perf_counter()
        instance = await site.launch()
        created = time.perf_counter()
        answer = await client.get(f"{site.origin}{PAGE}", headers=dict(site.server_of(instance).headers))
        answer.raise_for_status()
        ended = time.perf_counter()
        return instance, ended - begun, ended - created


async def _cold(site: RecipeSite) -> float:
    """Seconds of a copied state, a started process and its first page."""
    build = build_of(site.recipe)
    module, name = site.recipe.start.application.split(":")
    async with _new_client() as client, AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        begun = time.perf_counter()
        state = Path(folder) / "state"
        subprocess.run(["cp", "-a", str(build.state), str(state)], check=True)
        with socket.create_server(("127.0.0.1", 0)) as asked:
            port = asked.getsockname()[1]
        server = subprocess.Popen(
            [build.python, "-P", "-c", COLD.format(module=module, name=name), str(port)],
            env={**build.environment(), "SITE_STATE": str(state)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while True:
                try:
                    (await client.get(f"http://127.0.0.1:{port}{PAGE}")).raise_for_status()
                    return time.perf_counter() - begun
                except httpx.ConnectError:
                    await asyncio.sleep(0.002)
        finally:
            server.kill()
            server.wait()


async def _write(site: RecipeSite, instance: SiteInstance, count: int) -> None:
    """Put products into the basket of an instance, one request each."""
    async with httpx.AsyncClient(base_url=site.origin, trust_env=False, timeout=60) as client:
        await client.get(f"/-/begin/{instance.token}?to=/accounts/login/", follow_redirects=True)
        for number in range(1, count + 1):
            token = client.cookies["csrftoken"]
            form = {"csrfmiddlewaretoken": token, "quantity": "1"}
            item = NUMBERS[number - 1]
            answer = await client.post(f"/basket/add/{item}/", data=form, headers={"referer": site.origin})
            assert answer.status_code == 302, answer.status_code


async def _lines(site: RecipeSite, instance: SiteInstance) -> int:
    """Number of lines in an instance's basket, by its own database."""
    with tempfile.TemporaryDirectory(dir=instance.template.folder) as folder:
        saved = Path(folder) / "shop.sqlite"
        await instance.template.ask("save", name=instance.name, file="shop.sqlite", to=str(saved))
        with closing(sqlite3.connect(saved)) as shop:
            return int(shop.execute("SELECT COUNT(*) FROM basket_line").fetchone()[0])


NUMBERS = (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23)
"""Ids of products that are in stock."""


def _unique_memory(instance: SiteInstance) -> float:
    assert isinstance(instance.template, SiteTemplate)
    supervisor = psutil.Process(instance.template.pid)
    (template,) = supervisor.children()
    unique = [child.memory_full_info().uss for child in template.children()]
    return statistics.median(unique) / 1e6


def _disk(instance: SiteInstance) -> float:
    """MB that the image of all states takes, by its file system."""
    assert isinstance(instance.template, SiteTemplate)
    (template,) = psutil.Process(instance.template.pid).children()
    place = instance.template.socket_of(instance.name).parent / "layers"
    folder = os.open(f"/proc/{template.pid}/root{place}", os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(folder)
        seen = os.fstatvfs(folder)
    finally:
        os.close(folder)
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize / 1e6
