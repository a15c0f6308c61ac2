"""Answers of an episode that can be forked: kept, and given again to the browsers of its forks.

A fork's browser repeats the episode's actions. Its requests get the answers that the episode got,
so that its pages, cookies and stores become equal whatever the server draws at random. From then on
the fork's own server answers, whose state is a copy. Where state is in the memory of the server, a
new server is asked the same requests, and must answer equally (`ask_again`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx

from envs.sites.mirror.har import RecordedExchange
from envs.sites.mirror.replay import MirroredEpisode, Miss, RecordedAnswers, RequestKey
from envs.types import SiteError

HOST = "instance"
"""Host in the addresses of kept requests."""
MAX_KEPT = 256 << 20
"""Bytes of one episode's answers. Pages of 1 MB, two hundred times, are below it."""
REST_SECONDS = 10.0
"""Real seconds that the answers under way may take before a copy of the state."""


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request of the browser."""

    method: str
    target: str
    """Path and query as they were sent."""
    headers: tuple[tuple[bytes, bytes], ...]
    """Headers as the server got them."""
    sent: bytes

    @property
    def sent_type(self) -> str:
        """Media type of the body; empty without one."""
        return next((value.decode("latin-1") for name, value in self.headers if name == b"content-type"), "")

    def for_instance(self, seconds: float) -> httpx.Request:
        """Return the request as an instance gets it, to be answered in this time."""
        url = httpx.URL(scheme="http", host=HOST, raw_path=self.target.encode("latin-1"))
        timeout = {"timeout": httpx.Timeout(seconds).as_dict()}
        return httpx.Request(self.method, url, headers=self.headers, content=self.sent, extensions=timeout)

    async def ask(self, place: Path, seconds: float) -> RecordedExchange:
        """Ask the server at a Unix socket, and return the request with its answer.

        Raises:
            httpx.TransportError: It does not answer.
        """
        async with httpx.AsyncHTTPTransport(uds=str(place), verify=False, trust_env=False) as transport:
            answer = await transport.handle_async_request(self.for_instance(seconds))
            body = b"".join([piece async for piece in answer.stream])  # type: ignore[union-attr]
            await answer.aclose()
        return self.answered(answer.status_code, answer.headers.raw, body)

    def answered(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> RecordedExchange:
        """Return the request with its answer."""
        texts = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        url = f"http://{HOST}{self.target}"
        return RecordedExchange(self.method, url, self.sent, self.sent_type, status, texts, body)


@dataclass(slots=True)
class KeptExchange:
    """A request, in the order of requests, and its answer."""

    asked: AskedRequest
    answer: RecordedExchange | None = None
    """``None`` while it is on its way, and if the server failed."""


class KeptAnswers:
    """The answers of one episode. Its methods are called in the thread of the front."""

    def __init__(self, before: tuple[KeptExchange, ...] = ()) -> None:
        """
        Args:
            before: Answers of the episode that this one is a fork of; given again until `go_on`.
        """
        self.missed: list[Miss] = []
        """Requests of a fork that the episode had not made."""
        self._exchanges = list(before)
        self.socket = ""
        """Path of a WebSocket that the episode's page opened; its messages are not kept."""
        answers = [one.answer for one in before if one.answer is not None]
        self._bytes = sum(len(one.body) + len(one.sent) for one in answers)
        self._recorded = RecordedAnswers(answers)
        self._unanswered = {self._key(one.asked) for one in before if one.answer is None}
        self._again: MirroredEpisode | None = MirroredEpisode(self._recorded) if before else None
        self._running = Counter[str]()
        self._held = False
        self._changed = asyncio.Condition()

    def again(self, request: AskedRequest) -> RecordedExchange | Miss | None:
        """Return the kept answer of a request; ``None`` if the server answers now."""
        if self._again is None:
            return None
        key = self._key(request)
        answer = self._again.answer(key)
        if isinstance(answer, Miss) and key not in self._unanswered:
            self.missed.append(answer)
        return answer

    async def begin(self, request: AskedRequest) -> KeptExchange:
        """Wait until a request may reach the server. `end` follows."""
        exchange = KeptExchange(request)
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held)
            self._running[request.target] += 1
            self._exchanges.append(exchange)
        return exchange

    async def end(self, exchange: KeptExchange, size: int) -> None:
        """Count a request as answered, with the bytes of its answer."""
        async with self._changed:
            self._running -= Counter([exchange.asked.target])
            self._bytes += len(exchange.asked.sent) + size
            if self._bytes > MAX_KEPT:
                self._exchanges.clear()
            self._changed.notify_all()

    async def hold(self) -> tuple[KeptExchange, ...]:
        """Hold new requests, wait for those under way, and return all answers. `release` follows.

        Raises:
            SiteError: A request does not end, or the answers are too many to be kept.
        """
        async with self._changed:
            self._held = True
            try:
                async with asyncio.timeout(REST_SECONDS):
                    await self._changed.wait_for(lambda: not self._running)
            except TimeoutError:
                raise SiteError(
                    f"{', '.join(self._running)} is not answered after {REST_SECONDS:g} s; an episode can be forked "
                    "while its server has no request to answer"
                ) from None
            if self.socket:
                raise SiteError(f"its page opened the WebSocket {self.socket}, whose messages are not kept")
            if self._bytes > MAX_KEPT:
                raise SiteError(f"its answers have more than {MAX_KEPT >> 20} MB; fork it earlier")
            return tuple(self._exchanges)

    async def release(self) -> None:
        """Let requests reach the server again."""
        async with self._changed:
            self._held = False
            self._changed.notify_all()

    def _key(self, request: AskedRequest) -> RequestKey:
        return self._recorded.key(request.method, f"http://{HOST}{request.target}", request.sent, request.sent_type)

    async def go_on(self) -> None:
        """Have the server answer from now on.

        Raises:
            SiteError: The browser made a request that the episode had not made.
        """
        self._again = None
        if self.missed:
            raise SiteError(f"its pages ask for something else when they are shown again: {self.missed[0]}")


async def ask_again(place: Path, exchanges: Iterable[KeptExchange]) -> None:
    """Ask a new server all requests that were answered, to give its memory the same state.

    Args:
        place: Socket of the server.

    Raises:
        SiteError: It answers one otherwise, or not at all.
    """
    for asked, wanted in ((exchange.asked, exchange.answer) for exchange in exchanges):
        if wanted is None:
            continue
        try:
            answer = await asked.ask(place, REST_SECONDS)
        except httpx.TransportError as error:
            raise SiteError(f"asked again, {asked.method} {asked.target} fails: {type(error).__name__}") from error
        if (answer.status, answer.body, _decisive(answer)) != (wanted.status, wanted.body, _decisive(wanted)):
            raise SiteError(
                f"asked again, {asked.method} {asked.target} is answered otherwise, so the memory of its server "
                "cannot be copied; python -m flows.sites check names what differs"
            )


def _decisive(answer: RecordedExchange) -> list[tuple[str, str]]:
    """Return the headers that change a browser's state."""
    return sorted((name.lower(), value) for name, value in answer.headers if name.lower() in ("location", "set-cookie"))
