"""Client of the judge's endpoint: asks one question, with cache, budget and retries.

Each question leaves a record of its cost and errors. Faults of an endpoint are never raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from envs.chat import Attempts, Budget, CallError, CallFailed, ChatEndpoint, Ledger
from envs.rewards.judge import payloads as wire
from envs.rewards.judge.cache import CachedReply, ReplyCache
from envs.rewards.judge.config import JudgeConfig, JudgeModels
from envs.rewards.judge.prompts import PROMPTS_VERSION, same_answer
from envs.rewards.judge.records import CallRecord
from envs.rewards.judge.verdict import MalformedReply
from envs.types import StorageError

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """Result of a question; ``value`` is ``None`` exactly if the record has an error."""

    value: T | None
    record: CallRecord


@dataclass(slots=True)
class _Tally(Attempts):
    """Attempts of one question, and what they cost so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    cached: bool = False

    def pay(self, reply: wire.Reply) -> None:
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.estimated = self.estimated or reply.estimated


class JudgeClient(ChatEndpoint):
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
        budget, pauses = Budget(config.limits, ledger), (config.backoff, config.max_backoff)
        limits = (config.timeout, config.retries, *pauses, config.concurrency)
        super().__init__("judge", config.base_url, config.api_key, budget, *limits)
        self.config = config
        self._cache = ReplyCache(config.cache) if config.cache is not None else None
        self._answered = False
        """True once the endpoint has answered a question, or its refusal has been logged."""

    async def ask(
        self, question: wire.Question, read: Callable[[str], T], keep: Callable[[CallRecord], None], vote: int = 0
    ) -> CallResult[T]:
        """Ask a question and return its answer, parsed by ``read``.

        Args:
            read: Parser of the reply. If it raises `MalformedReply`, the question is asked again.
            keep: Receiver of the record, called in any case, also when the call is cancelled.
            vote: Number of the vote, from 0; it is added to the seed.
        """
        prepared = await asyncio.to_thread(wire.prepare, question, self.config, vote, PROMPTS_VERSION)
        tally, began = _Tally(), time.monotonic()
        value: T | None = None
        try:
            value = await self._cached(prepared.key, read, tally)
            if value is None:
                value = await self._ask(prepared, read, tally)
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
                trouble=self.scrub(tally.trouble),
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

    async def _ask(self, prepared: wire.Prepared, read: Callable[[str], T], tally: _Tally) -> T | None:
        """Ask the endpoint and return the answer; ``None`` if there is none."""

        async def read_and_pay(data: bytes) -> tuple[wire.Reply, T]:
            reply: wire.Reply | None = None
            try:
                reply = wire.read_reply(data, prepared.request)
                return reply, read(reply.content)
            except MalformedReply as error:
                raise CallFailed(CallError.MALFORMED, str(error), again=True) from error
            finally:
                cost = reply or wire.cost_without_text(data, prepared.request)
                tally.pay(cost)
                await self._pay(cost.prompt_tokens + cost.completion_tokens, tally)

        try:
            reply, value = await self.complete(prepared.request, read_and_pay, tally, prepared.payload)
        except CallFailed as failure:
            self._report_refusal(failure)
            return None
        self._answered = True
        await self._store(prepared.key, reply, tally)
        return value

    def _report_refusal(self, failure: CallFailed) -> None:
        if failure.kind is CallError.REFUSED and not self._answered:
            self._answered = True
            log.error(
                "judge: %s refuses the first question, and will refuse all: %s; every episode that needs the judge abstains. Check base_url, "
                "models and api_key_env of the judge",
                self.config.base_url,
                self.scrub(str(failure)),
            )

    async def _pay(self, tokens: int, tally: _Tally) -> None:
        try:
            await self.budget.pay(tokens)
        except StorageError as error:
            # The answer is good; the next request will not be sent if this lasts.
            tally.trouble = str(error)
            log.warning("judge: %s", error)

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
