"""One episode before the judge: its calls, its votes, and what they come to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envs.rewards.judge.client import JudgeClient
from envs.rewards.judge.config import JudgeConfig
from envs.rewards.judge.payloads import Question
from envs.rewards.judge.records import CallRecord, Check, JudgeEpisode
from envs.rewards.judge.schemas import words_of
from envs.rewards.judge.verdict import Opinion, read_opinion

Vote = tuple[Opinion | None, CallRecord]
"""An opinion, or none, and what it took."""


@dataclass
class Grading:
    """Collects what is asked and answered; what it has so far survives a deadline."""

    client: JudgeClient
    episode: JudgeEpisode
    calls: list[CallRecord] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def config(self) -> JudgeConfig:
        """The judge's."""
        return self.client.config

    async def decide(self, question: Question, votes: int | None = None) -> Check:
        """Put a question to the vote and write down the outcome."""
        check = await decide(self.client, question, self.calls.append, votes or self.config.votes)
        self.checks.append(check)
        return check

    def sample(self, most: int) -> list[int]:
        """Indices of at most so many steps, ascending, the last always among them; the same ones each time."""
        count = len(self.episode.steps)
        if count <= most:
            return list(range(count))
        chance = random.Random(f"{self.config.seed} {self.episode.digest}")
        return [*sorted(chance.sample(range(count - 1), most - 1)), count - 1]


async def decide(client: JudgeClient, question: Question, keep: Callable[[CallRecord], None], votes: int) -> Check:
    """So many answers to one question, and what most of them say."""
    words = words_of(question.purpose)

    async def cast(vote: int) -> Vote:
        asked = await client.ask(question, lambda reply: read_opinion(reply, words), keep, vote)
        return asked.value, asked.record

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(cast(vote)) for vote in range(votes)]
    return tally(question, [each.result() for each in running])


def tally(question: Question, votes: Sequence[Vote]) -> Check:
    """Strict majority of all votes, the lost ones included: which vote was lost can then never decide."""
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
    return Check(
        purpose=question.purpose,
        subject=question.subject,
        holds=holds,
        reason=reason,
        ayes=len(ayes),
        noes=len(noes),
        lost=len(lost),
    )
