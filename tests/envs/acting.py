"""A page in real Chromium on which actions are tried, with its clock stopped between them as in
episodes.

Playwright only opens the browser; everything else goes over its protocol session. Elements are
those that the page marks with ``data-t``.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, CDPSession, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from envs.actions import ActionContext, ActionError, Dialogs, Effect, Interceptor, check_action, execute
from envs.browser.process.chromium import LAUNCH_ARGS, find_chromium
from envs.browser.process.pinned import environment
from envs.cdp import CdpError
from envs.settle import VirtualClock
from envs.types import Action

VIEWPORT = (800, 600)
SETTLE_MS = 100.0
ARGS = ("--disable-site-isolation-trials", "--disable-features=IsolateOrigins,site-per-process")


class Session:
    """Playwright's protocol session with our errors."""

    def __init__(self, cdp: CDPSession) -> None:
        self._cdp = cdp
        self.on = cdp.on

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method."""
        try:
            return await self._cdp.send(method, params or {})
        except PlaywrightError as error:
            raise CdpError(method, error.message) from error

    async def value(self, expression: str) -> Any:
        """Value of an expression in the page."""
        answer = await self.send("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")


@dataclass(frozen=True)
class Seen:
    """An element of the page (`envs.observation.Handle`)."""

    index: int
    semantic_id: str
    tag: str
    text: str
    point: tuple[float, float] | None
    options: tuple[str, ...] | None
    disabled: bool
    backend_node_id: int


class TabsOfContext:
    """Tabs by the order in which they were opened (`envs.actions.Tabs`)."""

    def __init__(self, context: BrowserContext, first: Page) -> None:
        self._context = context
        self._pages = {1: first}
        self._active = 1

    @property
    def tab_numbers(self) -> tuple[int, ...]:
        """Open ones."""
        return tuple(self._pages)

    @property
    def active_number(self) -> int:
        """The shown one."""
        return self._active

    async def new_tab(self, url: str | None) -> None:
        """Open one."""
        page = await self._context.new_page()
        if url:
            with suppress(PlaywrightError):  # it then shows the browser's own page, as after goto
                await page.goto(url)
        self._active = max(self._pages) + 1
        self._pages[self._active] = page

    async def switch_tab(self, number: int) -> None:
        """Show one."""
        await self._pages[number].bring_to_front()
        self._active = number

    async def close_tab(self, number: int) -> None:
        """Close one."""
        await self._pages.pop(number).close()
        self._active = max(self._pages)


LOOK = """(window.T || [...document.querySelectorAll("[data-t]")]).map((el) => {
  const r = el.getBoundingClientRect(), frame = el.ownerDocument.defaultView.frameElement;
  const at = frame ? frame.getBoundingClientRect() : {left: 0, top: 0}, inset = frame ? frame.clientLeft : 0;
  const x = at.left + inset + r.left + r.width / 2, y = at.top + inset + r.top + r.height / 2;
  const shown = r.width && r.height && x > 0 && y > 0 && x < innerWidth && y < innerHeight;
  const tag = {A: "link", INPUT: ["checkbox", "radio"].includes(el.type) ? el.type : "input"}[el.tagName] || el.localName;
  return {name: el.dataset.t, tag, text: (el.innerText || el.getAttribute("aria-label") || "").trim(), point: shown ? [x, y] : null,
    options: el.localName === "select" ? [...el.options].map((o) => o.text.trim()) : null, disabled: el.matches(":disabled")};
})"""


class Stage:
    """One tab with what actions need of it."""

    def __init__(self, page: Page, cdp: Session, context: ActionContext) -> None:
        self.page = page
        self.cdp = cdp
        self.context = context
        self.offers: tuple[str, ...] = ()
        self.clock: VirtualClock = context.clock  # type: ignore[assignment]

    async def act(self, action: Action, *, settle: bool = True) -> Effect | ActionError:
        """Carry out an action and let the page settle."""
        refusal = check_action(action, self.context.handles, self.offers)
        outcome = refusal or await execute(self.context, action)
        if settle:
            await self.settle()
        return outcome

    async def settle(self) -> None:
        """Let the page settle, or until a dialog opens: then its clock does not run."""
        await self.clock.settle(SETTLE_MS)

    async def look(self) -> None:
        """Read the marked elements anew, as an observation does."""
        raw = await self.cdp.value(LOOK)
        listed = await self.cdp.send("Runtime.evaluate", {"expression": LOOK.partition(".map(")[0]})
        own = {"objectId": listed["result"]["objectId"], "ownProperties": True}
        properties = (await self.cdp.send("Runtime.getProperties", own))["result"]
        objects = [each["value"]["objectId"] for each in properties if each["name"].isdigit()]
        found = []
        for index, (told, element) in enumerate(zip(raw, objects, strict=True), start=1):
            node = (await self.cdp.send("DOM.describeNode", {"objectId": element}))["node"]["backendNodeId"]
            point = tuple(told["point"]) if told["point"] else None
            options = tuple(told["options"]) if told["options"] is not None else None
            found.append(Seen(index, told["name"], told["tag"], told["text"], point, options, told["disabled"], node))
        self.context = replace(self.context, handles={each.index: each for each in found})

    async def load(self, body: str) -> None:
        """Show a page with this body."""
        await self.clock.begin()
        await self.cdp.send(
            "Emulation.setVirtualTimePolicy", {"policy": "advance"}
        )  # Playwright's own waits need a clock that runs
        html = f"<!DOCTYPE html><html><head><title>t</title></head><body style='margin:0'>{body}</body></html>"
        await self.page.set_content(html)
        await self.clock.settle(SETTLE_MS)
        await self.look()

    async def log(self) -> list[str]:
        """What the page heard since the last call; one that was not trusted ends with ``!``."""
        return list(await self.cdp.value("heard.splice(0)"))


HEAR = """<script>
const heard = window.heard = [];
const hear = (types, from = window) => types.split(" ").forEach((type) => from.addEventListener(type, (e) => {
  const el = e.composedPath()[0], name = (el.dataset && el.dataset.t) || el.localName || "page";
  const held = (e.ctrlKey ? "c" : "") + (e.shiftKey ? "s" : "") + (e.altKey ? "a" : "") + (e.metaKey ? "m" : "");
  const what = e.key === undefined ? "" : ":" + held + e.key;
  heard.push(type + ":" + name + what + (e.isTrusted ? "" : "!"));
}, true));
</script>"""


browsers: list[Browser] = []
"""The browser of the tests of a module, if they use the fixture ``one_browser``."""


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """A new Chromium."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=str(find_chromium()), args=[*LAUNCH_ARGS, *ARGS], env={**os.environ, **environment()}
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def stage(body: str = "", **changes: Any) -> AsyncIterator[Stage]:
    """One page of this body in a new browser context; keyword arguments replace fields of the
    `ActionContext`."""
    async with AsyncExitStack() as ends:
        browser = browsers[0] if browsers else await ends.enter_async_context(launched())
        context = await browser.new_context(viewport={"width": VIEWPORT[0], "height": VIEWPORT[1]}, locale="en-US")
        ends.push_async_callback(context.close)
        page = await context.new_page()
        page.on("dialog", lambda _dialog: None)  # or Playwright answers it
        cdp = Session(await context.new_cdp_session(page))
        await cdp.send("Page.enable")
        made = ActionContext(
            cdp=cdp,
            viewport=VIEWPORT,
            handles={},
            tabs=TabsOfContext(context, page),
            dialogs=Dialogs(cdp),
            intercept=Interceptor(cdp),
            clock=VirtualClock(cdp),
            allowed=lambda url: "127.0.0.1" in url,
        )
        here = Stage(page, cdp, replace(made, **changes))
        await here.load(body)
        yield here


def on(body: str, **changes: Any) -> AbstractAsyncContextManager[Stage]:
    """A page of this body that hears its events."""
    return stage(HEAR + body, **changes)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """Origin of a static server of this folder and ``/count`` tells how often it was asked."""
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = request.split()[1].partition("?")[0]
        asked += path == "/count"
        body = json.dumps(asked).encode() if path == "/count" else _read(folder / path.lstrip("/"))
        status = "200 OK" if body is not None else "404 Not Found"
        body = body or b""
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
