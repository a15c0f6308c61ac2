"""The workers of one page: attached to, listened to, and given a date of their own to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from envs.background import start_background
from envs.settle.determinism import worker_script
from envs.settle.requests import RequestTracker

if TYPE_CHECKING:
    from envs.cdp import Cdp


class PageWorkers:
    """Workers of one page, whose requests are waited for like the page's own."""

    def __init__(self, cdp: Cdp, requests: RequestTracker, open_session: Callable[[str], Cdp] | None) -> None:
        self._cdp = cdp
        self._requests = requests
        self._open_session = open_session
        self._held = False
        self._names: set[str] = set()
        self._adding: set[asyncio.Task[None]] = set()
        cdp.on("Target.attachedToTarget", self._attached)
        cdp.on("Target.detachedFromTarget", lambda event: self.remove(event["sessionId"]))

    def __bool__(self) -> bool:
        return bool(self._names)

    @property
    def adding(self) -> bool:
        """True while a worker has begun that is not listened to yet."""
        return bool(self._adding)

    async def attach(self, *, held: bool) -> None:
        """Attach to all workers to come; with a ``held`` clock they wait until they are set up."""
        self._held = held
        if self._open_session is not None:
            params = {"autoAttach": True, "waitForDebuggerOnStart": held, "flatten": True}
            await self._cdp.send("Target.setAutoAttach", params)

    async def add(self, name: str, cdp: Cdp) -> None:
        """Wait for the requests of a worker from now on."""
        self._names.add(name)
        self._requests.watch(cdp)
        await cdp.send("Network.enable")

    def remove(self, name: str) -> None:
        """Forget a worker that has ended."""
        self._names.discard(name)

    def _attached(self, event: dict[str, Any]) -> None:
        if self._open_session is None:
            return
        name, worker = event["sessionId"], event["targetInfo"]["type"] == "worker"
        if worker:
            self._names.add(name)  # at once: it counts also where the page settles before it is listened to
        work = self._set_up(name, self._open_session(name), worker)
        start_background(work, self._adding, f"worker {name} of a page")

    async def _set_up(self, name: str, cdp: Cdp, worker: bool) -> None:
        """Set up a target that the page has made, and let it begin where it waits for that."""
        try:
            if worker:
                await self.add(name, cdp)
            if worker and self._held:
                await cdp.send("Runtime.evaluate", {"expression": worker_script()})
            if self._held:
                await cdp.send("Runtime.runIfWaitingForDebugger")
        except BaseException:
            self.remove(name)  # also where its end came before its session was used
            raise
