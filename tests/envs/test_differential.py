"""The same steps by Playwright in real time and by ours under the virtual clock end in the same
state of the page."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Dialog, Locator, Page, async_playwright

from envs.browser import BrowserPool, PageStep, find_chromium
from envs.browser.process.chromium import LAUNCH_ARGS
from envs.browser.process.pinned import environment
from envs.sites.static_server import StaticSite
from envs.types import actions as act
from tests.builders import page_task
from tests.envs.differential import ROWS, Row, Step

pytestmark = [pytest.mark.long, pytest.mark.anyio]

VIEWPORT = (1280, 720)
PAUSE = 0.4
"""Real seconds after a step of Playwright's: no timer of a row is longer, but for the one that
shall not end."""
KEY_DELAY = 30
"""Milliseconds between Playwright's keys."""
HOLD_DELAY = 60
"""Milliseconds that Playwright's mouse button is down."""

HEAD = (
    "<!DOCTYPE html><title>t</title><script>const log = [], say = what => log.push(what);"
    "const $ = name => document.querySelector(`[data-t=${name}]`)</script>"
)

LOOK = """
(() => {
  const state = {values: {}, log: typeof log === 'undefined' ? [] : log, path: location.pathname + location.search + location.hash}, boxes = {};
  const look = (root, x, y) => {
    for (const node of root.querySelectorAll('*')) {
      const box = node.getBoundingClientRect();
      if (node.dataset.t) {
        boxes[node.dataset.t] = [x + box.x, y + box.y, box.width, box.height];
        if (node.matches('[type=checkbox], [type=radio]')) state.values[node.dataset.t] = node.checked;
        else if (node.matches('select[multiple]')) state.values[node.dataset.t] = [...node.selectedOptions].map(each => each.text);
        else if (node.isContentEditable) state.values[node.dataset.t] = node.innerText.trim();
        else if ('value' in node && node.type !== 'file') state.values[node.dataset.t] = node.value;
      }
      if (node.shadowRoot) look(node.shadowRoot, x, y);
      if (node.contentDocument) look(node.contentDocument, x + box.x + node.clientLeft, y + box.y + node.clientTop);
    }
  };
  look(document, 0, 0);
  let focused = document.activeElement;
  while (focused?.shadowRoot?.activeElement || focused?.contentDocument?.activeElement)
    focused = focused.shadowRoot?.activeElement || focused.contentDocument.activeElement;
  state.focus = focused?.dataset.t || '';
  state.selected = String(getSelection());
  state.out = document.querySelector('#out')?.innerText ?? '';
  state.title = document.title;
  return JSON.stringify({state, boxes});
})()
"""


@dataclass(frozen=True)
class Bench:
    """What all rows share."""

    site: StaticSite
    browser: Browser
    pool: BrowserPool
    folder: Path


@pytest.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("pages")
    files = tmp_path_factory.mktemp("files")
    (files / "mine").mkdir()
    (files / "mine" / "a.txt").write_text("text")
    for number, each in enumerate(ROWS):
        (folder / f"{number}.html").write_text(HEAD + each.body)
    (folder / "other.html").write_text("<!DOCTYPE html><title>other</title><p id=out>other</p>")
    (folder / "redirect.html").write_text("<!DOCTYPE html><script>location.replace('other.html')</script>")
    (folder / "items.json").write_text(json.dumps(["apple", "apricot", "pear"]))
    site = StaticSite("pages", folder, viewport=VIEWPORT)
    await site.start()
    try:
        async with async_playwright() as playwright, BrowserPool(max_sessions=1, inspect=inspect, files=files) as pool:
            browser = await playwright.chromium.launch(
                executable_path=find_chromium(), args=list(LAUNCH_ARGS), env={**environment()}
            )
            yield Bench(site, browser, pool, files)
            await browser.close()
    finally:
        await site.close()


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[each.name for each in ROWS])
async def test_both_end_in_the_same_state(number: int, bench: Bench) -> None:
    row = ROWS[number]
    theirs, ours = await asyncio.gather(by_playwright(row, number, bench), by_us(row, number, bench))
    assert differences(theirs, ours, row.tolerance) == {}, f"Playwright's first, then ours, of {row.steps}"


