"""The observation: milliseconds and characters on a 50 kB page, against the accessibility tree;
recall and precision on the labelled page.

The accessibility tree is written as BrowserGym writes it: one line a node with its number, role,
name and properties, text that only repeats its parent's name left out, and nothing whose box is
outside of the viewport. Times are the best of many turns: what the work takes when nothing else has
the core.
"""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.async_api import Page, async_playwright

from benchmarks import Figure
from benchmarks.env.pages import PAGES, VIEWPORT, page_task, static_pages
from envs.browser import BrowserPool
from envs.browser.process.chromium import LAUNCH_ARGS, find_chromium
from envs.cdp import Cdp
from envs.cdp.client import CdpSession, connect_client
from envs.garbage import collect_seldom
from envs.observation import FULL, IdBook, Observer, Reading, compose
from envs.observation.dom import Dom
from envs.observation.observer import kept_element
from envs.observation.snapshot import capture, decode
from envs.settle import Look
from envs.sites.static_server import StaticServer

TURNS = 40
"""Observations of each measurement."""
PRODUCTS = 33
"""Of the shop's page, which then has 50 kB in the layout of a server's template: 1,800 nodes, 151
interactive elements."""

AT_REST = Look(now=0.0, changed=False, animating=False, ready="complete")
CONNECT_SECONDS = 5.0

CHANGE = """{
    const cards = document.querySelectorAll('article'), at = window.turn = (window.turn ?? 0) + 1
    const card = cards[at % 6], button = card.querySelector('button')
    button.replaceWith(Object.assign(button.cloneNode(), {textContent: `In the basket (${at})`}))
    card.classList.toggle('chosen')
    document.body.offsetHeight
}"""
"""A click in the shop, as the page answers it: a card has another button and another class, and the
page is laid out."""

IGNORED_PROPERTIES = frozenset({"editable", "readonly", "level", "settable", "multiline", "invalid", "focusable"})
FLAGS = frozenset({"required", "focused", "atomic"})
"""Properties that BrowserGym 0.14 leaves out, and those that it writes without a value."""


async def figures() -> list[Figure]:
    """Figures of the shop's page and of the labelled page."""
    return [*await _shop(), *await _labelled()]


async def _shop() -> list[Figure]:
    """In a session of a pool, as in a worker, which looks for garbage seldom."""
    thresholds = gc.get_threshold()
    collect_seldom()
    with TemporaryDirectory() as folder:
        (Path(folder) / "shop.html").write_text(shop_page(PRODUCTS), encoding="utf-8")
        async with (
            static_pages(Path(folder)) as site,
            BrowserPool(max_sessions=1, screenshots=False, inspect=_speed) as pool,
            pool.lease(site) as session,
        ):
            found: list[Figure] = (await session.reset(page_task("/shop.html"), 0)).inspected
    gc.set_threshold(*thresholds)
    return found


async def _labelled() -> list[Figure]:
    near, far = StaticServer(PAGES), StaticServer(PAGES)
    await near.start()
    await far.start()
    try:
        async with _browser() as (page, cdp):
            await page.goto(f"{near.origin}/labelled.html?far={far.origin.rsplit(':', 1)[1]}")
            await page.frame_locator("#far").locator("p").wait_for()
            return await _accuracy(cdp)
    finally:
        await near.close()
        await far.close()


async def _speed(cdp: Cdp) -> list[Figure]:
    """A step knows from settling what has the focus: here nothing.

    Before each look something of the page changes, as steps do it.
    """
    assert isinstance(cdp, CdpSession)
    observer = Observer(FULL)
    look = partial(observer.observe, cdp, viewport=VIEWPORT, instruction="", looked=AT_REST)
    whole = await _best(look, partial(cdp.send, "Runtime.evaluate", {"expression": CHANGE}))
    same = await _best(look)
    first = await _best(partial(_first_look, cdp), partial(_forget, cdp))
    snapshot = await _best(lambda: capture(cdp))
    raw = await capture(cdp)
    book = IdBook()
    best = float("inf")
    for _ in range(TURNS):
        started = time.perf_counter()
        reading = compose(decode(raw), focus=None, viewport=VIEWPORT, book=book)
        best = min(best, time.perf_counter() - started)
    tree, dom = await cdp.send("Accessibility.getFullAXTree"), decode(raw)
    length = len(reading.observation.text)
    bare = accessibility_text(tree, dom, addresses=False)
    return [
        Figure("whole observation of a 50 kB page", 1000 * whole, "ms", "<= 10"),
        Figure("of it, where nothing has changed: the snapshot", 1000 * snapshot, "ms", ""),
        Figure("of it, where nothing has changed: decode and compose", 1000 * best, "ms", ""),
        Figure("the same, of a page that is as it was", 1000 * same, "ms", ""),
        Figure("the same, of a page that was not seen before", 1000 * first, "ms", ""),
        Figure("characters of the text", length, "characters", ""),
        Figure("text / visible accessibility tree", length / len(accessibility_text(tree, dom)), "ratio", "<= 0.25"),
        Figure("text / the same tree without addresses", length / len(bare), "ratio", ""),
    ]


async def _forget(cdp: CdpSession) -> None:
    """Nothing of the page is known: no element, and no column of its snapshot."""
    kept_element.cache_clear()
    cdp.memory.clear()


