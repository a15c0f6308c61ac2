"""Sends requests to an endpoint of OpenAI's API, with retries, a rate and a budget."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from envs.chat.failures import CallError, CallFailed, refused_parameter, status_failure, without_parameters
from envs.chat.ledger import Budget
from envs.egress.addresses import as_address, canonical_host, is_local_name
from envs.types import StorageError

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_ANSWER = 4 << 20
"""Maximum bytes of an answer. The longest replies of the largest max_tokens have 0.3 MB."""


@dataclass(slots=True)
class Attempts:
    """Count and last failure of the requests of one question so far."""

    requests: int = 0
    """Number of requests that were sent."""
    error: CallError | None = None
    """Kind of the last request's failure; ``None`` if it succeeded."""
    trouble: str = ""
    """Message of the last failure, also when a retry succeeded."""


@dataclass(eq=False)
class ChatEndpoint:
    """Connections to an endpoint; used as ``async with``."""

    owner: str
    """Name of the user of the endpoint (judge, teacher), for the log."""
    base_url: str
    """Address up to and with ``/v1``."""
    read_key: Callable[[], str | None]
    """Reader of the key, called when entered; it gives nothing if there is no key."""
    budget: Budget
    """Budget in which each request is counted before it is sent."""
    timeout: float
    """Seconds for one request."""
    retries: int
    first_pause: float = 1.0
    """Seconds before the first retry; each further pause is twice as long."""
    max_pause: float = 60.0
    concurrency: int | None = None
    """Maximum number of requests at a time; ``None`` for no limit."""
    path: str = "/chat/completions"
    """Route below ``base_url``."""
    per_minute: float | None = None
    """Maximum rate of requests, which are then sent at equal distances; ``None`` for no limit."""

    def __post_init__(self) -> None:
        self._slots = nullcontext() if self.concurrency is None else asyncio.Semaphore(self.concurrency)
        self._key = ""
        self._http: httpx.AsyncClient | None = None
        self._next = 0.0
        """Time of the loop's clock from which the next request may be sent."""
        self._refused_parameters: list[str] = []
        """Parameters that the endpoint has refused; they are no longer sent."""

    async def __aenter__(self) -> Self:
        self._key = self.read_key() or ""
        self._http = endpoint_client(self.base_url, self._key, self.concurrency)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def complete(
        self,
        request: dict[str, Any],
        read: Callable[[bytes], Awaitable[T]],
        attempts: Attempts,
        payload: bytes | None = None,
    ) -> T:
        """Send a request until an answer can be read, the retries are used up, or none can help.

        A parameter that the endpoint refuses is left out from then on; that does not count as a
        retry.

        Args:
            read: Parser of an answer of status 200. It may raise `CallFailed`.
            attempts: Receives the count of requests and the last failure.
            payload: Bytes of the request, if they are known.

        Raises:
            CallFailed: There is no usable answer.
        """
        if self._http is None:
            raise RuntimeError(f"a {type(self).__name__} is used inside of 'async with'")
        attempt = 0
        while True:
            try:
                value = await read(await self._send(request, payload, attempts))
            except CallFailed as failure:
                attempts.error, attempts.trouble = failure.kind, str(failure)
                if failure.parameter is not None:
                    self._leave_out(failure.parameter)
                    continue
                if not failure.again or attempt == self.retries:
                    raise
                await asyncio.sleep(
                    pause(attempt, failure.retry_after, random.random(), self.first_pause, self.max_pause)
                )
                attempt += 1
            else:
                attempts.error = None
                return value

    def scrub(self, text: str) -> str:
        """Replace the key in a text: endpoints quote a wrong key in their messages."""
        return text.replace(self._key, "[key]") if self._key else text

    def _leave_out(self, name: str) -> None:
        if name not in self._refused_parameters:
            self._refused_parameters.append(name)
            log.warning("%s: %s refuses the parameter %s; it is left out from now on", self.owner, self.base_url, name)

    async def _send(self, request: dict[str, Any], payload: bytes | None, attempts: Attempts) -> bytes:
        """Send a request once it is counted, and return its answer."""
        async with self._slots:
            await self._wait_for_turn()
            await self._claim()
            attempts.requests += 1
            request = without_parameters(request, self._refused_parameters)
            if payload is None or self._refused_parameters:
                payload = await asyncio.to_thread(lambda: json.dumps(request).encode())
            return await self._post(payload, request)

    async def _wait_for_turn(self) -> None:
        """Wait until the rate allows another request."""
        if self.per_minute is None:
            return
        now = asyncio.get_running_loop().time()
        turn = max(now, self._next)
        self._next = turn + 60 / self.per_minute
        await asyncio.sleep(turn - now)

    async def _claim(self) -> None:
        try:
            refusal = await self.budget.claim()
        except StorageError as error:  # a request that cannot be counted is not sent
            raise CallFailed(CallError.UNCOUNTED, str(error)) from error
        if refusal is not None:
            raise CallFailed(CallError.BUDGET, refusal)

    async def _post(self, payload: bytes, request: dict[str, Any]) -> bytes:
        """Send a request and return the bytes of its answer, which has status 200."""
        assert self._http is not None
        data = bytearray()
        try:
            sending = self._http.stream("POST", f"{self.base_url}{self.path}", content=payload)
            async with asyncio.timeout(self.timeout), sending as response:
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > MAX_ANSWER:
                        raise CallFailed(CallError.MALFORMED, f"the answer has over {MAX_ANSWER} bytes", again=True)
        except TimeoutError as error:
            raise CallFailed(CallError.TIMEOUT, f"no answer within {self.timeout:g} s", again=True) from error
        except httpx.HTTPError as error:
            raise CallFailed(CallError.UNREACHABLE, f"{type(error).__name__}: {error}", again=True) from error
        if (status := response.status_code) != 200:
            text = data[:4000].decode("utf-8", "replace")
            parameter = refused_parameter(status, text, request)
            failure = status_failure(status, text, response.headers.get("retry-after"))
            failure.status, failure.parameter = status, parameter
            raise failure
        return bytes(data)


def endpoint_client(address: str, key: str, connections: int | None = None) -> httpx.AsyncClient:
    """Return an HTTP client of a chat-completions endpoint, without timeouts of its own.

    Callers set one deadline for each whole request. Proxies of the environment are used, except for
    an endpoint on this machine.

    Args:
        key: Key that is sent with each request; empty for none.
        connections: Maximum number of connections at a time; ``None`` for no limit.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    host = canonical_host(urlsplit(address).hostname or "") or ""
    ip = as_address(host)
    here = is_local_name(host) if ip is None else ip.is_loopback or ip.is_unspecified
    limits = httpx.Limits(max_connections=connections)
    # No timeout here: httpx applies it to each read alone, not to the whole request.
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=None, verify=_trusted(), trust_env=not here)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return the TLS context, made once per process because it takes 50 ms."""
    return httpx.create_ssl_context()


def pause(attempt: int, retry_after: float | None, draw: float, first: float, longest: float) -> float:
    """Return the seconds before the next try, at most ``longest``.

    They are ``first * 2**attempt`` with jitter (half to whole), or the seconds that the server asks
    for plus up to a tenth.

    Args:
        attempt: Number of the failed try, from 0.
        retry_after: Seconds that the server asks for; ``None`` if it does not.
        draw: Random number, uniform in [0, 1).
    """
    if retry_after is not None:
        return min(longest, retry_after * (1 + 0.1 * draw))
    return min(longest, first * 2.0**attempt) * (0.5 + 0.5 * draw)
