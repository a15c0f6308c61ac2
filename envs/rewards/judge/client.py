"""One question to the endpoint: cache, budget, retries, and a record of what it took. Never raises for what an endpoint does."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from envs.egress.addresses import as_address, canonical_host, is_local_name
from envs.rewards.judge import payloads as wire
from envs.rewards.judge.cache import CachedReply, ReplyCache
from envs.rewards.judge.config import JudgeConfig, JudgeModels
from envs.rewards.judge.ledger import Budget, Ledger
from envs.rewards.judge.prompts import PROMPTS_VERSION, same_answer
from envs.rewards.judge.records import CallError, CallRecord
from envs.rewards.judge.verdict import MalformedReply
from envs.types import StorageError

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_ANSWER = 4 << 20
"""Bytes of an answer that are read. The longest replies of the largest max_tokens have 0.3 MB."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """What came of a question; ``value`` is ``None`` exactly if the record has an error."""

    value: T | None
    record: CallRecord


@dataclass(slots=True)
class _Tally:
    """What the requests of one question have come to so far."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    cached: bool = False
    error: CallError | None = None
    trouble: str = ""

    def pay(self, reply: wire.Reply) -> None:
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.estimated = self.estimated or reply.estimated


class JudgeClient:
    """Connections to the endpoint of a `JudgeConfig`; used as ``async with``.

    Raises:
        ConfigError: when entered, the variable of the key is not set.
        StorageError: when made, the cache's folder cannot be.
    """

    def __init__(self, config: JudgeConfig, ledger: Ledger | None = None) -> None:
        """
        Args:
            ledger: Where the budget is counted together with other clients; ``None``: it is this client's own.
        """
        self.config = config
        self.budget = Budget(config.limits, ledger)
        self._cache = ReplyCache(config.cache) if config.cache is not None else None
        self._slots = asyncio.Semaphore(config.concurrency)
        self._jitter = random.Random()
        self._http: httpx.AsyncClient | None = None
        self._key = ""
        self._left_out: list[str] = []
        """Parameters that the endpoint has refused."""
        self._answered = False
        """It has answered a question, or it was told that it refuses them."""

    async def __aenter__(self) -> Self:
        self._key = self.config.api_key() or ""
        self._http = endpoint_client(self.config.base_url, self._key, self.config.concurrency)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def ask(
        self, question: wire.Question, read: Callable[[str], T], keep: Callable[[CallRecord], None], vote: int = 0
    ) -> Asked[T]:
        """The answer as ``read`` understands it.

        Args:
            read: Raises `MalformedReply` for what it does not understand; the question is then asked again.
            keep: Gets the record in any case, also when the call is cancelled.
        """
        if self._http is None:
            raise RuntimeError("a JudgeClient is used inside of 'async with'")
        asked = await asyncio.to_thread(wire.prepare, question, self.config, vote, PROMPTS_VERSION)
        tally, began = _Tally(), time.monotonic()
        value: T | None = None
        try:
            value = await self._cached(asked.key, read, tally)
            if value is None:
                value = await self._fresh(asked, read, tally)
        except asyncio.CancelledError:
            tally.error, tally.trouble = CallError.CANCELLED, "given up while it was under way"
            raise
        finally:
            record = CallRecord(
                purpose=question.purpose,
                subject=question.subject,
                model=asked.request["model"],
                vote=vote,
                key=asked.key,
                seconds=time.monotonic() - began,
                requests=tally.requests,
                images=len(question.pictures),
                prompt_tokens=tally.prompt_tokens,
                completion_tokens=tally.completion_tokens,
                dollars=self.config.dollars(tally.prompt_tokens, tally.completion_tokens),
                estimated=tally.estimated,
                cached=tally.cached,
                error=tally.error,
                trouble=self._scrubbed(tally.trouble),
            )
            keep(record)
        return Asked(value, record)

    async def _cached(self, key: str, read: Callable[[str], T], tally: _Tally) -> T | None:
        found = await asyncio.to_thread(self._cache.get, key) if self._cache is not None else None
        if found is None:
            return None
        try:
            value = read(found.content)
        except MalformedReply:  # kept by a version that read replies otherwise: ask anew
            return None
        tally.cached = True
        return value

    async def _fresh(self, asked: wire.Prepared, read: Callable[[str], T], tally: _Tally) -> T | None:
        """Ask until there is an answer or no hope. A parameter that the endpoint refuses is left out from then on, which is no retry."""
        attempt = 0
        while True:
            try:
                reply, value = await self._once(asked, read, tally)
            except wire.CallFailed as failure:
                tally.error, tally.trouble = failure.kind, str(failure)
                if failure.parameter is not None:
                    self._leave_out(failure.parameter)
                    continue
                if not failure.again or attempt == self.config.retries:
                    self._say_refused(failure)
                    return None
                await asyncio.sleep(pause(self.config, attempt, failure.retry_after, self._jitter.random()))
                attempt += 1
            else:
                tally.error, self._answered = None, True
                await self._store(asked.key, reply, tally)
                return value

    def _leave_out(self, name: str) -> None:
        if name not in self._left_out:
            self._left_out.append(name)
            log.warning("judge: %s refuses the parameter %s; it is left out from now on", self.config.base_url, name)

    def _say_refused(self, failure: wire.CallFailed) -> None:
        if failure.kind is CallError.REFUSED and not self._answered:
            self._answered = True
            log.error(
                "judge: %s refuses the first question, and will refuse all: %s; every episode that needs the judge abstains. Check base_url, "
                "models and api_key_env of the judge",
                self.config.base_url,
                self._scrubbed(str(failure)),
            )

    async def _once(self, asked: wire.Prepared, read: Callable[[str], T], tally: _Tally) -> tuple[wire.Reply, T]:
        async with self._slots:
            await self._claim()
            tally.requests += 1
            request, payload = wire.without_parameters(asked.request, self._left_out), asked.payload
            if self._left_out:
                payload = await asyncio.to_thread(lambda: json.dumps(request).encode())
            data = await self._post(payload, request)
        reply: wire.Reply | None = None
        try:
            reply = wire.read_reply(data, asked.request)
            return reply, read(reply.content)
        except MalformedReply as error:
            raise wire.CallFailed(CallError.MALFORMED, str(error), again=True) from error
        finally:
            cost = reply or wire.cost_of_nothing(data, asked.request)
            tally.pay(cost)
            await self._pay(cost.prompt_tokens + cost.completion_tokens, tally)

    async def _claim(self) -> None:
        try:
            refusal = await self.budget.claim()
        except StorageError as error:  # what cannot be counted is not sent
            raise wire.CallFailed(CallError.UNCOUNTED, str(error)) from error
        if refusal is not None:
            raise wire.CallFailed(CallError.BUDGET, refusal)

    async def _pay(self, tokens: int, tally: _Tally) -> None:
        try:
            await self.budget.pay(tokens)
        except StorageError as error:  # the answer is good; the next request will not be sent if this lasts
            tally.trouble = str(error)
            log.warning("judge: %s", error)

    async def _post(self, payload: bytes, request: dict[str, Any]) -> bytes:
        """The answer's bytes, if its status is 200."""
        assert self._http is not None
        address = f"{self.config.base_url}/chat/completions"
        data = bytearray()
        try:
            async with (
                asyncio.timeout(self.config.timeout),
                self._http.stream("POST", address, content=payload) as response,
            ):
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > MAX_ANSWER:
                        raise wire.CallFailed(
                            CallError.MALFORMED, f"the answer has over {MAX_ANSWER} bytes", again=True
                        )
        except TimeoutError as error:
            message = f"no answer within {self.config.timeout:g} s"
            raise wire.CallFailed(CallError.TIMEOUT, message, again=True) from error
        except httpx.HTTPError as error:
            message = f"{type(error).__name__}: {error}"
            raise wire.CallFailed(CallError.UNREACHABLE, message, again=True) from error
        said = data[:4000].decode("utf-8", "replace")
        wire.check_status(response, said, parameter=wire.refused_parameter(response.status_code, said, request))
        return bytes(data)

    async def _store(self, key: str, reply: wire.Reply, tally: _Tally) -> None:
        if self._cache is None:
            return
        kept = CachedReply(
            content=reply.content, prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens
        )
        try:
            await asyncio.to_thread(self._cache.put, key, kept)
        except OSError as error:  # the answer is good; that it will be paid for again is told
            tally.trouble = f"not kept in the cache: {error}"
            log.warning("judge: %s", tally.trouble)

    def _scrubbed(self, text: str) -> str:
        """Endpoints quote a wrong key in their message."""
        return text.replace(self._key, "[key]") if self._key else text