def differences(theirs: dict[str, Any], ours: dict[str, Any], tolerance: int) -> dict[str, tuple[Any, Any]]:
    """Parts of the state that differ by more than the tolerance."""
    return {
        name: (theirs[name], ours.get(name)) for name in theirs if not alike(theirs[name], ours.get(name), tolerance)
    }


def alike(one: Any, other: Any, tolerance: int) -> bool:
    """Equal, but for numbers in texts that differ by no more than the tolerance."""
    if not tolerance or not (isinstance(one, str) and isinstance(other, str)):
        return bool(one == other)
    numbers, others = re.findall(r"\d+", one), re.findall(r"\d+", other)
    near = len(numbers) == len(others) and all(
        abs(int(a) - int(b)) <= tolerance for a, b in zip(numbers, others, strict=True)
    )
    return near and re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)


# -- Playwright


async def by_playwright(row: Row, number: int, bench: Bench) -> dict[str, Any]:
    context = await bench.browser.new_context(viewport={"width": VIEWPORT[0], "height": VIEWPORT[1]}, locale="en-US")
    try:
        page = await context.new_page()
        hand = Hand(page, bench.folder / "mine" / "a.txt")
        await page.goto(f"{bench.site.origin}/{number}.html")
        for step in row.steps:
            await hand.do(step)
            await asyncio.sleep(PAUSE)
        state: dict[str, Any] = json.loads(await page.evaluate(LOOK))["state"]
        return state
    finally:
        await context.close()


class Hand:
    """Playwright's own actions, in the variants that are like a person's."""

    def __init__(self, page: Page, file: Path) -> None:
        self._page = page
        self._file = file
        self._dialog: asyncio.Future[Dialog] = asyncio.get_running_loop().create_future()
        self._clicking: asyncio.Task[None] | None = None
        page.on("dialog", lambda dialog: self._dialog.set_result(dialog))

    async def _target(self, name: str) -> Locator:
        for frame in self._page.frames:
            found = frame.locator(f"[data-t={name}]")
            if await found.count():
                return found
        raise AssertionError(f"{name} is not on the page")

    async def do(self, step: Step) -> None:
        verb, *rest = step
        page, name = self._page, rest[0] if rest else ""
        if verb in ("accept", "acknowledge", "dismiss"):
            dialog = await self._dialog
            await (dialog.dismiss() if verb == "dismiss" else dialog.accept(*rest))
            assert self._clicking is not None
            await self._clicking
        elif verb in ("back", "forward"):
            await (page.go_back() if verb == "back" else page.go_forward())
        elif verb == "wait":
            await asyncio.sleep(float(name))
        elif verb == "press":
            await page.keyboard.press(name)
        elif verb == "scroll" and not name:
            await page.mouse.move(VIEWPORT[0] / 2, VIEWPORT[1] / 2)
            await page.mouse.wheel(0, 0.75 * VIEWPORT[1])
        else:
            await self._on(verb, await self._target(name), *rest[1:])

    async def _on(self, verb: str, target: Locator, *rest: str) -> None:
        plain: dict[str, Callable[[], Awaitable[Any]]] = {
            "double": lambda: target.dblclick(delay=HOLD_DELAY),
            "triple": lambda: target.click(click_count=3),
            "right": lambda: target.click(button="right", delay=HOLD_DELAY),
            "hover": target.hover,
            "check": target.check,
            "uncheck": target.uncheck,
            "upload": lambda: target.set_input_files(self._file),
            "select": partial(_select, target, *rest),
        }
        if verb == "click":  # one that opens a dialog ends with it
            self._clicking = asyncio.create_task(target.click(delay=HOLD_DELAY))
            await asyncio.wait({self._clicking, self._dialog}, return_when=asyncio.FIRST_COMPLETED)
            if self._clicking.done():
                await self._clicking
        elif verb == "type":
            await self._type(target, rest[0])
        elif verb == "drag":
            await self._drag(target, await self._target(rest[0]))
        elif verb == "scroll":
            await target.hover()
            await self._page.mouse.wheel(0, 100)
        else:
            await plain[verb]()

    async def _type(self, target: Locator, text: str) -> None:
        kind = await target.get_attribute("type")
        if kind in ("date", "time", "month", "week", "datetime-local", "color"):
            await target.fill(text)  # there is no text to type: a person types the parts, in the order of the language
            return
        await target.click()
        await self._page.keyboard.press("Control+a")
        await self._page.keyboard.press("Delete")
        await self._page.keyboard.type(text, delay=KEY_DELAY)

    async def _drag(self, start: Locator, end: Locator) -> None:
        (x, y), (to_x, to_y) = await _centre(start), await _centre(end)
        mouse = self._page.mouse
        await mouse.move(x, y)
        await mouse.down()
        for part in range(1, 11):
            await mouse.move(x + (to_x - x) * part / 10, y + (to_y - y) * part / 10)
            await asyncio.sleep(0.016)
        await mouse.up()


