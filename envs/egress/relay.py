"""Relays one browser connection through the proxy, request by request.

Bodies are passed on as they arrive, in pieces of at most 256 KiB (asyncio's read size); when one
side cannot take more, the other is not read. So a response of any size costs the same memory, and a
stream of events is not held back. The connection to the site's server is kept for the next request
of the same connection, as browsers do, when the end of the last response was seen.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING, cast

from envs.background import log_failure
from envs.egress.addresses import Reason
from envs.egress.message import (
    HEAD_END,
    MAX_HEAD,
    BadMessage,
    Body,
    Counted,
    ProxyRequest,
    UntilClose,
    parse_request,
    parse_response,
    refusal,
    unreachable,
)
from envs.egress.resolve import Refused

if TYPE_CHECKING:
    from envs.egress.proxy import Listener

LINGER_SECONDS = 2.0
"""Seconds that a connection is kept after its last answer, so that a body still on its way does not
reset it before the answer is read. Browsers close it at once."""
RETRIED = frozenset({"GET", "HEAD"})
"""Methods that may use a kept connection: it may have been closed meanwhile, and only these can be
sent again."""


class State(Enum):
    """State of a connection."""

    HEAD = auto()
    """Waiting for a request."""
    CONNECTING = auto()
    """Waiting for the site's server."""
    RELAYING = auto()
    """Relaying: from a request's first byte to its response's last."""
    TUNNEL = auto()
    """Bytes both ways."""
    ENDING = auto()
    """Ending: further bytes are dropped."""


