"""Puts the questions of one episode to the vote and counts the votes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envs.rewards.judge.client import JudgeClient
from envs.rewards.judge.config import JudgeConfig
from envs.rewards.judge.payloads import Question
from envs.rewards.judge.records import CallRecord, JudgeCase, JudgeCheck
from envs.rewards.judge.schemas import words_of
from envs.rewards.judge.verdict import Opinion, read_opinion

Vote = tuple[Opinion | None, CallRecord]
"""An opinion (``None`` if the vote was lost) and the record of its call."""


@dataclass
class JudgeCalls:
    """Collects the calls and checks of one episode; they outlive a deadline."""

    client: JudgeClient
    episode: JudgeCase
    calls: list[CallRecord] = field(default_factory=list)
    checks: list[JudgeCheck] = field(default_factory=list)

    @property
    def config(self) -> JudgeConfig:
        """Configuration of the judge."""
        return self.client.config

    async def decide(self, question: Question, votes: int | None = None) -> JudgeCheck:
        """Put a question to the vote and record the outcome."""
        check = await decide(self.client, question, self.calls.append, votes or self.config.votes)
        self.checks.append(check)
        return check

    def sample(self, max_count: int) -> list[int]:
        """Return indices of at most ``max_count`` steps, ascending; the last is always included.

        The sample depends on the seed and the episode alone, so it is the same each time.
        """
        count = len(self.episode.steps)
        if count <= max_count:
            return list(range(count))
        chance = random.Random(f"{self.config.seed} {self.episode.digest}")
        return [*sorted(chance.sample(range(count - 1), max_count - 1)), count - 1]


async def decide(client: JudgeClient, question: Question, keep: Callable[[CallRecord], None], votes: int) -> JudgeCheck:
    """Ask a question ``votes`` times and return the decision of the majority."""
    words = words_of(question.purpose)

    async def cast(vote: int) -> Vote:
        result = await client.ask(question, lambda reply: read_opinion(reply, words), keep, vote)
        return result.value, result.record

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(cast(vote)) for vote in range(votes)]
    return tally(question, [task.result() for task in running])


def tally(question: Question, votes: Sequence[Vote]) -> JudgeCheck:
    """Return the decision of a strict majority of all votes, lost ones included.

    Because lost votes count, it never depends on which of the votes were lost.
    """
    ayes = [opinion for opinion, _ in votes if opinion is not None and opinion.holds]
    noes = [opinion for opinion, _ in votes if opinion is not None and not opinion.holds]
    lost = [record for opinion, record in votes if opinion is None]
    holds: bool | None = None
    if 2 * max(len(ayes), len(noes)) > len(votes):
        holds = len(ayes) > len(noes)
        reason = (ayes if holds else noes)[0].reason
    else:
        why = [f"{record.error}: {record.trouble}" for record in lost]
        reason = "; ".join(dict.fromkeys(why)) or "no majority"
    return JudgeCheck(
        purpose=question.purpose,
        subject=question.subject,
        holds=holds,
        reason=reason,
        ayes=len(ayes),
        noes=len(noes),
        lost=len(lost),
    )
