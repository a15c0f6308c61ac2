"""Actors that choose actions: the policy under training, or a scripted oracle.

An oracle gives demonstrations in the same form as the policy's turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from envs.actions import format_action
from envs.browser import PageStep
from envs.oracles import is_generated, oracle_action, oracle_of
from envs.types import Action, ContextMessage, FinishReason, Invalid, Memory, Step, TokenSpan
from training.config import PolicyConfig
from training.groups import GroupSpec
from training.policy.rendered import RenderedPrompt
from training.serving.engine import Engine, GenerationRequest, Picture
from training.serving.waiting import generate_patiently

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer


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
    session: str = ""
    """Of the engine, that its turns are asked for in."""


@dataclass(frozen=True, slots=True)
class EncodedSituation:
    """A situation as it is recorded and as the policy is asked about it."""

    situation: Situation
    prompt: str
    rendered: RenderedPrompt
    pictures: tuple[Picture, ...]
    screenshot: str
    """Name of its blob."""
    context: tuple[ContextMessage, ...] = ()
    """The messages before the present one."""
    cut_rounds: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One model turn, as it is recorded."""

    asked: EncodedSituation
    response: str
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    """Oldest version that a token of it is of."""
    finish_reason: FinishReason | None = None
    """``None`` if no model gave it."""
    version_spans: tuple[TokenSpan, ...] = ()
    """Where its tokens are of several versions."""


class Actor(Protocol):
    """Decides the turns of many concurrent episodes."""

    @property
    def policy_version(self) -> int:
        """Version that its turns are recorded under."""

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        """Entered for an episode, or for those that a slot plays one after the other; the name is in their situations."""

    async def act(self, asked: EncodedSituation) -> Turn:
        """The next turn of an episode."""


@dataclass(slots=True)
class PolicyActor:
    """The policy: an engine generates its turns."""

    engine: Engine
    renderer: Renderer
    policy: PolicyConfig
    seed: int
    """Seed of the run: with the episode's id it fixes the sampling noise."""
    policy_version: int
    """Version that the engine serves."""
    patience: float
    """Seconds that a failing engine is waited for."""

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        return self.engine.session(name)

    async def act(self, asked: EncodedSituation) -> Turn:
        now = asked.situation
        request = GenerationRequest(
            prompt=asked.rendered,
            pictures=asked.pictures,
            key=f"{now.group.group_id}-s{now.sample:02d}/{len(now.steps)}",
            episode=now.session,
            seed=self.seed,
            max_new_tokens=self.policy.max_new_tokens,
            temperature=self.policy.temperature,
            greedy=now.group.greedy,
        )
        turn = await generate_patiently(self.engine, request, self.patience)
        version = min((span.version for span in turn.version_spans), default=self.policy_version)
        spans = [TokenSpan(version=span.version, start=span.start, end=span.end) for span in turn.version_spans]
        return Turn(
            asked,
            self.renderer.decode(turn.token_ids),
            turn.token_ids,
            turn.logprobs,
            version,
            turn.finish_reason,
            tuple(spans) if len(spans) > 1 else (),
        )


@dataclass(slots=True)
class OracleActor:
    """The scripted oracle of each task. Its turns carry log-probability 0: they are certain, and used for cloning only."""

    renderer: Renderer
    policy_version: int

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, asked: EncodedSituation) -> Turn:
        action = _ask_oracle(asked.situation)
        # An oracle at a loss says nothing, which ends the episode as a failure, like any policy's.
        response = "" if isinstance(action, Invalid) else format_action(action)
        response_ids = tuple(self.renderer.encode_response(response))
        return Turn(asked, response, response_ids, (0.0,) * len(response_ids), self.policy_version)


def _ask_oracle(now: Situation) -> Action:
    task, seen, history = now.group.task, now.frame.observation, [step.action for step in now.steps]
    if is_generated(task):
        return oracle_of(task)(seen, history)  # drawn anew each turn: it takes less than a millisecond
    return oracle_action(task.kind, seen, history)
