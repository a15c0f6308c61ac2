"""One address for all instances of a site: a cookie chooses the server of an episode.

An episode begins at ``/-/begin/<token>?to=/path``, which sets the cookie and redirects. The
instance does not see the cookie. A request without a known one gets 403, and so does one of an
episode that has ended. The answers of episodes that can be forked are kept (`KeptAnswers`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envs.egress.message import PROBLEM_HEADER
from envs.sites.app_server import AppServer
from envs.sites.base import VIEWPORT, HostAddress, Site, SiteEpisode
from envs.sites.mirror.har import RecordedExchange
from envs.sites.recipes.kept_answers import MAX_KEPT, AskedRequest, KeptAnswers

COOKIE = "rollwright-episode"
BEGIN = "/-/begin/"
ANSWER_SECONDS = 120.0
"""Real seconds for one answer of an instance; the browser's own deadlines are shorter."""
_OF_ONE_CONNECTION = set(b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade".split())
_OURS = PROBLEM_HEADER.encode()
_COOKIE = f"{COOKIE}=".encode()
MAX_PROBLEM = 300
"""Characters of the header that says why a server fails."""


async def _unknown(token: str) -> str:
    return ""


class Front:
    """The ASGI application of the one address.

    ``instances`` holds what answers an episode by its token: the socket of a server, or an ASGI
    application in this process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.instances: dict[str, Path | ASGIApp] = {}
        self.kept: dict[str, KeptAnswers] = {}
        """Answers of episodes that can be forked, by token."""
        self.problem_of: Callable[[str], Awaitable[str]] = _unknown
        """Returns why the server of a token fails; empty if it cannot be seen."""

    def admit(self, place: Path | ASGIApp) -> str:
        """Have this answer a new episode, and return the episode's token."""
        token = secrets.token_urlsafe(24)
        self.instances[token] = place
        return token

    def entrance(self, token: str, path: str) -> str:
        """Return the path at which a browser enters an episode that begins at ``path``."""
        return f"{BEGIN}{token}?to={quote(path)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            from envs.sites.recipes.sockets import relay_socket  # who has no WebSocket does not wait for it

            token, headers = _split_headers(scope["headers"])
            if (record := self.kept.get(token)) is not None:
                record.socket = scope["path"]
            await relay_socket(self.instances.get(token), {**scope, "headers": headers}, receive, send)
        elif scope["type"] == "http":
            begins = scope["path"].startswith(BEGIN)
            answer = self._begin(Request(scope)) if begins else await self._refused_or_led(scope, receive, send)
            if answer is not None:
                await answer(scope, receive, send)

    def _begin(self, request: Request) -> Response:
        token, to = request.url.path.removeprefix(BEGIN), request.query_params.get("to", "/")
        if token not in self.instances or not to.startswith("/") or to.startswith("//"):
            return PlainTextResponse("no such episode", status_code=403)
        answer = RedirectResponse(
            to, status_code=303, headers={"Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
        )
        answer.set_cookie(COOKIE, token, httponly=True, samesite="lax")
        return answer

    async def _refused_or_led(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Lead a request to its instance; return an answer of our own if that is not possible."""
        token, headers = _split_headers(scope["headers"])
        place = self.instances.get(token)
        if place is None:
            return PlainTextResponse("no episode", status_code=403)
        if not isinstance(place, Path):
            await place({**scope, "headers": headers}, receive, send)
            return None
        body = await Request(scope, receive).body()
        asked = AskedRequest(scope["method"], target_of(scope).decode("latin-1"), tuple(headers), body)
        sent = asked.for_instance(ANSWER_SECONDS)
        record = self.kept.get(token)
        if record is None:
            return await self._led(token, place, sent, receive, send)
        again = record.again(asked)
        if isinstance(again, RecordedExchange):
            return _again(again)
        if again is not None:
            return PlainTextResponse(str(again), status_code=404)
        answer = _ReadAnswer(send)
        exchange = await record.begin(asked)
        try:
            ours = await self._led(token, place, sent, receive, answer, begun=answer.begun)
            if answer.whole and answer.size <= MAX_KEPT:
                exchange.answer = asked.answered(answer.status, answer.headers, b"".join(answer.pieces))
            return ours
        finally:
            await record.end(exchange, answer.size)

    async def _led(
        self,
        token: str,
        place: Path,
        sent: httpx.Request,
        receive: Receive,
        send: Send,
        *,
        begun: asyncio.Future[None] | None = None,
    ) -> Response | None:
        """Send the answer of an instance; return one of our own if it has none.

        A browser may leave before it is answered. The server of an episode that can be forked then
        still comes to its answer, since what it writes until then is state of the episode.

        Args:
            begun: Done once the answer begins, if that is to be waited for in any case.
        """
        async with httpx.AsyncHTTPTransport(uds=str(place), verify=False, trust_env=False) as transport:
            exchange = asyncio.ensure_future(self._exchange(token, transport, sent, send))
            gone = asyncio.ensure_future(receive())  # a stream of events has no end of its own
            try:
                await asyncio.wait((exchange, gone), return_when=asyncio.FIRST_COMPLETED)
                if begun is not None:
                    await asyncio.wait((exchange, begun), return_when=asyncio.FIRST_COMPLETED)
                return exchange.result() if exchange.done() else None
            finally:
                for task in (exchange, gone):
                    task.cancel()
                await asyncio.gather(exchange, gone, return_exceptions=True)

    async def _exchange(
        self, token: str, transport: httpx.AsyncHTTPTransport, sent: httpx.Request, send: Send
    ) -> Response | None:
        """Send a request to an instance and pass its answer on, as it comes."""
        begun = False
        try:
            answer = await transport.handle_async_request(sent)
            kept = [(name.lower(), value) for name, value in answer.headers.raw]
            kept = [header for header in kept if header[0] not in _OF_ONE_CONNECTION | {_OURS}]
            if answer.status_code >= 500 and (problem := await self._problem(token)):
                kept.append((_OURS, problem.encode("latin-1", "replace")))
            begun = True
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            assert isinstance(answer.stream, httpx.AsyncByteStream)
            async for piece in answer.stream:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await answer.aclose()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except httpx.TransportError as error:
            if begun:  # a cut answer must not look whole
                raise
            why = await self._problem(token) or f"the server of this episode failed: {type(error).__name__}"
            return PlainTextResponse(why, status_code=502, headers={PROBLEM_HEADER: why})
        return None

    async def _problem(self, token: str) -> str:
        """Return the reason why a server fails, in one line that a header can hold."""
        why = "the episode is over" if token not in self.instances else await self.problem_of(token)
        return " ".join(why.split())[:MAX_PROBLEM].encode("latin-1", "replace").decode("latin-1")


class FrontedSite(Site):
    """A `Site` whose episodes have one address of loopback, that of a front."""

    def __init__(self, name: str, viewport: tuple[int, int] = VIEWPORT) -> None:
        self.name = name
        self.viewport = viewport
        self._front = Front(name)
        self._server = AppServer(self._front, name)

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``, the same for all episodes."""
        return self._server.origin

    @property
    def instances(self) -> int:
        """Number of episodes that are answered, with instances that wait for one."""
        return len(self._front.instances)

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def close(self) -> None:
        """Stop serving, and forget all episodes."""
        await self._server.close()
        self._front.instances.clear()


def address_at(origin: str, token: str) -> HostAddress:
    """Return the address of a front's episode as a host of a group."""
    return HostAddress(urlsplit(origin).port or 80, f"{COOKIE}={token}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontedEpisode(SiteEpisode):
    """An episode that an application in this process answers, at the address of a front."""

    front: Front
    token: str

    async def close(self) -> None:
        """Answer it no longer."""
        self.front.instances.pop(self.token, None)


class _ReadAnswer:
    """Sends an answer on, and keeps what was sent."""

    def __init__(self, send: Send) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.size = 0
        """Bytes of the answer so far; beyond `MAX_KEPT` they are not kept."""
        self.whole = False
        """``True`` once the answer has come to its end."""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the answer begins."""
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun.set_result(None)
            self.status, self.headers = message["status"], message["headers"]
        else:
            self.size += len(message["body"])
            if self.size <= MAX_KEPT:
                self.pieces.append(message["body"])
        await self._send(message)
        self.whole = message.get("more_body") is False


def _again(exchange: RecordedExchange) -> Response:
    """Return a kept answer, as it was sent."""
    answer = Response(exchange.body, exchange.status)
    answer.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in exchange.headers]
    return answer


def target_of(scope: Scope) -> bytes:
    """Return path and query of a request as they were sent."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    return path + (b"?" + scope["query_string"] if scope["query_string"] else b"")


def _split_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, list[tuple[bytes, bytes]]]:
    """Return the token of a request, and the headers that its instance gets."""
    token, kept, cookies = "", list[tuple[bytes, bytes]](), list[bytes]()
    for name, value in headers:
        if name == b"cookie":
            for pair in filter(None, map(bytes.strip, value.split(b";"))):
                if pair.startswith(_COOKIE):
                    token = pair.removeprefix(_COOKIE).decode("latin-1")
                else:
                    cookies.append(pair)
        elif name not in _OF_ONE_CONNECTION:
            kept.append((name, value))
    return token, [*kept, (b"cookie", b"; ".join(cookies))] if cookies else kept
