"""What the egress proxy adds to a request and a page load, against direct ones, and what reading a
page's signals costs a step.

Both arms of the proxy take turns in one browser, on two contexts; the site is a process of its own.
CPU of the proxy is that of its thread. CPU of the signals is that of Chromium and of this process
(Playwright's driver, which an episode does not have, is left out).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from playwright.async_api import Browser, Page, async_playwright

from benchmarks import Figure
from envs.browser.process.chromium import find_chromium
from envs.egress import EGRESS_ARGS, AllowList, EgressProxy, Listener
from envs.signals import SignalReader

ROUNDS = 12
REQUESTS = 100
"""Of each round and arm, one after another."""
RESOURCES = 20
"""Scripts of the page that is loaded."""
READS = 300
LISTENERS = 200
FETCHES = """async ([url, count]) => { const start = performance.now();
  for (let i = 0; i < count; i++) await (await fetch(url, {cache: 'no-store'})).text();
  return (performance.now() - start) / count; }"""
DRAIN = """async url => { const reader = (await fetch(url)).body.getReader(); let length = 0, piece;
  while (!(piece = await reader.read()).done) length += piece.value.length; return length; }"""
LARGE_MB = 200
SERVER = """import asyncio, pathlib, sys
from envs.sites.static_server import StaticServer
async def serve():
    server = StaticServer(pathlib.Path(sys.argv[1]))
    await server.start()
    print(server.origin, flush=True)
    await asyncio.Event().wait()
asyncio.run(serve())"""


async def figures() -> list[Figure]:
    """Figures of the proxy and of the signals."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_site(folder)
        async with _site(folder) as origin, async_playwright() as playwright, EgressProxy() as proxy:
            args = [arg for arg in EGRESS_ARGS if not arg.startswith("--proxy-bypass-list")]
            browser = await playwright.chromium.launch(executable_path=find_chromium(), args=args)
            found = [*await _proxy(browser, proxy, origin), *await _signals(browser, origin)]
            await browser.close()
            return [*found, await _listeners(proxy)]


def _write_site(folder: Path) -> None:
    scripts = "".join(f"<script src=s{number}.js></script>" for number in range(RESOURCES))
    cards = "".join(f"<p>card {number} <button>choose</button></p>" for number in range(60))
    (folder / "index.html").write_text(f"<!DOCTYPE html><title>t</title>{cards}{scripts}")
    for number in range(RESOURCES):
        (folder / f"s{number}.js").write_text("window.x = 1;" * 100)
    (folder / "small.txt").write_text("x" * 1000)
    with (folder / "large.bin").open("wb") as file:
        file.truncate(LARGE_MB << 20)


@asynccontextmanager
async def _site(folder: Path) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(folder), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def _proxy(browser: Browser, proxy: EgressProxy, origin: str) -> list[Figure]:
    listener = await proxy.open(AllowList.of(origin))
    direct = await browser.new_page()
    context = await browser.new_context(proxy={"server": listener.address, "bypass": "<-loopback>"})
    through = await context.new_page()
    requests: dict[Page, list[float]] = {direct: [], through: []}
    loads: dict[Page, list[float]] = {direct: [], through: []}
    cpu = 0.0
    for _ in range(ROUNDS):
        for page in requests:
            loads[page].append(await _load(page, origin))
            before = await proxy.run(_thread_seconds())
            requests[page].append(await page.evaluate(FETCHES, [f"{origin}/small.txt", REQUESTS]))
            cpu += await proxy.run(_thread_seconds()) - before
    without = statistics.median(requests[direct])
    added = statistics.median(a - b for a, b in zip(requests[through], requests[direct], strict=True))
    load_with, load_without = (statistics.median(loads[page]) for page in (through, direct))
    grown = await _large(through, origin, listener)
    return [
        Figure("a request of 1 kB, direct", without, "ms", ""),
        Figure("added by the proxy", added, "ms", "<= 1"),
        Figure("CPU of the proxy, a request", 1000 * cpu / (ROUNDS * REQUESTS), "ms", "<= 1"),
        Figure(f"load with {RESOURCES} scripts, direct", load_without, "ms", ""),
        Figure("load through the proxy / direct", load_with / load_without, "ratio", ""),
        Figure(f"memory that {LARGE_MB} MiB through the proxy add", grown, "MiB", "<= 20"),
    ]


async def _load(page: Page, origin: str) -> float:
    """Milliseconds from navigation to load, everything asked for anew."""
    cdp = await page.context.new_cdp_session(page)
    await cdp.send("Network.setCacheDisabled", {"cacheDisabled": True})
    started = time.perf_counter()
    await page.goto(origin + "/")
    took = time.perf_counter() - started
    await cdp.detach()
    return 1000 * took


async def _large(page: Page, origin: str, listener: Listener) -> float:
    """MiB by which this process grows at most while a large body goes through."""
    process = psutil.Process()
    before, served = process.memory_info().rss, listener.requests
    work = asyncio.ensure_future(page.evaluate(DRAIN, f"{origin}/large.bin"))
    most = before
    while not work.done():
        most = max(most, process.memory_info().rss)
        await asyncio.sleep(0.005)
    assert await work == LARGE_MB << 20 and listener.requests == served + 1
    return (most - before) / (1 << 20)


async def _thread_seconds() -> float:
    return time.thread_time()


async def _signals(browser: Browser, origin: str) -> list[Figure]:
    page = await browser.new_page()
    cdp = await page.context.new_cdp_session(page)
    reader = await SignalReader.start(cdp)
    await page.goto(origin + "/")
    await reader.read(virtual=False)
    before, started = _cpu_seconds(), time.perf_counter()
    for _ in range(READS):
        await reader.read(virtual=False)
    took, cpu = time.perf_counter() - started, _cpu_seconds() - before
    return [
        Figure("reading a page's signals, CPU", 1000 * cpu / READS, "ms", "<= 3"),
        Figure("reading a page's signals, time", 1000 * took / READS, "ms", ""),
    ]


async def _listeners(proxy: EgressProxy) -> Figure:
    started = time.perf_counter()
    for _ in range(LISTENERS):
        listener = await proxy.open(AllowList())
        await listener.close()
    return Figure("opening and closing a listener", 1000 * (time.perf_counter() - started) / LISTENERS, "ms", "<= 5")


def _cpu_seconds() -> float:
    """User and system seconds of this process and of every Chromium below it."""
    own = psutil.Process()
    below = [process for process in own.children(recursive=True) if "node" not in process.name()]
    times = [process.cpu_times() for process in [own, *below]]
    return sum(each.user + each.system for each in times)
