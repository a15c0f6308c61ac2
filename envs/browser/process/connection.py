"""A connection to one browser with heartbeat, reconnect with backoff, and reattached targets.

A socket can be dropped, stall, or be open at one end only, and a browser may hang, while its pages
live on. After a reconnect, over the next socket or the same pipe, we attach to each page again,
keep its session's handlers and enable its CDP domains again. Contexts outlive the connection. A
pending call has failed by then, because it is unknown whether it took effect.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from envs.background import start_background
from envs.browser.process.states import ConnectionMachine, ConnectionState
from envs.cdp.client import ATTACHED_AGAIN, CdpClient, CdpError, CdpSession, ConnectionLost
from envs.types import BrowserError

logger = logging.getLogger(__name__)

AUTO_ATTACH = {
    "autoAttach": True,
    "waitForDebuggerOnStart": True,  # or a popup would run its scripts before it is set up
    "flatten": True,
    "filter": [{"type": "page"}, {"exclude": True}],
}
"""Pages only: workers and frames are under the clock of their page."""


NO_AUTO_ATTACH = {"autoAttach": False, "waitForDebuggerOnStart": False, "flatten": True}
"""Ends the sessions of pages that were attached to so far."""


@dataclass(frozen=True)
class ConnectionTimes:
    """Timeouts and retry limits of a connection to a browser."""

    connect: float = 5.0
    """Seconds for a socket, and for attaching: both take 5 ms on loopback."""
    heartbeat: float = 2.0
    """Silence after which the browser is asked for a sign of life."""
    answer: float = 4.0
    """Seconds for that answer. One miss degrades the connection, two in a row give the socket
    up."""
    backoff: float = 0.1
    """Seconds before the first new attempt; doubled each time."""
    longest_backoff: float = 2.0
    attempts: int = 6
    """Failed attempts in a row after which the browser is given up: 4 s of waiting in all, and up
    to 5 s for each."""


class Connection:
    """The way to one browser.

    ``open`` it, then use ``browser`` and the sessions of targets; ``close`` it at the end.
    """

    def __init__(
        self,
        connect: Callable[[float], Awaitable[CdpClient]],
        *,
        alive: Callable[[], bool] = lambda: True,
        times: ConnectionTimes | None = None,
        name: str = "browser",
    ) -> None:
        """
        Args:
            connect: Connects to the browser within that many seconds; called at each attempt.
            alive: Returns True while the browser's process runs; afterwards no attempt is made.
            times: Deadlines and backoff.
            name: Name of the browser in messages.
        """
        self.machine = ConnectionMachine()
        self.browser = CdpSession("")
        """The browser's own session."""
        self.given_up: str | None = None
        """Reason why the browser is lost for good (not closed on purpose)."""
        self.on_give_up: Callable[[str], None] = lambda _why: None
        """Called with the reason when the browser is given up."""
        self.on_new_page: Callable[[dict[str, Any], CdpSession], None] | None = None
        """Called with the target's info and its session for a page that this connection did
        not open (a popup); it must resume the page."""
        self.on_page_gone: Callable[[str, bool], None] = lambda _target, _crashed: None
        """Called with the target id of a page that is not there any more, and whether it
        crashed."""
        self.on_drop: Callable[[str], None] = lambda _why: None
        """Called with the reason when the socket is gone; what waits for an event will not get
        it."""
        self.reconnects = 0
        self._connect_client = connect
        self._alive = alive
        self._times = times or ConnectionTimes()
        self.name = name
        self._client: CdpClient | None = None
        self._targets: dict[str, CdpSession] = {}
        self.sessions: dict[str, CdpSession] = {}
        """Sessions of the present socket by their ids: of pages and of what pages attached to."""
        self._asked: dict[str, asyncio.Future[CdpSession]] = {}
        self._opening = 0
        self._usable = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def state(self) -> ConnectionState:
        return self.machine.state

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionLost: there is no browser at the address.
        """
        try:
            await self._connect("opened")
        except BaseException as error:
            await self.close()
            if not isinstance(error, BrowserError):
                raise
            raise ConnectionLost(f"{self.name}: {error}") from error
        start_background(self._keep(), self._tasks, f"connection of {self.name}").add_done_callback(self._on_keeper_end)

    async def ready(self) -> None:
        """Wait until calls can be made. Callers put a deadline around it.

        Raises:
            ConnectionLost: the connection is closed or given up.
        """
        while not self.machine.usable:
            if self.state is ConnectionState.CLOSED:
                raise ConnectionLost(f"{self.name}: the connection is closed")
            await self._usable.wait()

    async def open_page(self, context_id: str, width: int, height: int) -> CdpSession:
        """A new blank page, attached to and waiting to be resumed
        (``Runtime.runIfWaitingForDebugger``)."""
        params = {"url": "about:blank", "browserContextId": context_id, "width": width, "height": height}
        self._opening += 1
        try:
            target = str((await self.browser.send("Target.createTarget", params))["targetId"])
            waiting = self._asked.setdefault(target, asyncio.get_running_loop().create_future())
            return await waiting
        finally:
            self._opening -= 1
            if not self._opening:
                self._asked.clear()

    def child(self, session_id: str) -> CdpSession:
        """The session of something that a page's own session attached to (a worker).

        It ends with its socket.
        """
        session = CdpSession(session_id)
        self.add_child(session, session_id)
        return session

    def add_child(self, session: CdpSession, session_id: str) -> None:
        """Bind a session of the caller's own kind, like `child`."""
        assert self._client is not None
        session.bind(self._client, session_id)
        self.sessions[session_id] = session

    def remove_child(self, session_id: str) -> None:
        """Hand no more events to a session, and fail what it waits for."""
        session = self.sessions.pop(session_id, None)
        if session is not None:
            session.end("it has ended")

    def forget(self, session: CdpSession) -> None:
        """The page was closed: do not look for it after a reconnect."""
        self._targets.pop(session.target_id, None)
        session.unbind()

    async def close(self) -> None:
        """Close the socket. The browser is left as it is."""
        self.machine.to(ConnectionState.CLOSED, "closed on purpose")
        self._usable.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._drop("the connection was closed")

    def metrics(self) -> dict[str, Any]:
        """State, seconds in each, reconnects, pending calls."""
        return {
            "state": str(self.state),
            "seconds": self.machine.seconds(),
            "reconnects": self.reconnects,
            "pending": self._client.pending if self._client else 0,
        }

    # ----------------------------------------------------------------------------
    # life

    async def _keep(self) -> None:
        """Watch the socket.

        When it is gone, get another one, until the attempts are used up.
        """
        while True:
            why = await self._watch()
            self._usable.clear()
            self.machine.to(ConnectionState.RECONNECTING, why)
            logger.warning("%s: %s", self.name, why)
            self._drop(why)
            if not await self._reconnect(why):
                return

    async def _reconnect(self, why: str) -> bool:
        times = self._times
        for attempt in range(times.attempts):
            if not self._alive():
                why = "its process is gone"
                break
            delay = min(times.longest_backoff, times.backoff * 2**attempt)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # jitter: many connections do not come back at once
            try:
                await self._connect(f"attempt {attempt + 1}")
            except BrowserError as error:
                why = str(error)
                self.machine.to(ConnectionState.RECONNECTING, why)
                self._drop(why)
                continue
            self.reconnects += 1
            return True
        self._give_up(f"given up: {why}", why)
        return False

    def _give_up(self, entry: str, why: str) -> None:
        self.machine.to(ConnectionState.CLOSED, entry)
        self.given_up = why
        self.on_give_up(why)
        self._usable.set()

    async def _watch(self) -> str:
        """Wait until the socket is gone or silent twice in a row; return why."""
        assert self._client is not None
        client, missed = self._client, 0
        while not client.lost.done():
            await asyncio.wait({client.lost}, timeout=self._times.heartbeat)
            silent = asyncio.get_running_loop().time() - client.heard_at
            if client.lost.done() or (silent < self._times.heartbeat and not missed):
                continue
            if await self._answers(client):
                missed = 0
                self.machine.to(ConnectionState.BUSY if client.pending else ConnectionState.READY, "it answers again")
                continue
            missed += 1
            if missed == 2:
                return f"no answer for {silent + self._times.answer:.1f} s"
            self.machine.to(ConnectionState.DEGRADED, f"no answer for {silent + self._times.answer:.1f} s")
        return client.lost.result()

    async def _answers(self, client: CdpClient) -> bool:
        try:
            async with asyncio.timeout(self._times.answer):
                await client.call("Browser.getVersion", None, None)
        except (TimeoutError, ConnectionLost):
            return False
        return True

    async def _connect(self, why: str) -> None:
        self.machine.to(ConnectionState.CONNECTING, why)
        client = await self._connect_client(self._times.connect)
        self.machine.to(ConnectionState.ATTACHING)
        self._client = client
        client.on_event(self._on_event)
        try:
            async with asyncio.timeout(self._times.connect):
                await self._attach(client)
        except TimeoutError:
            raise ConnectionLost(
                f"the browser did not let itself be attached to in {self._times.connect:g} s"
            ) from None
        self.machine.to(ConnectionState.READY)
        client.on_load = self._on_load
        self._usable.set()

    async def _attach(self, client: CdpClient) -> None:
        self.sessions.clear()
        self.browser.bind(client, None)
        # On a pipe the sessions of the client before are still there.
        await self.browser.send("Target.setAutoAttach", NO_AUTO_ATTACH)
        await self.browser.play_back()
        await self.browser.send("Target.setDiscoverTargets", {"discover": True})
        # Answered when all pages that are there have been attached to: their events come first.
        await self.browser.send("Target.setAutoAttach", AUTO_ATTACH)
        known = list(self._targets.values())
        back = [session for session in known if session in self.sessions.values()]
        for session in known:
            if session not in back:
                self._gone(session.target_id)
        results = await asyncio.gather(*(_set_up_again(session) for session in back), return_exceptions=True)
        for session, result in zip(back, results, strict=True):
            if isinstance(result, CdpError):
                self._gone(session.target_id)
            elif isinstance(result, BaseException):
                raise result

    def _drop(self, why: str) -> None:
        client, self._client = self._client, None
        self.on_drop(why)
        self.browser.unbind()
        for session in self._targets.values():
            session.unbind()
        if client is not None:
            client.close(why)

    def _on_keeper_end(self, task: asyncio.Task[None]) -> None:
        """Give the browser up where keeping its connection failed.

        Without its keeper it never connects again, and callers would wait for ever.
        """
        if task.cancelled() or task.exception() is None:
            return
        self._give_up(
            f"keeping it failed: {task.exception()!r}", f"keeping its connection failed: {task.exception()!r}"
        )

    # ----------------------------------------------------------------------------
    # events

    def _on_load(self, busy: bool) -> None:
        if self.state in (ConnectionState.READY, ConnectionState.BUSY):
            self.machine.to(ConnectionState.BUSY if busy else ConnectionState.READY)

    def _on_event(self, method: str, session_id: str | None, params: dict[str, Any]) -> None:
        ended = str(params["sessionId"]) if method == "Target.detachedFromTarget" else ""
        if session_id is not None:
            session = self.sessions.get(session_id)
            if session is not None:
                session.handle(method, params)
            child = self.sessions.pop(ended, None)  # of something that the page had attached to
            if child is not None:
                child.end("it has ended")
            return
        self.sessions.pop(ended, None)
        if method == "Target.attachedToTarget" and params["targetInfo"]["type"] == "page":
            self._on_attached(params)
        elif method in ("Target.targetDestroyed", "Target.targetCrashed"):
            self._gone(params["targetId"], crashed=method == "Target.targetCrashed")
        self.browser.handle(method, params)

    def _on_attached(self, params: dict[str, Any]) -> None:
        info, session_id = params["targetInfo"], params["sessionId"]
        target = info["targetId"]
        known = target in self._targets
        session = self._targets.setdefault(target, CdpSession(target))
        assert self._client is not None
        session.bind(self._client, session_id)
        self.sessions[session_id] = session
        if known:
            return
        if self._opening and not info.get("openerId"):
            waiting = self._asked.setdefault(target, asyncio.get_running_loop().create_future())
            waiting.set_result(session)
        elif self.on_new_page is not None:
            self.on_new_page(info, session)

    def _gone(self, target: str, *, crashed: bool = False) -> None:
        session = self._targets.pop(target, None)
        if session is not None:
            session.end("the page crashed" if crashed else "the page was closed")
            self.on_page_gone(target, crashed)


async def _set_up_again(session: CdpSession) -> None:
    await session.play_back()
    await session.send("Runtime.runIfWaitingForDebugger")
    session.handle(ATTACHED_AGAIN, {})
