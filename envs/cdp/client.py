"""The DevTools protocol over one wire: a pipe or a WebSocket.

`CdpClient` numbers calls, hands answers back, and passes events on. When the wire goes away, for
whatever reason, every pending call fails at once with `ConnectionLost`; nothing waits for an answer
that cannot come. It never reconnects.

`CdpSession` is one target as the rest of ``envs`` sees it (`envs.cdp.Cdp`). It outlives its wire:
`Connection` binds it to the next one and plays back what was set up with `enable`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from websockets.exceptions import WebSocketException

from envs.cdp import CdpError, ConnectionLost
from envs.cdp.json_format import JSON
from envs.cdp.messages import ALREADY_IN_EFFECT, send_unless
from envs.cdp.socket import WebSocket
from envs.cdp.wire import MAX_MESSAGE, Wire, WireFormat

__all__ = ["CdpClient", "CdpError", "CdpSession", "ConnectionLost", "connect_client"]

logger = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], None]

ATTACHED_AGAIN = "Rollwright.attachedAgain"
"""Our own event on a session: it has a new wire, and what was enabled is enabled again."""


class _Call(NamedTuple):
    """A call that waits for its answer."""

    method: str
    session_id: str | None
    answer: asyncio.Future[dict[str, Any]]
    memory: dict[str, Any]
    """Memory of the session, for `WireFormat.read_result`."""

    def fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(ConnectionLost(f"{self.method}: {why}"))


class CdpClient:
    """One open wire, used in one event loop. Made by `connect_client` and
    `ChromiumProcess.client`."""

    def __init__(self, wire: Wire, form: WireFormat, numbers: Iterator[int] | None = None) -> None:
        """
        Args:
            numbers: Numbers of calls. Clients that use the same wire in turn share them, so that
                none gets another's answer.
        """
        self._wire = wire
        self._format = form
        self._calls: dict[int, _Call] = {}
        self._numbers = numbers or count(1)
        self.on_load: Callable[[bool], None] = lambda _busy: None
        """Called with True when the first call begins to wait, and with False when none is left."""
        self._on_event: Callable[[str, str | None, dict[str, Any]], None] = lambda *_: None
        self.heard_at = asyncio.get_running_loop().time()
        """Loop time of the last message."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when the wire is gone."""
        wire.on_message = self._read
        wire.ended.add_done_callback(self._on_end)

    @property
    def pending(self) -> int:
        """Number of calls without an answer yet."""
        return len(self._calls)

    def on_event(self, handler: Callable[[str, str | None, dict[str, Any]], None]) -> None:
        """Pass (method, session id, parameters) of every event to ``handler``."""
        self._on_event = handler

    async def call(
        self,
        method: str,
        params: dict[str, Any] | None,
        session_id: str | None,
        memory: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Call a method and return its result.

        Args:
            memory: State that the format keeps between answers of this session; empty at first.

        Raises:
            CdpError: The browser refused the call.
            ConnectionLost: The wire went away first.
        """
        if self.lost.done():
            raise ConnectionLost(f"{method}: {self.lost.result()}")
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session_id is not None:
            message["sessionId"] = session_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = _Call(method, session_id, answer, {} if memory is None else memory)
        if len(self._calls) == 1:
            self.on_load(True)
        try:
            self._wire.send(self._format.write(message))
            return await answer
        finally:
            del self._calls[number]
            if not self._calls:
                self.on_load(False)

    def end_session(self, session_id: str, why: str) -> None:
        """Fail the pending calls of a target that is gone."""
        for call in self._calls.values():
            if call.session_id == session_id:
                call.fail(why)

    def close(self, why: str = "the connection was closed") -> None:
        """Leave the wire without waiting for the other side's goodbye; pending calls fail."""
        self._fail(why)
        self._wire.ended.remove_done_callback(self._on_end)
        if self._wire.on_message == self._read:  # and no later client has taken it
            self._wire.abort()

    def _read(self, raw: bytes) -> None:
        try:
            message = self._format.read(raw)
        except (ValueError, RecursionError):
            # Messages are framed, so the next one can be read; this one may concern one page only.
            logger.exception("a message of the browser was left out: %s", raw[:200])
            return
        self.heard_at = asyncio.get_running_loop().time()
        if "id" in message:
            self._answer(message)
        else:
            self._pass_on(message)

    def _answer(self, message: dict[str, Any]) -> None:
        call = self._calls.get(message["id"])
        if call is None or call.answer.done():
            return  # the caller gave up
        if "error" in message:
            call.answer.set_exception(_error(call.method, message["error"]))
            return
        try:
            call.answer.set_result(self._format.read_result(call.method, message["result"], call.memory))
        except (ValueError, RecursionError) as error:
            call.answer.set_exception(CdpError(call.method, f"its answer cannot be read: {error}"))

    def _pass_on(self, message: dict[str, Any]) -> None:
        try:
            self._on_event(message["method"], message.get("sessionId"), message.get("params", {}))
        except Exception:
            # A handler's mistake must not stop the answers of every other page.
            logger.exception("a handler of %s failed", message["method"])

    def _on_end(self, ended: asyncio.Future[str]) -> None:
        self._fail(f"the connection broke: {ended.result()}")

    def _fail(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
        for call in self._calls.values():
            call.fail(why)


async def connect_client(url: str, timeout: float) -> CdpClient:
    """Connect to the browser at ``ws://…/devtools/browser/…``.

    Raises:
        ConnectionLost: The browser refused, or did not answer within ``timeout`` seconds.
    """
    try:
        async with asyncio.timeout(timeout):
            socket = await WebSocket.connect(url, max_size=MAX_MESSAGE)
    except (OSError, WebSocketException, TimeoutError) as error:
        raise ConnectionLost(f"no connection to {url}: {error or 'no answer in time'}") from error
    return CdpClient(socket, JSON)


def _error(method: str, error: dict[str, Any]) -> CdpError:
    return CdpError(method, str(error.get("message", "no message")), int(error.get("code", 0)))


class CdpSession:
    """One target, over whatever wire there is at the moment."""

    def __init__(self, target_id: str) -> None:
        self.target_id = target_id
        """Empty for the browser itself."""
        self._client: CdpClient | None = None
        self._session_id: str | None = None
        self._handlers: dict[str, list[Handler]] = {}
        self.enabled: list[tuple[str, dict[str, Any]]] = []
        """Methods and parameters that `play_back` repeats."""
        self.memory: dict[str, Any] = {}
        """State that the wire's format keeps between answers; may be cleared at any time."""
        self.on_fault: Callable[[str], None] = lambda _why: None
        """Called with the reason when a handler fails: what it should have noted is missing."""

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method of this target.

        Raises:
            CdpError: The browser refused the call.
            ConnectionLost: There is no connection, or it went away.
        """
        if self._client is None:
            raise ConnectionLost(f"{method}: there is no connection to the browser")
        return await self._client.call(method, params, self._session_id, self.memory)

    async def enable(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Like `send`, and repeated whenever the session gets a new wire.

        Used for settings that last as long as the session.
        """
        self.enabled.append((method, params or {}))
        return await self.send(method, params)

    def on(self, event: Any, f: Callable[..., Any]) -> None:
        """Call ``f`` with the parameters of each such event; also after a reconnect."""
        self._handlers.setdefault(str(event), []).append(f)

    def handle(self, event: str, params: dict[str, Any]) -> None:
        """Pass an event to its handlers."""
        for handler in self._handlers.get(event, ()):
            self.call_handler(handler, event, params)

    def call_handler(self, handler: Handler, event: str, params: dict[str, Any]) -> None:
        """Call a handler. Its error is logged and goes to `on_fault`; the wire is read on."""
        try:
            handler(params)
        except Exception as error:
            logger.exception("a handler of %s failed", event)
            self.on_fault(f"{event} of the browser could not be handled: {error!r}")

    @property
    def lost(self) -> asyncio.Future[str]:
        """Resolved with the reason when the present wire is gone.

        Raises:
            ConnectionLost: There is no wire.
        """
        if self._client is None:
            raise ConnectionLost("there is no connection to the browser")
        return self._client.lost

    def bind(self, client: CdpClient, session_id: str | None) -> None:
        """Use this wire from now on."""
        self._client, self._session_id = client, session_id

    def unbind(self) -> None:
        """Drop the wire; calls fail until the next `bind`."""
        self._client = self._session_id = None

    def end(self, why: str) -> None:
        """Fail pending and later calls: the target is gone."""
        if self._client is not None and self._session_id is not None:
            self._client.end_session(self._session_id, why)
        self.unbind()

    async def play_back(self) -> None:
        """Set up again, on a new wire, what `enable` had set up."""
        # The browser may not have noticed yet that the old connection is dead, whose session then
        # still holds an override.
        await asyncio.gather(*(send_unless(ALREADY_IN_EFFECT, self, *call) for call in self.enabled))


class RepeatedCalls:
    """A session whose calls are all repeated on a new wire: for setting a page up."""

    def __init__(self, session: CdpSession) -> None:
        self.send = session.enable
        self.on = session.on
