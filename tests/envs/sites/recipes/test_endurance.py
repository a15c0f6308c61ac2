"""Thousands of cycles of instances, and kills between any two steps, leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from envs.sites.recipes.build import build_site
from envs.sites.recipes.recipe import read_recipe
from envs.sites.recipes.site import RecipeSite
from envs.types import SiteError

from .making import Visitor, started, visited, write_recipe

CYCLES = int(os.environ.get("ROLLWRIGHT_CYCLES", "2000"))
"""Cycles with namespaces; a tenth of them without."""
AT_ONCE = 6
SEED = "of the seed,"
NAMESPACES = ("mnt", "net", "pid", "ipc", "uts")
STEPS = (
    "folder", "starting", "started", "launching", "launched", "asked", "written", "spawned", "reading", "dropping",
    "dropped",
)  # fmt: skip
"""Places in the life of a site at which something is killed."""
SEEDS = len(STEPS) - 1
ROOT = Path(__file__).resolve().parents[4]
Reached = Callable[[str], Awaitable[None]]

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The recipe, with a folder of temporary files that no other program uses."""
    monkeypatch.setenv("ROLLWRIGHT_SITE_BUILDS", str(tmp_path / "builds"))
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        yield write_recipe(tmp_path)


def all_processes() -> list[psutil.Process]:
    """The processes of this machine that serve a site of this test, wherever they are by now."""
    return [one for one in psutil.process_iter() if os.environ["ROLLWRIGHT_SITE_BUILDS"] in _read(one, "environ")]


def _read(process: psutil.Process, name: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process.pid}/{name}").read_text(errors="replace")
    return ""


def _space(process: psutil.Process, kind: str) -> str:
    return os.readlink(f"/proc/{process.pid}/ns/{kind}")


def _files(process: psutil.Process) -> int:
    """The number of open files, which is that of their names: psutil lists regular files alone."""
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def kept(site: RecipeSite | None = None) -> dict[str, Any]:
    """What there is of sites, as far as an instance could add to it and leave it behind."""
    processes, temporary = all_processes(), Path(tempfile.gettempdir())
    seen = dict[str, Any](
        processes=sorted(one.pid for one in processes),
        namespaces=sorted({_space(one, kind) for one in processes for kind in NAMESPACES}),
        mounts=[_read(one, "mounts") for one in processes if _space(one, "mnt") != _space(psutil.Process(), "mnt")],
        of_machine=[line for line in Path("/proc/mounts").read_text().splitlines() if str(temporary) in line],
        devices=[line for line in _output("losetup", "--all") if str(temporary) in line],
        files=sorted(str(path) for path in temporary.rglob("*")),
        sockets=sum(str(temporary) in line for line in Path("/proc/net/unix").read_text().splitlines()),
        ports=[sum(each.status == psutil.CONN_LISTEN for each in one.net_connections()) for one in processes],
        handles=[_files(one) for one in processes],
        ours=_files(psutil.Process()),
    )
    if site is not None:
        assert site._template is not None
        inside = psutil.Process(site._template.pid).children()[0]
        layers = Path(f"/proc/{inside.pid}/root{site._template.folder}")
        seen |= {"layers": sorted(str(path) for path in layers.glob("*/*")), "instances": site.instances}
        seen["groups"] = len(_output("btrfs", "qgroup", "show", str(layers / "layers")))
    return seen


def _output(*command: str) -> list[str]:
    if shutil.which(command[0]) is None:
        return []
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


async def expect_kept(wanted: dict[str, Any], site: RecipeSite | None = None) -> None:
    """Wait until there is what there was: what ends, ends by itself."""
    with suppress(TimeoutError):
        async with asyncio.timeout(90):
            while _seen(site) != wanted:
                await asyncio.sleep(0.1)
    assert kept(site) == wanted


def _seen(site: RecipeSite | None) -> dict[str, Any]:
    with suppress(psutil.Error, OSError):  # a process that ends meanwhile
        return kept(site)
    return {}