class Upstream(asyncio.Protocol):
    """The connection to a site's server, which belongs to one `Relay`."""

    def __init__(self, relay: Relay, key: tuple[str, int]) -> None:
        self.key = key
        """Host and port that it was opened for."""
        self.kept = False
        """It already served a request."""
        self.transport: asyncio.Transport | None = None
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def data_received(self, data: bytes) -> None:
        self._relay.from_server(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.server_lost(self, exc)

    def pause_writing(self) -> None:
        self._relay.read_browser(False)

    def resume_writing(self) -> None:
        self._relay.read_browser(True)


class Relay(asyncio.Protocol):
    """The browser's side of one connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._state = State.HEAD
        self._browser: asyncio.Transport | None = None
        self._server: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._request: ProxyRequest | None = None
        self._asked = b""
        """Bytes of the browser not yet passed on."""
        self._answered = b""
        """Bytes of a response's head that is not complete."""
        self._up: Body = Counted(0)
        self._down: Body | None = None
        """``None`` until the head of the response is read."""
        self._last = False
        """The response says that nothing follows it."""

    # --- the browser's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._browser = cast(asyncio.Transport, transport)
        self._listener.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = State.ENDING
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop_server()
        self._listener.closed(self)

    def pause_writing(self) -> None:
        if self._server and self._server.transport:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._server and self._server.transport:
            self._server.transport.resume_reading()

    def abort(self) -> None:
        """End at once, whatever is under way."""
        if self._browser is not None:
            self._browser.abort()

    def read_browser(self, on: bool) -> None:
        """Read on from the browser, or stop because the server takes no more."""
        if self._browser is not None:
            (self._browser.resume_reading if on else self._browser.pause_reading)()

    def data_received(self, data: bytes) -> None:
        if self._state is State.TUNNEL:
            self._to_server(data)
        elif self._state is State.RELAYING and not self._up.done:
            self._pass_up(data)
        elif self._state is not State.ENDING:
            self._asked += data
            if self._state is State.HEAD:
                self._next_request()
            elif len(self._asked) > MAX_HEAD:
                self.read_browser(False)

    def _next_request(self) -> None:
        head, end, rest = self._asked.partition(HEAD_END)
        if not end and len(head) <= MAX_HEAD:
            return
        request = None
        try:
            if len(head) > MAX_HEAD:
                raise BadMessage("the head is too long")
            request = parse_request(head)
            self._up = request.body()
            self._listener.check(request)
        except (BadMessage, Refused) as error:
            self._refuse(error.reason, request)
            return
        self._asked, self._request, self._down = rest, request, None
        if self._server is not None and (
            self._server.key != (request.host, request.port) or request.method not in RETRIED
        ):
            self._drop_server()
        if self._server is not None:
            self._begin(request)
        else:
            self._connect_soon(request)

    def _connect_soon(self, request: ProxyRequest) -> None:
        self._state = State.CONNECTING
        self._connecting = asyncio.ensure_future(self._connect(request))
        self._connecting.add_done_callback(log_failure)

    async def _connect(self, request: ProxyRequest) -> None:
        try:
            upstream = self._server = Upstream(self, (request.host, request.port))
            await self._listener.connect(request, upstream)
            if self._server is not upstream:
                raise ConnectionResetError("lost as soon as it was made")
            self._begin(request)
        except Refused as error:
            self._refuse(error.reason, request)
        except OSError:
            self._end_with(unreachable(request.host))
        except BaseException:
            self.abort()
            raise
        finally:
            self._connecting = None

    def _begin(self, request: ProxyRequest) -> None:
        asked, self._asked = self._asked, b""
        self.read_browser(True)
        if request.tunnel:
            self._state = State.TUNNEL
            self._to_browser(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self._to_server(asked)
        else:
            self._state = State.RELAYING
            self._to_server(self._listener.encode(request))
            self._pass_up(asked)

    def _pass_up(self, data: bytes) -> None:
        try:
            taken = self._up.take(data)
        except BadMessage:
            self.abort()
            return
        self._to_server(data[:taken])
        self._asked += data[taken:]

    def _to_browser(self, data: bytes) -> None:
        if data and self._browser is not None:
            self._browser.write(data)

    def _to_server(self, data: bytes) -> None:
        if data and self._server is not None and self._server.transport is not None:
            self._server.transport.write(data)

    # --- the server's side

    def from_server(self, server: Upstream, data: bytes) -> None:
        """Bytes of the site's server."""
        if server is not self._server:
            return
        if self._state is State.TUNNEL:
            self._to_browser(data)
        elif self._state is State.RELAYING:
            try:
                self._pass_down(data)
            except BadMessage:
                self._bad_answer()
        else:
            self._drop_server()  # bytes without a request: the last response did not end where it said

    def _pass_down(self, data: bytes) -> None:
        while self._down is None:
            head, end, rest = (self._answered + data).partition(HEAD_END)
            if len(head) > MAX_HEAD:
                raise BadMessage("the head is too long")
            if not end:
                self._answered = head
                return
            self._answered, data = b"", rest
            self._start_response(head)
        taken = self._down.take(data)
        self._to_browser(data[:taken])
        if self._down.done:
            self._finish(clean=taken == len(data))

    def _start_response(self, head: bytes) -> None:
        assert self._request is not None
        response = self._listener.date(parse_response(head))
        if response.status == 101:
            raise BadMessage("an upgrade that was not asked for")
        if response.status >= 200:
            self._down = response.body(self._request.method)
            self._last = not response.reusable or isinstance(self._down, UntilClose)
        self._to_browser(response.encode(close=response.status >= 200 and self._last))

    def _finish(self, *, clean: bool) -> None:
        """The response is complete: go on with the next request, where both connections can."""
        if self._last or not clean:
            self._drop_server()
        elif self._server is not None:
            self._server.kept = True
        if self._last or not self._up.done:
            self._linger()
            return
        self._state = State.HEAD
        self.read_browser(True)
        if self._asked:
            self._next_request()

    def server_lost(self, server: Upstream, error: Exception | None) -> None:
        """The connection to the server is gone."""
        if server is not self._server:
            return
        self._server = None
        if self._state is State.RELAYING:
            self._lost_while_relaying(server, error)
        elif self._state is State.TUNNEL:
            self.abort() if error else self._linger(0)

    def _lost_while_relaying(self, server: Upstream, error: Exception | None) -> None:
        if self._down is None and server.kept and not self._answered and self._request is not None:
            self._connect_soon(self._request)
        elif self._down is None:
            self._bad_answer()
        elif isinstance(self._down, UntilClose) and error is None:
            self._linger(0)
        else:
            self.abort()  # so that the browser sees a broken response, not a short one

    # --- the end

    def _refuse(self, reason: Reason, request: ProxyRequest | None) -> None:
        self._listener.count(reason, request)
        self._end_with(refusal(reason, request.host if request else "this"))

    def _bad_answer(self) -> None:
        if self._down is None and self._request is not None:
            self._end_with(unreachable(self._request.host))
        else:
            self.abort()

    def _end_with(self, answer: bytes) -> None:
        """The last answer of this connection."""
        self._drop_server()
        self._to_browser(answer)
        self._linger()

    def _linger(self, seconds: float = LINGER_SECONDS) -> None:
        """Wait for the browser to close, but not for long; what was written is still sent."""
        self._state = State.ENDING
        if self._browser is not None and not self._browser.is_closing():
            self.read_browser(True)
            asyncio.get_running_loop().call_later(seconds, self._browser.close)

    def _drop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None and server.transport is not None:
            server.transport.abort()
