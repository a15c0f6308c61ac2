"""One foreign DevTools client: it sees one browser context, as if that were the whole browser.

::

    client ── root level ──────> answered here (`Rules`, and Target as one context's)
       └──── session of a page ─> Chromium, over the pool's own wire

Chromium gives the client's sessions their ids; the client may use those alone. Answers and events
leave in the order in which Chromium sent them: both wait for one turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from envs.background import start_background
from envs.browser.context import BrowserContext
from envs.browser.devtools import messages
from envs.browser.devtools.lent import LentPage
from envs.browser.devtools.rules import NO_METHOD, NO_SESSION, OF_CONTEXT, REFUSED, CallRefused, Rules
from envs.browser.devtools.targets import ContextTargets, Level
from envs.cdp import CdpError, ConnectionLost
from envs.cdp.client import CdpSession
from envs.types import BrowserError

logger = logging.getLogger(__name__)

DETACH_SECONDS = 5.0
"""Real seconds that Chromium may take to end a client's sessions; one that hangs does not hold the
lease."""

ON_PAGE = frozenset(["Target.getTargets", "Target.getTargetInfo", "Target.closeTarget", "Target.activateTarget"])
"""Methods of ``Target`` that are answered on a page's session as at browser level."""


class DevToolsClient:
    """Answers one client. ``open`` it, pass its messages to `receive`, ``close`` it."""

    def __init__(self, lent: LentPage, send: Callable[[bytes], None]) -> None:
        """
        Args:
            send: Sends a message to the client.
        """
        self._connection = lent.connection
        self._context: BrowserContext = lent.context
        self._rules = Rules(self._context.context_id, lent.page.allow.refuse_url, clipboard=lent.page.clipboard)
        self._send = send
        self._browser = _Session(self, "", None)
        """The client's own session of the browser; its other sessions are children of it."""
        self._sessions: dict[str, _Session] = {}
        self._targets = ContextTargets(
            self._browser, self._context, self._rules, self._sessions, self._event, lent.claimed
        )
        self._windows: set[int] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self.on_close: Callable[[], None] = lambda: None
        """Called when the client closes what it takes for its browser."""

    @property
    def lost(self) -> asyncio.Future[str]:
        """Resolved with the reason when the browser is gone."""
        return self._browser.lost

    async def open(self) -> None:
        """Make the client's session of the browser.

        Raises:
            BrowserError: The browser is gone.
        """
        session_id = str((await self._connection.browser.send("Target.attachToBrowserTarget"))["sessionId"])
        self._browser.session_id = session_id
        self._connection.add_child(self._browser, session_id)
        await self._browser.send("Target.setDiscoverTargets", {"discover": True, "filter": [{}]})

    async def close(self) -> None:
        """End the client's sessions; the pages stay."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)  # each has logged its error
        try:
            if self._browser.session_id and not self.lost.done():
                async with asyncio.timeout(DETACH_SECONDS):
                    params = {"sessionId": self._browser.session_id}
                    await self._connection.browser.send("Target.detachFromTarget", params)
        except (BrowserError, TimeoutError) as error:
            logger.warning("a client's sessions were not ended: %s", error)
        finally:
            for session_id in (*self._sessions, self._browser.session_id):
                self._connection.remove_child(session_id)
            self._sessions.clear()

    def receive(self, raw: str | bytes) -> None:
        """Carry out a message of the client; the answer is sent later."""
        try:
            message = messages.read(raw)
        except messages.BadCall as error:
            self._write(error.answer)
            return
        start_background(self._answer(message), self._calls, f"{message['method']} of a client")

    def tab_opened(self) -> None:
        """Attach the client to a new tab, where it asked for that."""
        for level in self._targets.levels.values():
            if level.filter is not None:
                start_background(self._targets.attach_all(level), self._calls, "attaching a client to a new tab")

    # ------------------------------------------------------------------------------------- calls

    async def _answer(self, message: dict[str, Any]) -> None:
        session_id, reply = message.get("sessionId"), {"id": message["id"]}
        if session_id is not None:
            reply["sessionId"] = session_id
        try:
            reply["result"] = await self._carry_out(session_id, message["method"], message.get("params") or {})
        except CallRefused as refused:
            reply["error"] = {"code": refused.code, "message": str(refused)}
        except CdpError as error:
            reply["error"] = {"code": error.code or REFUSED, "message": error.message}
        except ConnectionLost as error:
            reply["error"] = {"code": NO_SESSION, "message": str(error)}
        except (BrowserError, TypeError) as error:
            reply["error"] = {"code": REFUSED, "message": str(error)}
        except Exception as error:
            self._write({**reply, "error": {"code": REFUSED, "message": f"internal error: {error!r}"}})
            raise
        self._write(reply)

    async def _carry_out(self, session_id: str | None, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if session_id in self._targets.levels:
            return await self._at_browser(self._targets.levels[session_id], method, params)
        session = self._sessions.get(session_id or "")
        if session is None:
            raise CallRefused(NO_SESSION, "Session with given id not found.")
        if method.startswith("Target."):
            return await self._target_of_page(session, method, params)
        if method == "Browser.getWindowForTarget":
            return await self._window(params, session)
        if method.startswith("Browser.") or method in OF_CONTEXT:  # Chromium takes no context id on a page's session
            return await self._at_browser(self._targets.levels[None], method, params)
        allowed = self._rules.for_page(method, params)
        return {} if allowed is None else await session.send(method, allowed)

    async def _at_browser(self, level: Level, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method.startswith("Target."):
            return await self._targets.call(level, method, params)
        if method == "Browser.close":
            asyncio.get_running_loop().call_soon(self.on_close)  # of this client's connection alone
            return {}
        if method == "Browser.getWindowForTarget":
            return await self._window(params, None)
        if method in ("Browser.setWindowBounds", "Browser.getWindowBounds"):
            return await self._bounds(method, params)
        allowed = self._rules.for_browser(method, params)
        if allowed is None:
            return {}
        result = await self._browser.send(method, allowed)
        if method == "Browser.resetPermissions":  # back to what the pool had set: nothing is granted
            nothing = {"permissions": [], "browserContextId": self._context.context_id}
            await self._browser.send("Browser.grantPermissions", nothing)
        return result

    async def _target_of_page(self, session: _Session, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "Target.setAutoAttach" or (method == "Target.getTargetInfo" and "targetId" not in params):
            return await session.send(method, params)
        if method == "Target.detachFromTarget" and params.get("sessionId") in self._sessions:
            return await session.send(method, params)
        if method in ON_PAGE:
            return await self._at_browser(self._targets.levels[None], method, params)
        raise CallRefused(NO_METHOD, f"'{method}' is answered at browser level only, or wasn't found")

    async def _window(self, params: dict[str, Any], session: _Session | None) -> dict[str, Any]:
        target = params.get("targetId")
        if target is not None or session is None:
            await self._targets.own(target)
        window = await (session or self._browser).send("Browser.getWindowForTarget", params)
        self._windows.add(window["windowId"])
        return window

    async def _bounds(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("windowId") not in self._windows:
            raise CallRefused(REFUSED, "Browser window not found")
        return await self._browser.send(method, params)

    # ------------------------------------------------------------------------------------ events

    def on_event(self, session: _Session, method: str, params: dict[str, Any]) -> None:
        """Handle an event of Chromium's on a session of the client."""
        if method == "Target.attachedToTarget":
            child = _Session(self, params["sessionId"], session.session_id)
            self._sessions[child.session_id] = child
            self._connection.add_child(child, child.session_id)
        elif method == "Target.detachedFromTarget":
            self._detached(params["sessionId"], params.get("targetId"))
        if session is not self._browser:
            if not method.startswith("Target.") or method.startswith(("Target.attached", "Target.detached")):
                self._later(session.session_id, method, params)
        elif method in ("Target.targetCreated", "Target.targetInfoChanged"):
            if params["targetInfo"].get("browserContextId") == self._context.context_id:
                self._discovered(params["targetInfo"]["targetId"], method, params)
        elif method in ("Target.targetDestroyed", "Target.targetCrashed"):
            self._discovered(params["targetId"], method, params)

    def _discovered(self, target: str, method: str, params: dict[str, Any]) -> None:
        for level in self._targets.levels.values():
            if method in ("Target.targetCreated", "Target.targetInfoChanged"):
                level.known.add(target)
            elif target not in level.known:
                continue
            if level.discovers:
                self._later(level.session_id, method, params)

    def _detached(self, session_id: str, target: str | None) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        if session.parent in self._targets.levels:
            self._targets.levels[session.parent].attached.discard(target or "")
            self._later(session.parent, "Target.detachedFromTarget", {"sessionId": session_id, "targetId": target})

    def _later(self, session_id: str | None, method: str, params: dict[str, Any]) -> None:
        asyncio.get_running_loop().call_soon(self._event, session_id, method, params)

    def _event(self, session_id: str | None, method: str, params: dict[str, Any]) -> None:
        message: dict[str, Any] = {"method": method, "params": params}
        if session_id is not None:
            message["sessionId"] = session_id
        self._write(message)

    def _write(self, message: dict[str, Any]) -> None:
        self._send(messages.write(message))


class _Session(CdpSession):
    """A session of a client: all its events go to the client."""

    def __init__(self, client: DevToolsClient, session_id: str, parent: str | None) -> None:
        super().__init__("")
        self.session_id = session_id
        self.parent = parent
        """Id of the session or level that it was attached by."""
        self._owner = client

    def handle(self, event: str, params: dict[str, Any]) -> None:
        """Pass an event to the client."""
        self._owner.on_event(self, event, params)