@pytest.mark.parametrize("isolate", [True, False])
async def test_cycles_leave_nothing_and_each_reset_is_exact(recipe: Path, isolate: bool) -> None:
    """Half of the cycles compare the whole state with the seed's while others write."""
    async with started(recipe, isolate=isolate) as site:
        assert site.report is not None
        if isolate and not site.report.isolated:
            pytest.skip(f"no namespaces here: {site.report.notices}")
        before, at_once = kept(site), asyncio.Semaphore(AT_ONCE)
        async with visited(site) as fresh:
            wanted = await site.hash_state(fresh.instance)
            await fresh.ask("/leave?value=mark")
            assert await site.hash_state(fresh.instance) != wanted, "a mark is seen"

        async def cycle(number: int, client: httpx.AsyncClient) -> None:
            async with at_once, visited(site) as one:
                ask = partial(client.get, headers=dict(site.server_of(one.instance).headers))
                if number % 2:
                    assert await site.hash_state(one.instance) == wanted
                assert (await ask("/look")).text == SEED
                assert (await ask(f"/leave?value=mark-{number}")).text == f"mark-{number}"
                if number % 50 == 0:
                    await ask("/spawn")
                    await ask("/listen")

        client = httpx.AsyncClient(base_url=site.origin, trust_env=False, timeout=60)
        async with client, asyncio.TaskGroup() as cycles:
            for number in range(CYCLES if isolate else CYCLES // 10):
                cycles.create_task(cycle(number, client))
        await expect_kept(before, site)


async def live(recipe: Path, reached: Reached) -> list[str]:
    """Lead a site's whole life, twice where a kill broke it; return what the kill broke."""
    read = read_recipe(recipe)
    build_site(read)
    site, broken = RecipeSite(read), list[str]()
    try:
        for _ in range(2):
            try:
                await _start(site, reached)
                await _use(site, reached)
                return broken
            except (SiteError, httpx.HTTPError, AssertionError) as error:
                broken.append(f"{type(error).__name__}: {error}")
        raise AssertionError(f"the next start does not work: {broken}")
    finally:
        await site.close()


async def _start(site: RecipeSite, reached: Reached) -> None:
    if site.report is None:
        starting = asyncio.create_task(site.start())
        while not starting.done() and not _children(_supervisors()):
            await asyncio.sleep(0)
        await reached("starting")
        await starting
        await reached("started")


async def _use(site: RecipeSite, reached: Reached) -> None:
    """Lead an instance's whole life."""
    launching = asyncio.create_task(site.launch())
    while not launching.done() and not _children(_children(_supervisors())):
        await asyncio.sleep(0)
    await reached("launching")
    one = Visitor(site, await launching)
    try:
        await reached("launched")
        assert await one.text("/look") == SEED
        await reached("asked")
        await one.ask("/leave?value=mark")
        await reached("written")
        await one.text("/spawn")
        await reached("spawned")
        await _meanwhile(site.hash_state(one.instance), reached("reading"))
    finally:
        await _meanwhile(site.drop(one.instance), reached("dropping"))
    await reached("dropped")


def _supervisors() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "site_guest" in _read(one, "cmdline")]


def _children(processes: list[psutil.Process]) -> list[psutil.Process]:
    children = list[psutil.Process]()
    for one in processes:
        with suppress(psutil.Error):  # it has ended meanwhile
            children += one.children()
    return children


async def _meanwhile(work: Coroutine[Any, Any, object], other: Awaitable[None]) -> None:
    """Begin some work, do the other, and wait for the work."""
    begun = asyncio.create_task(work)
    await asyncio.sleep(0)
    await other
    await begun


def below(worker: int) -> list[psutil.Process]:
    """The processes of a worker's template: supervisor, template, instances."""
    return [one for one in psutil.Process(worker).children(recursive=True) if one in all_processes()]


@pytest.mark.parametrize("victim", ["supervisor", "template", "instance"])
async def test_a_kill_between_any_two_steps_leaves_nothing(recipe: Path, victim: str) -> None:
    """Ten seeds, each of which kills at one of the steps, all steps in turn."""
    await live(recipe, _nothing)
    before, draw = kept(), random.Random(victim)
    places = STEPS[3:9] if victim == "instance" else STEPS[1:]
    for step in draw.sample([*places, *draw.choices(places, k=SEEDS - len(places))], SEEDS):
        killed = list[psutil.Process]()

        async def reached(place: str, step: str = step, killed: list[psutil.Process] = killed) -> None:
            if place == step and not killed:
                killed += _supervisors()
                for _ in range(("supervisor", "template", "instance").index(victim)):
                    killed[:] = _children(killed)
                for one in killed:
                    one.kill()

        broken = await live(recipe, reached)
        assert killed, step
        assert victim != "instance" or "template" not in str(broken), "others live on"
        await expect_kept(before)


async def _nothing(step: str) -> None:
    """Go on."""


@pytest.mark.parametrize("victim", ["worker", "machine"])
async def test_a_kill_of_a_worker_with_or_without_all_else_leaves_nothing(recipe: Path, victim: str) -> None:
    """On a machine that loses all processes at once, the next start removes what is left."""
    await live(recipe, _nothing)
    before = kept()
    for step in random.Random(victim).sample(STEPS, len(STEPS)):
        worker = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import work; work()", str(recipe)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        try:
            assert worker.stdin is not None and worker.stdout is not None
            while (line := worker.stdout.readline().strip()) != step:
                assert line in STEPS, f"{line} before {step}"
                worker.stdin.write("\n")
                worker.stdin.flush()
            everything = [psutil.Process(worker.pid), *below(worker.pid)] if victim == "machine" else []
            for one in everything:
                one.suspend()
            for one in everything or [psutil.Process(worker.pid)]:
                one.kill()
        finally:
            worker.kill()
            worker.communicate()
        if victim == "machine" or step == "folder":  # before there is a supervisor
            assert kept()["files"], "something is left for the next start"
            await live(recipe, _nothing)
        await expect_kept(before)


def work() -> None:
    """Lead a site's life in a process of its own, which stops at each step until it gets a line."""

    def stop(step: str) -> None:
        print(step, flush=True)
        sys.stdin.readline()

    async def reached(step: str) -> None:
        stop(step)

    def make(**values: Any) -> str:
        place = mkdtemp(**values)
        stop("folder")
        return place

    mkdtemp = tempfile.mkdtemp
    tempfile.mkdtemp = make
    asyncio.run(live(Path(sys.argv[1]), reached))
