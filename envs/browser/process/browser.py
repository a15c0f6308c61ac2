"""One Chromium: its process (if we started it), its connection and its contexts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from envs.background import start_background
from envs.browser.context import BrowserContext, PageCrashed
from envs.browser.options import ContextOptions
from envs.browser.process.chromium import ChromiumProcess
from envs.browser.process.connection import Connection, ConnectionTimes
from envs.browser.process.cpu_guard import CpuGuard
from envs.browser.process.pinned import environment
from envs.browser.process.states import ConnectionState
from envs.cdp.client import CdpClient, CdpSession, connect_client
from envs.types import BrowserError


class Browser:
    """Made by `launch` or `connect`; `close` leaves nothing behind that we started."""

    def __init__(
        self,
        process: ChromiumProcess | None,
        connect: Callable[[float], Awaitable[CdpClient]],
        name: str,
        times: ConnectionTimes | None,
    ) -> None:
        self.process = process
        self.contexts: set[BrowserContext] = set()
        self.episodes = 0
        self.retired = False
        """No new contexts; to be closed when the last one is given back."""
        self.single_use = False
        """It was given to one context and gets no other one; it ends with that one."""
        self.disconnects = 0
        """Times that the socket went away by itself."""
        self._opening = 0
        self._closing = 0
        self._strangers: set[asyncio.Task[dict[str, Any]]] = set()
        self.cpu_guard = CpuGuard(self._renderers)
        self._guarding: set[asyncio.Task[None]] = set()

        self.connection = Connection(connect, alive=lambda: process is None or process.running, times=times, name=name)
        self.connection.on_drop = self._on_drop
        self.connection.on_page_gone = self._on_page_gone
        self.connection.on_new_page = self._on_new_page
        self.connection.on_give_up = self._on_give_up

    @classmethod
    async def launch(cls, executable: Path, args: Sequence[str], times: ConnectionTimes | None = None) -> Browser:
        """Start a Chromium.

        Raises:
            BrowserError: it does not start, or cannot be spoken to.
        """
        process = await ChromiumProcess.start(executable, args, environment())

        async def take(_timeout: float) -> CdpClient:
            return process.client()

        browser = cls(process, take, f"Chromium {process.pid}", times)
        try:
            await browser.connection.open()
        except BaseException:
            await process.stop()
            raise
        start_background(browser.cpu_guard.run(), browser._guarding, f"CPU guard of Chromium {process.pid}")
        return browser

    @classmethod
    async def connect(cls, url: str, times: ConnectionTimes | None = None) -> Browser:
        """Use a browser that somebody else started: its ``ws://…`` debugging address, or
        ``http://host:port`` of it.

        It is left running.

        Raises:
            BrowserError: there is none.
        """
        address = await _debugger_address(url)
        browser = cls(None, partial(connect_client, address), address, times)
        await browser.connection.open()
        return browser

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes, the browser process first; empty for a browser that we did not start."""
        return tuple(member.pid for member in self.process.family()) if self.process else ()

    @property
    def lost(self) -> bool:
        """True if the connection to the browser was given up."""
        return self.connection.given_up is not None

    @property
    def load(self) -> int:
        """Number of contexts that are open, being opened or being closed."""
        return len(self.contexts) + self._opening + self._closing

    async def open_context(self, options: ContextOptions) -> BrowserContext:
        """Open a context with a blank tab.

        Raises:
            BrowserError: it could not be made.
        """
        self._opening += 1
        try:
            await self.connection.ready()
            context = await BrowserContext.open(self.connection, options)
        finally:
            self._opening -= 1
        self.contexts.add(context)
        return context

    async def close_context(self, context: BrowserContext) -> None:
        """Close one of its contexts."""
        self.contexts.discard(context)
        self._closing += 1  # counted until closed: the pool may lend or end a browser that seems free
        try:
            await context.close()
        finally:
            self._closing -= 1

    async def close(self) -> None:
        """Close the connection, and end the process if it is ours."""
        self._fail(BrowserError("Chromium was stopped"))
        for task in self._guarding:
            task.cancel()
        if self.process is None:
            for context in list(self.contexts):
                await self.close_context(context)
        self.contexts.clear()
        await self.connection.close()
        if self.process is not None:
            await self.process.stop()

    async def _renderers(self) -> list[int]:
        """Process ids of its renderers."""
        await self.connection.ready()
        info = await self.connection.browser.send("SystemInfo.getProcessInfo")
        return [process["id"] for process in info["processInfo"] if process["type"] == "renderer"]

    def _fail(self, error: BrowserError) -> None:
        for context in self.contexts:
            context.fail(error)

    def _on_drop(self, why: str) -> None:
        if self.connection.state is ConnectionState.RECONNECTING:
            self.disconnects += 1
        for context in self.contexts:
            context.interrupt(BrowserError(why))

    def _on_give_up(self, why: str) -> None:
        self._fail(BrowserError(f"Chromium went away: {why}"))

    def _on_page_gone(self, target: str, crashed: bool) -> None:
        error = PageCrashed("the page crashed") if crashed else BrowserError("the page was closed")
        for context in self.contexts:
            if context.tab_gone(target, error):
                return

    def _on_new_page(self, info: dict[str, Any], session: CdpSession) -> None:
        for context in self.contexts:
            if context.context_id == info.get("browserContextId"):
                context.adopt(session, has_opener=info.get("canAccessOpener", True))
                return
        # Of somebody else (an external browser): let it go on without us.
        going = session.send("Runtime.runIfWaitingForDebugger")
        start_background(going, self._strangers, f"a page of another client of {self.connection.name}")


async def _debugger_address(url: str) -> str:
    if url.startswith(("ws://", "wss://")):
        return url
    try:
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            return str((await client.get(f"{url.rstrip('/')}/json/version")).json()["webSocketDebuggerUrl"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise BrowserError(f"no browser answers at {url}: {error!r}; start it with --remote-debugging-port") from error
