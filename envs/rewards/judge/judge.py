"""The judge: one object for a run, one call for an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from envs.rewards.judge.client import JudgeClient
from envs.rewards.judge.config import JudgeConfig, JudgeStyle
from envs.rewards.judge.decision import abstain, rule
from envs.rewards.judge.ledger import DamagedLedger, Ledger
from envs.rewards.judge.prompts import same_answer
from envs.rewards.judge.records import CallRecord, JudgeEpisode, Judgement
from envs.rewards.judge.votes import Grading
from envs.rewards.judge.webgym import webgym
from envs.rewards.judge.webjudge import webjudge, webvoyager

STYLES: dict[JudgeStyle, Callable[[Grading], Awaitable[Judgement]]] = {
    JudgeStyle.WEBGYM: webgym,
    JudgeStyle.WEBJUDGE: webjudge,
    JudgeStyle.WEBVOYAGER: webvoyager,
}


class Judge:
    """Judges episodes through one endpoint; many at once, within the limits of its configuration.

    ::

        async with Judge(JudgeConfig(base_url="http://localhost:8000/v1", models=JudgeModels(default="qwen"))) as judge:
            judgement = await judge.judge(episode)

    Raises:
        ConfigError: when entered, the variable of the key is not set.
        StorageError: when made, the cache's folder cannot be.
    """

    def __init__(self, config: JudgeConfig, ledger: Ledger | None = None) -> None:
        """
        Args:
            ledger: Where the budget is counted together with other judges of the run; ``None``: it is this judge's own.
        """
        self.config = config
        self._client = JudgeClient(config, ledger)
        self._places = asyncio.Semaphore(config.concurrency)
        self.turns = asyncio.Semaphore(config.concurrency)
        """Held by callers with a deadline of their own while they have an episode judged. As there are no more turns than places, none of
        that deadline is spent waiting for one; `judge` itself does not take a turn."""

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._client.__aexit__()

    @property
    def requests(self) -> int:
        """Sent so far by this judge, retries included."""
        return self._client.budget.requests

    @property
    def tokens(self) -> int:
        """Paid so far by this judge."""
        return self._client.budget.tokens

    @property
    def damage(self) -> DamagedLedger | None:
        """Why this judge abstains from everything until somebody mends its ledger; ``None``: it can count, as of its last request."""
        return self._client.budget.damage

    async def judge(self, episode: JudgeEpisode, calls: list[CallRecord] | None = None) -> Judgement:
        """Passed, failed or abstained. Nothing that an endpoint, a page or a policy does is raised; a cancellation is.

        Args:
            calls: Gets every call when it is over, for a caller that may give up waiting.
        """
        grading = Grading(self._client, episode, calls if calls is not None else [])
        if not episode.steps:
            return abstain(grading, "the episode has no screenshots")
        async with self._places:  # the deadline begins when it is this episode's turn
            try:
                async with asyncio.timeout(self.config.deadline):
                    return await STYLES[self.config.style](grading)
            except TimeoutError:
                return abstain(grading, f"not judged within {self.config.deadline:g} s (deadline)")

    async def compare(self, question: str, reference: str, answer: str, *, unachievable: bool = False) -> Judgement:
        """Does an answer say what the reference says? For WebArena's fuzzy_match; raises as little as `judge`.

        Args:
            unachievable: The reference is the reason why the task cannot be done.
        """
        grading = Grading(self._client, JudgeEpisode(instruction=question, steps=(), answer=answer))
        async with self._places:
            try:
                async with asyncio.timeout(self.config.deadline):
                    asked = same_answer(question, reference, answer, unachievable=unachievable)
                    return rule(grading, [await grading.decide(asked)])
            except TimeoutError:
                return abstain(grading, f"not judged within {self.config.deadline:g} s (deadline)")