async def try_models(config: JudgeConfig, ledger: Ledger) -> list[CallRecord]:
    """Ask each model one short question, without a picture or the cache, at most twice; what came of it. Raises as `JudgeClient`."""
    records: list[CallRecord] = []
    apart = {"cache": None, "retries": min(config.retries, 1)}
    for name in dict.fromkeys(filter(None, config.models.model_dump().values())):
        alone = config.model_copy(update={**apart, "models": JudgeModels(default=name)})
        async with JudgeClient(alone, ledger) as client:
            client._answered = True  # the caller says what is refused
            await client.ask(same_answer("What is 1 + 1?", "2", "2"), str, records.append)
    return records


def endpoint_client(address: str, key: str, connections: int | None = None) -> httpx.AsyncClient:
    """Connections to a chat-completions endpoint, for callers that give each whole request one deadline.

    Proxies of the environment are used, but for an endpoint of this machine.

    Args:
        key: Sent with each request; empty: none is.
        connections: Most at a time; ``None``: any number.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    host = canonical_host(urlsplit(address).hostname or "") or ""
    found = as_address(host)
    here = is_local_name(host) if found is None else found.is_loopback or found.is_unspecified
    limits = httpx.Limits(max_connections=connections)
    # httpx counts each read alone.
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=None, verify=_trusted(), trust_env=not here)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The known certificate authorities: 50 ms to load, so once for a process."""
    return httpx.create_ssl_context()


def pause(config: JudgeConfig, attempt: int, retry_after: float | None, draw: float) -> float:
    """Seconds before the next try: ``backoff * 2**attempt`` with jitter (half to whole), or what the server asks for
    plus up to a tenth; never more than ``max_backoff``.

    Args:
        attempt: 0 for the first try.
        draw: Uniform in [0, 1).
    """
    if retry_after is not None:
        return min(config.max_backoff, retry_after * (1 + 0.1 * draw))
    return min(config.max_backoff, config.backoff * 2.0**attempt) * (0.5 + 0.5 * draw)