async def _first_look(cdp: Cdp) -> None:
    """It is not known either what has the focus."""
    await Observer(FULL).observe(cdp, viewport=VIEWPORT, instruction="")


async def _accuracy(cdp: Cdp) -> list[Figure]:
    reading = await Observer(FULL).observe(cdp, viewport=VIEWPORT, instruction="")
    recall, precision = accuracy(reading, decode(await capture(cdp)))
    return [
        Figure("labelled page: recall", recall, "ratio", ">= 1"),
        Figure("labelled page: precision", precision, "ratio", ">= 0.95"),
    ]


def accuracy(reading: Reading, dom: Dom) -> tuple[float, float]:
    """Recall and precision of the enabled elements against the ``data-want`` attributes of the
    page."""
    nodes = dom.with_attribute("data-want")
    wanted = {dom.backend[node] for node in nodes if dom.attribute(node, "data-want") == "yes"}
    listed = {handle.backend_node_id for handle in reading.handles.values() if not handle.disabled}
    return len(wanted & listed) / len(wanted), len(wanted & listed) / len(listed)


def accessibility_text(answer: dict[str, Any], dom: Dom, *, addresses: bool = True) -> str:
    """The visible part of an accessibility tree as lines of ``[number] role 'name',
    property=value``.

    Args:
        addresses: Write the ``url`` of links, as BrowserGym does.
    """
    nodes = {node["nodeId"]: node for node in answer["nodes"]}
    place = {backend: node for node, backend in enumerate(dom.backend)}
    lines: list[str] = []

    def write(node: dict[str, Any], depth: int, above: str) -> None:
        role, name = node.get("role", {}).get("value", ""), str(node.get("name", {}).get("value", ""))
        told = _properties(node, addresses)
        plain = role in ("LineBreak", "InlineTextBox", "none") or (role == "generic" and not told)
        repeats = role == "StaticText" and name in above
        shown = "name" in node and not (node.get("ignored") or plain or repeats) and _in_view(node, dom, place)
        if shown:
            number = f"[{node.get('backendDOMNodeId', 0)}] " if role != "StaticText" else ""
            value = f" value={node['value']['value']!r}" if node.get("value", {}).get("value") else ""
            lines.append("\t" * depth + ", ".join([f"{number}{role} {name!r}{value}", *told]))
        for child in node.get("childIds", ()):
            if child in nodes:
                write(nodes[child], depth + shown, name if shown else above)

    write(answer["nodes"][0], 0, "")
    return "\n".join(lines)


def _properties(node: dict[str, Any], addresses: bool) -> list[str]:
    told = []
    for one in node.get("properties", ()):
        name, value = one["name"], one["value"].get("value")
        if name in IGNORED_PROPERTIES or value is None or (name == "url" and not addresses):
            continue
        if name not in FLAGS:
            told.append(f"{name}={value!r}")
        elif value:
            told.append(name)
    return told


def _in_view(node: dict[str, Any], dom: Dom, place: dict[int, int]) -> bool:
    """At least half of it, as BrowserGym has it."""
    at = place.get(node.get("backendDOMNodeId", -1), -1)
    box = dom.box_of[at] if at >= 0 else -1
    if box < 0:
        return False
    left, top, right, bottom = dom.rects[box].tolist()
    seen = max(0.0, min(right, VIEWPORT[0]) - max(left, 0.0)) * max(0.0, min(bottom, VIEWPORT[1]) - max(top, 0.0))
    return bool(seen > 0 and 2 * seen >= (right - left) * (bottom - top)) or dom.name[at] in (
        "#document",
        "HTML",
        "BODY",
    )


def shop_page(products: int) -> str:
    """A page as shops have it: a search field, categories, and cards with a picture, a name, a
    price and a button."""
    card = (PAGES / "card.html").read_text(encoding="utf-8")
    cards = "".join(card.replace("NUMBER", str(number)) for number in range(products))
    links = "".join(
        f'      <li><a href="/catalogue/category/c_{number}/">Category {number}</a></li>\n' for number in range(50)
    )
    return (PAGES / "shop.html").read_text(encoding="utf-8").replace("LINKS", links).replace("CARDS", cards)


async def _best(work: Callable[[], Awaitable[Any]], before: Callable[[], Awaitable[Any]] | None = None) -> float:
    """Seconds of the fastest turn; what is done ``before`` each is not counted."""
    best = float("inf")
    for _ in range(TURNS):
        if before is not None:
            await before()
        started = time.perf_counter()
        await work()
        best = min(best, time.perf_counter() - started)
    return best


@asynccontextmanager
async def _browser() -> AsyncIterator[tuple[Page, CdpSession]]:
    """A page driven by Playwright, and a session of ours with it, without Playwright's driver
    between."""
    arguments = ["--disable-site-isolation-trials", "--disable-features=IsolateOrigins,site-per-process"]
    port = _free_port()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=[*LAUNCH_ARGS, *arguments, f"--remote-debugging-port={port}"]
        )
        width, height = VIEWPORT
        page = await browser.new_page(viewport={"width": width, "height": height})
        target = (await (await page.context.new_cdp_session(page)).send("Target.getTargetInfo"))["targetInfo"]
        client = await connect_client(f"ws://127.0.0.1:{port}/devtools/page/{target['targetId']}", CONNECT_SECONDS)
        session = CdpSession(target["targetId"])
        session.bind(client, None)
        try:
            yield page, session
        finally:
            client.close()
        await browser.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
