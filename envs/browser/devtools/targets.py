"""The ``Target`` domain as a client of one browser context has it: other contexts do not exist."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from envs.browser.context import MAX_TABS, BrowserContext
from envs.browser.devtools.rules import INVALID_PARAMS, NO_METHOD, NO_SESSION, REFUSED, CallRefused, Rules
from envs.cdp import Cdp

ROOT_FILTER = [{"type": "browser", "exclude": True}, {"type": "tab", "exclude": True}, {}]
"""Targets that Chromium shows to a client that names no filter."""

SHOWN = ("page", "tab")
"""Types of targets that a client is attached to by ``Target.setAutoAttach``."""


class Level:
    """A session of the browser as a client has it: the root, or one that it attached."""

    def __init__(self, session_id: str | None) -> None:
        self.session_id = session_id
        self.discovers = False
        self.filter: list[dict[str, Any]] | None = None
        """Filter of ``Target.setAutoAttach``; ``None`` while that is off."""
        self.attached: set[str] = set()
        """Targets that it is attached to."""
        self.known: set[str] = set()
        """Targets of the client's context that there were."""


class ContextTargets:
    """The targets of one client's browser context, and the levels that it is attached at."""

    def __init__(
        self,
        browser: Cdp,
        context: BrowserContext,
        rules: Rules,
        sessions: dict[str, Any],
        event: Callable[[str | None, str, dict[str, Any]], None],
        claimed: asyncio.Event,
    ) -> None:
        """
        Args:
            browser: The client's own session of the browser.
            sessions: The client's sessions by id.
            event: Sends an event of a session to the client.
            claimed: Set once any client of the context has made it its own.
        """
        self.levels: dict[str | None, Level] = {None: Level(None)}
        """Sessions of the browser as the client has them; the root has no id."""
        self._browser = browser
        self._context = context
        self._rules = rules
        self._sessions = sessions
        self._event = event
        self._claimed = claimed
        self._before: set[str] | None = None
        """Tabs that there were when the client made the context its own."""
        self._target_id = secrets.token_hex(16).upper()
        """Id of the browser as a target."""
        self._attaching, self._creating = asyncio.Lock(), asyncio.Lock()
        self._methods: dict[str, Callable[[Level, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "Target.getTargets": self._get_targets,
            "Target.getTargetInfo": self._get_target_info,
            "Target.getBrowserContexts": self._get_browser_contexts,
            "Target.createBrowserContext": self._create_browser_context,
            "Target.disposeBrowserContext": self._dispose_browser_context,
            "Target.setDiscoverTargets": self._set_discover_targets,
            "Target.setAutoAttach": self._set_auto_attach,
            "Target.attachToTarget": self._attach_to_target,
            "Target.attachToBrowserTarget": self._attach_to_browser_target,
            "Target.detachFromTarget": self._detach_from_target,
            "Target.createTarget": self._create_target,
            "Target.closeTarget": self._close_target,
            "Target.activateTarget": self._activate_target,
        }

    async def call(self, level: Level, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Carry out a method of ``Target`` at browser level.

        Raises:
            CallRefused: It is not allowed.
        """
        answer = self._methods.get(method)
        if answer is None:
            raise CallRefused(NO_METHOD, f"'{method}' reaches beyond this session's browser context, or wasn't found")
        return await answer(level, params)

    async def _get_targets(self, _level: Level, params: dict[str, Any]) -> dict[str, Any]:
        return {"targetInfos": await self.infos(params.get("filter"))}

    async def _get_target_info(self, _level: Level, params: dict[str, Any]) -> dict[str, Any]:
        target = params.get("targetId")
        if target in (None, self._target_id):
            title = {"targetId": self._target_id, "type": "browser", "title": "", "url": ""}
            return {"targetInfo": {**title, "attached": True, "canAccessOpener": False}}
        return {"targetInfo": await self.own(target)}

    async def _get_browser_contexts(self, _level: Level, _params: dict[str, Any]) -> dict[str, Any]:
        return {"browserContextIds": [] if self._before is None else [self._context.context_id]}

    async def _create_browser_context(self, _level: Level, params: dict[str, Any]) -> dict[str, Any]:
        """Give the episode's context, which is new: once, since a second one would share its
        cookies."""
        if params.get("proxyServer"):
            raise CallRefused(REFUSED, "proxyServer: the requests of a session have a proxy already")
        if self._claimed.is_set():
            raise CallRefused(REFUSED, "a session has one browser context, and a client has it: open another session")
        self._claimed.set()
        self._before = {tab.cdp.target_id for tab in self._context.tabs}
        return {"browserContextId": self._context.context_id}

    async def _dispose_browser_context(self, _level: Level, params: dict[str, Any]) -> dict[str, Any]:
        """Close the tabs that were opened since; the episode goes on in the others."""
        if self._before is None or params.get("browserContextId") != self._context.context_id:
            raise CallRefused(REFUSED, f"Failed to find context with id {params.get('browserContextId')}")
        for tab in list(self._context.tabs):
            if tab.cdp.target_id not in self._before:
                await self._context.close_tab(tab.number)
        self._before = None
        return {}

    async def _set_discover_targets(self, level: Level, params: dict[str, Any]) -> dict[str, Any]:
        level.discovers = bool(params.get("discover"))
        if level.discovers:
            for info in await self.infos(params.get("filter")):
                self._event(level.session_id, "Target.targetCreated", {"targetInfo": info})
        return {}

    async def _set_auto_attach(self, level: Level, params: dict[str, Any]) -> dict[str, Any]:
        if not params.get("autoAttach"):
            level.filter = None
            return {}
        if not params.get("flatten"):
            raise CallRefused(INVALID_PARAMS, "only flatten: true is supported")
        level.filter = params.get("filter") or ROOT_FILTER
        await self.attach_all(level)
        return {}

    async def _attach_to_target(self, level: Level, params: dict[str, Any]) -> dict[str, Any]:
        if not params.get("flatten"):
            raise CallRefused(INVALID_PARAMS, "only flatten: true is supported")
        return {"sessionId": await self._attach(level, await self.own(params.get("targetId")))}

    async def _attach_to_browser_target(self, level: Level, _params: dict[str, Any]) -> dict[str, Any]:
        session_id = secrets.token_hex(16).upper()
        self.levels[session_id] = Level(session_id)
        info = (await self._get_target_info(level, {}))["targetInfo"]
        attached = {"sessionId": session_id, "targetInfo": info, "waitingForDebugger": False}
        self._event(level.session_id, "Target.attachedToTarget", attached)
        return {"sessionId": session_id}

    async def _detach_from_target(self, level: Level, params: dict[str, Any]) -> dict[str, Any]:
        session_id = params.get("sessionId")
        if session_id in self.levels and session_id is not None:
            del self.levels[session_id]
            self._event(level.session_id, "Target.detachedFromTarget", {"sessionId": session_id})
            return {}
        if session_id not in self._sessions:
            raise CallRefused(INVALID_PARAMS, "No session with given id")
        return await self._browser.send("Target.detachFromTarget", {"sessionId": session_id})

    async def _create_target(self, _level: Level, params: dict[str, Any]) -> dict[str, Any]:
        self._rules.of_context(params)
        url = str(params.get("url") or "about:blank")
        self._rules.check_url(url)
        async with self._creating:
            if len(self._context.tabs) >= MAX_TABS:
                raise CallRefused(REFUSED, f"a session has at most {MAX_TABS} tabs: close one")
            await self._context.new_tab(None if url == "about:blank" else url)
            target = self._context.active.cdp.target_id
        for level in list(self.levels.values()):  # clients expect to be attached before the answer
            if level.filter is not None:
                await self.attach_all(level)
        return {"targetId": target}

    async def _close_target(self, _level: Level, params: dict[str, Any]) -> dict[str, Any]:
        await self.own(params.get("targetId"))
        tab = next((tab for tab in self._context.tabs if tab.cdp.target_id == params["targetId"]), None)
        if tab is None:
            return await self._browser.send("Target.closeTarget", {"targetId": params["targetId"]})
        await self._context.close_tab(tab.number)
        return {"success": True}

    async def _activate_target(self, _level: Level, params: dict[str, Any]) -> dict[str, Any]:
        await self.own(params.get("targetId"))
        tab = next((tab for tab in self._context.tabs if tab.cdp.target_id == params["targetId"]), None)
        if tab is not None:
            await self._context.switch_tab(tab.number)
        return {}

    async def infos(self, wanted: object) -> list[dict[str, Any]]:
        """Return the targets of the client's context that a filter names, the shown tab first."""
        given = wanted if isinstance(wanted, list) and wanted else ROOT_FILTER
        infos = (await self._browser.send("Target.getTargets", {"filter": given}))["targetInfos"]
        own = [info for info in infos if info.get("browserContextId") == self._context.context_id]
        order = [tab.cdp.target_id for tab in self._context.tabs]
        active = self._context.active.cdp.target_id if order else ""
        place = {target: number for number, target in enumerate(order)}
        return sorted(own, key=lambda info: (info["targetId"] != active, place.get(info["targetId"], MAX_TABS)))

    async def own(self, target: object) -> dict[str, Any]:
        """Return the info of a target of the client's context.

        Raises:
            CallRefused: It is another one's, or there is none.
        """
        own = await self.infos([{}])
        info = next((info for info in own if info["targetId"] == target), None)
        if info is None:
            raise CallRefused(INVALID_PARAMS, "No target with given id found")
        return info

    async def attach_all(self, level: Level) -> None:
        """Attach the client to all pages that it asked for and has not been attached to."""
        async with self._attaching:
            ready = {tab.cdp.target_id for tab in self._context.tabs}
            for info in await self.infos(level.filter):
                target, kind = info["targetId"], info["type"]
                new = target not in level.attached and kind in SHOWN
                if new and level.filter is not None and (kind != "page" or target in ready):
                    await self._attach(level, info)

    async def _attach(self, level: Level, info: dict[str, Any]) -> str:
        level.attached.add(info["targetId"])
        params = {"targetId": info["targetId"], "flatten": True}
        session_id = str((await self._browser.send("Target.attachToTarget", params))["sessionId"])
        session = self._sessions.get(session_id)
        if session is None:
            raise CallRefused(NO_SESSION, "the page was closed")
        session.parent = level.session_id
        attached = {"sessionId": session_id, "targetInfo": {**info, "attached": True}, "waitingForDebugger": False}
        self._event(level.session_id, "Target.attachedToTarget", attached)
        return session_id
