"""Egress proxy: one listener with its own allow list per lease, in one thread.

The thread has an event loop of its own, so that a busy loop of the caller does not delay pages. A
listener costs one socket, so a lease gets its own, and what its pages were refused is counted
there. Nothing of a request but host, port and method is kept, and nothing of it is logged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from envs.cancel_scope import finish_shielded
from envs.egress.addresses import MAX_HOST, Reason, canonical_host
from envs.egress.allow import AllowList
from envs.egress.message import ProxyRequest, ServerResponse
from envs.egress.relay import Relay, Upstream
from envs.egress.resolve import LOOPBACK, Refused, resolve_allowed
from envs.egress.secrets import SiteSecrets
from envs.loop_thread import LoopThread
from envs.types import BrowserError
from envs.types.paths import AnyPath

T = TypeVar("T")

CONNECT_SECONDS = 10.0
"""Real seconds for resolving a name and connecting. A direct load gives up after minutes; a step's
deadline is far below."""
BACKLOG = 128
"""Connections that wait to be accepted. A context opens 32 at most to a proxy."""
MAX_HOSTS = 256
"""Different (reason, host) pairs that are counted apart; a page may invent any number of names. The
rest counts under `OTHERS`."""
OTHERS = "(others)"


class Listener:
    """One address of the proxy with an allow list. Made by `EgressProxy.open`."""

    def __init__(self, proxy: EgressProxy, allow: AllowList) -> None:
        self.allow = allow
        self.address = ""
        """``http://127.0.0.1:<port>``, for Chromium's ``proxyServer``."""
        self.now: Callable[[], float] = float
        """The pages' time in seconds since 1970, which answers of servers then have; 0 leaves them
        as they are."""
        self.routes: Mapping[tuple[str, int], AnyPath] = {}
        """Unix sockets that tunnels to a host and port lead to, instead of the network."""
        self.requests = 0
        """Requests and tunnels that were let through."""
        self._proxy = proxy
        self._refused: Counter[tuple[Reason, str]] = Counter()
        self._relays: set[Relay] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None

    @property
    def refused(self) -> dict[tuple[Reason, str], int]:
        """Refusals so far by (reason, host)."""
        return dict(self._refused)

    async def close(self) -> None:
        """Stop listening and end the connections. Closing twice is closing once."""
        await self._proxy.run(self.close_in_thread())

    # --- in the proxy's thread

    async def listen(self) -> None:
        """Bind a free port of loopback."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Relay(self), LOOPBACK[0], 0, backlog=BACKLOG)
        self.address = f"http://{LOOPBACK[0]}:{self._server.sockets[0].getsockname()[1]}"
        self._proxy.listeners.add(self)

    async def close_in_thread(self) -> None:
        """`close`, inside of the thread."""
        server, self._server = self._server, None
        if server is None:
            return
        for accepting in server.sockets:
            asyncio.get_running_loop().remove_reader(accepting)
        for _ in range(2):  # asyncio of Python 3.11 loses what it has accepted where its server closes first
            await asyncio.sleep(0)
        server.close()
        for relay in list(self._relays):
            relay.abort()
        await self._empty.wait()
        self._proxy.listeners.discard(self)

    def opened(self, relay: Relay) -> None:
        """A connection began."""
        self._relays.add(relay)
        self._empty.clear()
        if self._server is None:
            relay.abort()  # accepted while it was being closed

    def closed(self, relay: Relay) -> None:
        """A connection ended."""
        self._relays.discard(relay)
        if not self._relays:
            self._empty.set()

    def check(self, request: ProxyRequest) -> None:
        """Raises `Refused` for what the request itself shows."""
        reason = self.allow.refuse(request.host, request.port, None if request.tunnel else "http")
        if reason is None and request.header("service-worker") == "script":
            reason = Reason.SERVICE_WORKER
        if reason is not None:
            raise Refused(reason)
        self.requests += 1

    def encode(self, request: ProxyRequest) -> bytes:
        """The request's head as the site's server gets it."""
        host = canonical_host(request.host) or request.host
        return request.encode(self._proxy.secrets.add_to(host, request.port, request.headers))

    def date(self, response: ServerResponse) -> ServerResponse:
        """The response as the browser gets it, by the pages' time."""
        now = self.now()
        return response.dated(now) if now else response

    async def connect(self, request: ProxyRequest, upstream: Upstream) -> None:
        """Connect to where the request goes: to the address that was checked, never to the name.

        Raises:
            Refused: what its name resolves to may not be reached. OSError: nothing answers.
        """
        loop = asyncio.get_running_loop()
        place = self.routes.get((canonical_host(request.host) or "", request.port)) if request.tunnel else None
        if place is not None:
            await loop.create_unix_connection(lambda: upstream, str(place))
            return
        failed: OSError = ConnectionRefusedError(f"{request.host} has no address")
        async with asyncio.timeout(CONNECT_SECONDS):
            for address in await resolve_allowed(request.host, self.allow):
                try:
                    await loop.create_connection(lambda: upstream, str(address), request.port)
                    return
                except OSError as error:
                    failed = error
        raise failed

    def count(self, reason: Reason, request: ProxyRequest | None) -> None:
        """Count a refusal; ``None`` for a request that could not be read."""
        host = request.host[:MAX_HOST] if request else ""
        known = (reason, host) in self._refused or len(self._refused) < MAX_HOSTS
        self._refused[reason, host if known else OTHERS] += 1
        self._proxy.refusals[reason] += 1


class EgressProxy:
    """``async with EgressProxy() as proxy: listener = await
    proxy.open(AllowList.of(site.origin))``.

    Whoever can connect to loopback on this machine can use a listener, with its secrets: the
    machine's own processes are trusted, pages are not (they reach a listener only through a
    listener, which does not let them).
    """

    def __init__(self, *, secrets: SiteSecrets | None = None) -> None:
        self.secrets = secrets or SiteSecrets()
        self.refusals: Counter[Reason] = Counter()
        """Refusals by reason, of closed listeners too."""
        self.listeners: set[Listener] = set()
        """The open ones; changed in the proxy's thread."""
        self._thread = LoopThread("egress-proxy")

    async def __aenter__(self) -> EgressProxy:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the thread. Starting twice is one start."""
        self._thread.start()

    async def open(self, allow: AllowList) -> Listener:
        """A listener that lets through what ``allow`` names; its ``address`` is for Chromium.

        Raises:
            BrowserError: the proxy is not started.
        """
        listener = Listener(self, allow)
        try:
            await finish_shielded(self.run(listener.listen()))
        except asyncio.CancelledError:
            await finish_shielded(listener.close())  # the caller never gets it
            raise
        return listener

    async def close(self) -> None:
        """Close every listener, end every connection and the thread."""
        for listener in list(self.listeners):
            await listener.close()
        await self._thread.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` in the proxy's thread."""
        if not self._thread.running:
            work.close()
            raise BrowserError("the egress proxy is not running; call start() first")
        return await self._thread.run(work)
