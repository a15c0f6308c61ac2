"""Who decides in an episode: the policy under training, or a scripted oracle that gives demonstrations in the same form."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from envs.browser import StepResult
from envs.oracles import oracle_action
from envs.types import Invalid, Step
from training.config import PolicyConfig
from training.groups import GroupSpec
from training.inference.engine import GenerationRequest, InferenceEngine
from training.inference.waves import WaveBatcher
from training.policy.parsing import format_action
from training.policy.prompt import ObservationMode, user_text


@dataclass(frozen=True, slots=True)
class Turn:
    """One model turn, as it is recorded."""

    prompt: str
    prompt_ids: tuple[int, ...]
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

    async def act(self, group: GroupSpec, sample: int, frame: StepResult, steps: Sequence[Step]) -> Turn:
        """The next turn of an episode."""


@dataclass(slots=True)
class PolicyActor:
    """The policy: turns are generated in waves."""

    batcher: WaveBatcher
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

    async def act(self, group: GroupSpec, sample: int, frame: StepResult, steps: Sequence[Step]) -> Turn:
        text, prompt_ids = _prompt(self.batcher.engine, frame, steps, self.policy.observation)
        request = GenerationRequest(
            prompt_ids=prompt_ids,
            images=(frame.screenshot,),
            key=f"{group.group_id}-s{sample:02d}/{len(steps)}",
            seed=self.seed,
            max_new_tokens=self.policy.max_new_tokens,
            temperature=self.policy.temperature,
            greedy=group.greedy,
        )
        turn = await self.batcher.generate(request)
        return Turn(text, prompt_ids, turn.text, turn.token_ids, turn.logprobs, turn.policy_version)


@dataclass(slots=True)
class OracleActor:
    """The scripted oracle of each task kind. Its turns carry log-probability 0: they are certain, and used for cloning only."""

    engine: InferenceEngine

    @property
    def policy_version(self) -> int:
        version = self.engine.policy_version
        assert version is not None
        return version

    def slot(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, group: GroupSpec, sample: int, frame: StepResult, steps: Sequence[Step]) -> Turn:
        await asyncio.sleep(0)  # the other episodes of the loop get their turn
        action = oracle_action(group.task.kind, frame.observation, [step.action for step in steps])
        text, prompt_ids = _prompt(self.engine, frame, steps, "text")
        # An oracle at a loss says nothing, which ends the episode as a failure, like any policy's.
        response = "" if isinstance(action, Invalid) else format_action(action)
        response_ids = tuple(self.engine.encode_response(response))
        return Turn(text, prompt_ids, response, response_ids, (0.0,) * len(response_ids), self.policy_version)


def _prompt(
    engine: InferenceEngine, frame: StepResult, steps: Sequence[Step], mode: ObservationMode
) -> tuple[str, tuple[int, ...]]:
    text = user_text(frame.observation, [step.response for step in steps], mode)
    return text, tuple(engine.encode(text, frame.observation.viewport))
