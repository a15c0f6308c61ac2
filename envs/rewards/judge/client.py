"""Client of the judge's endpoint: asks one question, with cache, budget and retries.

Each question leaves a record of its cost and errors. Faults of an endpoint are never raised.
"""

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
"""Maximum bytes of an answer. The longest replies of the largest max_tokens have 0.3 MB."""


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """Result of a question; ``value`` is ``None`` exactly if the record has an error."""

    value: T | None
    record: CallRecord


@dataclass(slots=True)
class _Tally:
    """Counts and last error of the requests of one question so far."""

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
        ConfigError: When entered: the variable of the key is not set.
        StorageError: When made: the folder of the cache cannot be made.
    """

    def __init__(self, config: JudgeConfig, ledger: Ledger | None = None) -> None:
        """
        Args:
            ledger: Shared count of the budget of several clients; ``None``: this client has its own
                budget.
        """
        self.config = config
        self.budget = Budget(config.limits, ledger)
        self._cache = ReplyCache(config.cache) if config.cache is not None else None
        self._slots = asyncio.Semaphore(config.concurrency)
        self._jitter = random.Random()
        self._http: httpx.AsyncClient | None = None
        self._key = ""
        self._refused_parameters: list[str] = []
        """Parameters that the endpoint has refused; they are no longer sent."""
        self._answered = False
        """True once the endpoint has answered a question, or its refusal has been logged."""

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
    ) -> CallResult[T]:
        """Ask a question and return its answer, parsed by ``read``.

        Args:
            read: Parser of the reply. If it raises `MalformedReply`, the question is asked again.
            keep: Receiver of the record, called in any case, also when the call is cancelled.
            vote: Number of the vote, from 0; it is added to the seed.
        """
        if self._http is None:
            raise RuntimeError("a JudgeClient is used inside of 'async with'")
        prepared = await asyncio.to_thread(wire.prepare, question, self.config, vote, PROMPTS_VERSION)
        tally, began = _Tally(), time.monotonic()
        value: T | None = None
        try:
            value = await self._cached(prepared.key, read, tally)
            if value is None:
                value = await self._ask_until_answered(prepared, read, tally)
        except asyncio.CancelledError:
            tally.error, tally.trouble = CallError.CANCELLED, "given up while it was under way"
            raise
        finally:
            record = CallRecord(
                purpose=question.purpose,
                subject=question.subject,
                model=prepared.request["model"],
                vote=vote,
                key=prepared.key,
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
        return CallResult(value, record)

    async def _cached(self, key: str, read: Callable[[str], T], tally: _Tally) -> T | None:
        reply = await asyncio.to_thread(self._cache.get, key) if self._cache is not None else None
        if reply is None:
            return None
        try:
            value = read(reply.content)
        except MalformedReply:  # stored by a version that read replies differently: ask again
            return None
        tally.cached = True
        return value

    async def _ask_until_answered(self, prepared: wire.Prepared, read: Callable[[str], T], tally: _Tally) -> T | None:
        """Ask until an answer comes, the retries are used up, or none can help.

        A parameter that the endpoint refuses is left out from then on; that does not count as a
        retry.
        """
        attempt = 0
        while True:
            try:
                reply, value = await self._request(prepared, read, tally)
            except wire.CallFailed as failure:
                tally.error, tally.trouble = failure.kind, str(failure)
                if failure.parameter is not None:
                    self._leave_out(failure.parameter)
                    continue
                if not failure.again or attempt == self.config.retries:
                    self._report_refusal(failure)
                    return None
                await asyncio.sleep(pause(self.config, attempt, failure.retry_after, self._jitter.random()))
                attempt += 1
            else:
                tally.error, self._answered = None, True
                await self._store(prepared.key, reply, tally)
                return value

    def _leave_out(self, name: str) -> None:
        if name not in self._refused_parameters:
            self._refused_parameters.append(name)
            log.warning("judge: %s refuses the parameter %s; it is left out from now on", self.config.base_url, name)

    def _report_refusal(self, failure: wire.CallFailed) -> None:
        if failure.kind is CallError.REFUSED and not self._answered:
            self._answered = True
            log.error(
                "judge: %s refuses the first question, and will refuse all: %s; every episode that needs the judge abstains. Check base_url, "
                "models and api_key_env of the judge",
                self.config.base_url,
                self._scrubbed(str(failure)),
            )

    async def _request(self, prepared: wire.Prepared, read: Callable[[str], T], tally: _Tally) -> tuple[wire.Reply, T]:
        async with self._slots:
            await self._claim()
            tally.requests += 1
            request, payload = wire.without_parameters(prepared.request, self._refused_parameters), prepared.payload
            if self._refused_parameters:
                payload = await asyncio.to_thread(lambda: json.dumps(request).encode())
            data = await self._post(payload, request)
        reply: wire.Reply | None = None
        try:
            reply = wire.read_reply(data, prepared.request)
            return reply, read(reply.content)
        except MalformedReply as error:
            raise wire.CallFailed(CallError.MALFORMED, str(error), again=True) from error
        finally:
            cost = reply or wire.cost_without_text(data, prepared.request)
            tally.pay(cost)
            await self._pay(cost.prompt_tokens + cost.completion_tokens, tally)

    async def _claim(self) -> None:
        try:
            refusal = await self.budget.claim()
        except StorageError as error:  # a request that cannot be counted is not sent
            raise wire.CallFailed(CallError.UNCOUNTED, str(error)) from error
        if refusal is not None:
            raise wire.CallFailed(CallError.BUDGET, refusal)

    async def _pay(self, tokens: int, tally: _Tally) -> None:
        try:
            await self.budget.pay(tokens)
        except StorageError as error:
            # The answer is good; the next request will not be sent if this lasts.
            tally.trouble = str(error)
            log.warning("judge: %s", error)

    async def _post(self, payload: bytes, request: dict[str, Any]) -> bytes:
        """Send a request and return the bytes of its answer, which has status 200."""
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
        text = data[:4000].decode("utf-8", "replace")
        wire.check_status(response, text, parameter=wire.refused_parameter(response.status_code, text, request))
        return bytes(data)

    async def _store(self, key: str, reply: wire.Reply, tally: _Tally) -> None:
        if self._cache is None:
            return
        kept = CachedReply(
            content=reply.content, prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens
        )
        try:
            await asyncio.to_thread(self._cache.put, key, kept)
        except OSError as error:
            # The answer is good; the record says that it must be paid for again.
            tally.trouble = f"not kept in the cache: {error}"
            log.warning("judge: %s", tally.trouble)

    def _scrubbed(self, text: str) -> str:
        """Replace the key in a text: endpoints quote a wrong key in their messages."""
        return text.replace(self._key, "[key]") if self._key else text


async def try_models(config: JudgeConfig, ledger: Ledger) -> list[CallRecord]:
    """Ask each model one short question and return the records of the calls.

    The question has no picture, is not cached and is sent at most twice.

    Raises:
        ConfigError: The variable of the key is not set.
    """
    records: list[CallRecord] = []
    changes = {"cache": None, "retries": min(config.retries, 1)}
    for name in dict.fromkeys(filter(None, config.models.model_dump().values())):
        alone = config.model_copy(update={**changes, "models": JudgeModels(default=name)})
        async with JudgeClient(alone, ledger) as client:
            client._answered = True  # the caller reports refusals
            await client.ask(same_answer("What is 1 + 1?", "2", "2"), str, records.append)
    return records


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


def pause(config: JudgeConfig, attempt: int, retry_after: float | None, draw: float) -> float:
    """Return the seconds before the next try, at most ``max_backoff``.

    They are ``backoff * 2**attempt`` with jitter (half to whole), or the seconds that the server
    asks for plus up to a tenth.

    Args:
        attempt: Number of the failed try, from 0.
        retry_after: Seconds that the server asks for; ``None`` if it does not.
        draw: Random number, uniform in [0, 1).
    """
    if retry_after is not None:
        return min(config.max_backoff, retry_after * (1 + 0.1 * draw))
    return min(config.max_backoff, config.backoff * 2.0**attempt) * (0.5 + 0.5 * draw)