async def _select(target: Locator, *labels: str) -> None:
    await target.focus()  # as a person who opens the list
    await target.select_option(label=list(labels))


async def _centre(target: Locator) -> tuple[float, float]:
    box = await target.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


# -- ours


async def inspect(cdp: Any) -> dict[str, Any]:
    """State and boxes of the page."""
    answer = await cdp.send("Runtime.evaluate", {"expression": LOOK})
    found: dict[str, Any] = json.loads(answer["result"]["value"])
    return found


async def by_us(row: Row, number: int, bench: Bench) -> dict[str, Any]:
    task = page_task(f"/{number}.html", horizon=20, files="mine")
    async with bench.pool.lease(bench.site) as session:
        seen = await session.reset(task, 0)
        for step in row.steps:
            if step[0] == "acknowledge":
                continue
            seen = await session.step(action_of(step, seen))
            error = seen.observation.error or ""
            assert error == "" or (row.error and row.error in error), f"{step}: {error}"
        state: dict[str, Any] = seen.inspected["state"]
        return state


def action_of(step: Step, seen: PageStep) -> Any:
    """The action that a step is for us."""
    verb, *rest = step
    if verb in ("accept", "dismiss"):
        return act.Dialog(accept=verb == "accept", text=rest[0] if rest else None)
    if verb in ("back", "forward"):
        return act.Back() if verb == "back" else act.Forward()
    if verb == "wait":
        return act.Wait(seconds=float(rest[0]))
    if verb == "press":
        return act.Press(key=rest[0])
    if verb == "scroll":
        return act.Scroll(element=number_of(rest[0], seen) if rest[0] else None)
    number = number_of(rest[0], seen)
    if verb == "drag":
        return act.Drag(start=act.Target(element=number), end=act.Target(element=number_of(rest[1], seen)))
    if verb == "type":
        return act.Type(element=number, text=rest[1])
    if verb == "select":
        return act.Select(element=number, text=rest[1], also=tuple(rest[2:]))
    if verb == "upload":
        return act.Upload(element=number, files=("a.txt",))
    if verb in ("check", "uncheck"):
        return act.Check(element=number, on=verb == "check")
    kinds: dict[str, Any] = {
        "click": act.Click,
        "double": act.DoubleClick,
        "triple": act.TripleClick,
        "hover": act.Hover,
        "right": lambda **target: act.Click(button="right", **target),
    }
    return kinds[verb](element=number)


def number_of(name: str, seen: PageStep) -> int:
    """The element whose box lies nearest to that of a ``data-t``: its middle within it."""
    x, y, width, height = seen.inspected["boxes"][name]
    middle = x + width / 2, y + height / 2

    def distance(box: tuple[float, float, float, float]) -> float:
        return abs(box[0] + box[2] / 2 - middle[0]) + abs(box[1] + box[3] / 2 - middle[1])

    near = min(seen.observation.elements, key=lambda element: distance(element.box), default=None)
    assert near is not None and distance(near.box) < max(width, height) / 2 + 4, (
        f"{name} at {middle} is not among {[(element.text, element.box) for element in seen.observation.elements]}"
    )
    return near.index
