"""The judge: one object for a run, one call of `Judge.judge` for an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from envs.chat import DamagedLedger, Ledger
from envs.rewards.judge.client import JudgeClient
from envs.rewards.judge.config import JudgeConfig, JudgeStyle
from envs.rewards.judge.decision import abstain, rule
from envs.rewards.judge.payloads import Question
from envs.rewards.judge.prompts import picture_answer, same_answer
from envs.rewards.judge.records import CallRecord, JudgeCase, Judgement
from envs.rewards.judge.votes import JudgeCalls
from envs.rewards.judge.webgym import webgym
from envs.rewards.judge.webjudge import webjudge, webvoyager

STYLES: dict[JudgeStyle, Callable[[JudgeCalls], Awaitable[Judgement]]] = {
    JudgeStyle.WEBGYM: webgym,
    JudgeStyle.WEBJUDGE: webjudge,
    JudgeStyle.WEBVOYAGER: webvoyager,
}


class Judge:
    """Judges episodes through one endpoint, many at once, within its configured limits.

    ::

        models = JudgeModels(default="qwen")
        config = JudgeConfig(base_url="http://localhost:8000/v1", models=models)
        async with Judge(config) as judge:
            judgement = await judge.judge(episode)

    Raises:
        ConfigError: When entered: the variable of the key is not set.
        StorageError: When made: the folder of the cache cannot be made.
    """

    def __init__(self, config: JudgeConfig, ledger: Ledger | None = None) -> None:
        """
        Args:
            ledger: Shared count of the budget of all judges of the run; ``None``: this judge has
                its own budget.
        """
        self.config = config
        self._client = JudgeClient(config, ledger)
        self._places = asyncio.Semaphore(config.concurrency)
        self.turns = asyncio.Semaphore(config.concurrency)
        """Semaphore that a caller with its own deadline holds while its episode is judged.

        There are as many turns as places in `judge`, so no part of that deadline is spent waiting
        for a place. `judge` itself does not take a turn.
        """

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._client.__aexit__()

    @property
    def requests(self) -> int:
        """Number of requests that this judge has sent, retries included."""
        return self._client.budget.requests

    @property
    def tokens(self) -> int:
        """Number of tokens that this judge has used."""
        return self._client.budget.tokens

    @property
    def damage(self) -> DamagedLedger | None:
        """Error of a damaged ledger, as of the last request; ``None`` without one.

        With a damaged ledger this judge abstains from everything until somebody repairs it.
        """
        return self._client.budget.damage

    async def judge(self, episode: JudgeCase, calls: list[CallRecord] | None = None) -> Judgement:
        """Judge an episode as passed, failed or abstained.

        Faults of an endpoint, a page or a policy are never raised; a cancellation is.

        Args:
            calls: List to which each finished call is added, for a caller that may stop waiting.
        """
        grading = JudgeCalls(self._client, episode, calls if calls is not None else [])
        if not episode.steps:
            return abstain(grading, "the episode has no screenshots")
        async with self._places:  # the deadline begins when the episode has a place
            try:
                async with asyncio.timeout(self.config.deadline):
                    return await STYLES[self.config.style](grading)
            except TimeoutError:
                return abstain(grading, f"not judged within {self.config.deadline:g} s (deadline)")

    async def compare(self, question: str, reference: str, answer: str, *, unachievable: bool = False) -> Judgement:
        """Judge if an answer means the same as a reference, for WebArena's ``fuzzy_match``.

        Like `judge`, it raises nothing but a cancellation.

        Args:
            unachievable: True if the reference is the reason why the task cannot be done.
        """
        case = JudgeCase(instruction=question, steps=(), answer=answer)
        return await self._decide(case, same_answer(question, reference, answer, unachievable=unachievable))

    async def ask_pictures(self, question: str, answer: str, pictures: Sequence[bytes]) -> Judgement:
        """Judge if an answer to a question is right for one of the pictures (VisualWebArena).

        Like `judge`, it raises nothing but a cancellation.

        Args:
            pictures: JPEG, PNG or WebP files.
        """
        case = JudgeCase(instruction=question, steps=(), answer=answer)
        return await self._decide(case, picture_answer(question, answer, pictures))

    async def _decide(self, case: JudgeCase, question: Question) -> Judgement:
        """Put one question to the vote."""
        grading = JudgeCalls(self._client, case)
        async with self._places:
            try:
                async with asyncio.timeout(self.config.deadline):
                    return rule(grading, [await grading.decide(question)])
            except TimeoutError:
                return abstain(grading, f"not judged within {self.config.deadline:g} s (deadline)")
