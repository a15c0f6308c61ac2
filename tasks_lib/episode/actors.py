"""Actors that choose actions: the policy under training, or a scripted oracle.

An oracle gives demonstrations in the same form as the policy's turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from envs.actions import format_action
from envs.browser import PageStep
from envs.oracles import is_generated, oracle_action, oracle_of
from envs.types import Action, Invalid, Memory, Step
from training.config import PolicyConfig
from training.groups import GroupSpec
from training.inference.engine import GenerationRequest, InferenceEngine
from training.inference.waves import InferenceBatcher


@dataclass(frozen=True, slots=True)
class Situation:
    """Where an episode stands when its next turn is wanted."""

    group: GroupSpec
    sample: int
    frame: PageStep
    steps: Sequence[Step]
    """The turns before."""
    memory: Memory | None = None
    """What the episode remembers; ``None`` if it has no memory."""


@dataclass(frozen=True, slots=True)
class EncodedSituation:
    """A situation as it is recorded and as the policy is asked about it."""

    situation: Situation
    prompt: str
    prompt_ids: tuple[int, ...]
    screenshot: str
    """Name of its blob."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model turn, as it is recorded."""

    asked: EncodedSituation
    response: str
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int


class Actor(Protocol):
    """Decides the turns of many concurrent episodes."""

    @property
    def policy_version(self) -> int:
        """Version that its turns are recorded under."""

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Entered by a slot for the episodes that it plays one after the other."""

    async def act(self, asked: EncodedSituation) -> Turn:
        """The next turn of an episode."""


@dataclass(slots=True)
class PolicyActor:
    """The policy: turns are generated in batches."""

    batcher: InferenceBatcher
    policy: PolicyConfig
    seed: int
    """Seed of the run: with the episode's id it fixes the sampling noise."""

    @property
    def policy_version(self) -> int:
        version = self.batcher.engine.policy_version
        assert version is not None
        return version

    def slot(self) -> AbstractAsyncContextManager[None]:
        return self.batcher.slot()

    async def act(self, asked: EncodedSituation) -> Turn:
        now = asked.situation
        request = GenerationRequest(
            prompt_ids=asked.prompt_ids,
            images=(now.frame.screenshot,),
            key=f"{now.group.group_id}-s{now.sample:02d}/{len(now.steps)}",
            seed=self.seed,
            max_new_tokens=self.policy.max_new_tokens,
            temperature=self.policy.temperature,
            greedy=now.group.greedy,
        )
        turn = await self.batcher.generate(request)
        return Turn(asked, turn.text, turn.token_ids, turn.logprobs, turn.policy_version)


@dataclass(slots=True)
class OracleActor:
    """The scripted oracle of each task. Its turns carry log-probability 0: they are certain, and used for cloning only."""

    engine: InferenceEngine

    @property
    def policy_version(self) -> int:
        version = self.engine.policy_version
        assert version is not None
        return version

    def slot(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, asked: EncodedSituation) -> Turn:
        action = _ask_oracle(asked.situation)
        # An oracle at a loss says nothing, which ends the episode as a failure, like any policy's.
        response = "" if isinstance(action, Invalid) else format_action(action)
        response_ids = tuple(self.engine.encode_response(response))
        return Turn(asked, response, response_ids, (0.0,) * len(response_ids), self.policy_version)


def _ask_oracle(now: Situation) -> Action:
    task, seen, history = now.group.task, now.frame.observation, [step.action for step in now.steps]
    if is_generated(task):
        return oracle_of(task)(seen, history)  # drawn anew each turn: it takes less than a millisecond
    return oracle_action(task.kind, seen, history)
