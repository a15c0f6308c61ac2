"""Actors that choose actions: the policy under training, or a scripted oracle.

An oracle's demonstrations have the same form as the policy's turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from envs.browser import PageStep
from envs.bundled.oracles import is_generated, oracle_action, oracle_of
from envs.prompts import PromptName, call_text
from envs.types import Action, ContextMessage, FinishReason, Invalid, Memory, Step, TokenSpan
from training.config import PolicyConfig
from training.policy.rendered import RenderedPrompt
from training.records.groups import GroupSpec
from training.serving.engine import Engine, GenerationRequest, Picture
from training.serving.waiting import generate_patiently

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer


@dataclass(frozen=True, slots=True)
class Situation:
    """State of an episode when its next turn is due."""

    group: GroupSpec
    sample: int
    frame: PageStep
    steps: Sequence[Step]
    """The steps before."""
    memory: Memory | None = None
    """Memory of the episode; ``None`` if it has none."""
    session: str = ""
    """Session of the engine in which its turns are generated."""
    began: Callable[[], None] = lambda: None
    """Called when the generation of the turn begins, in any thread."""
    delayed: Callable[[float], None] = lambda seconds: None
    """Called with the seconds that a failure of the engine costs."""


@dataclass(frozen=True, slots=True)
class EncodedSituation:
    """A situation as it is recorded and as the policy sees it."""

    situation: Situation
    prompt: str
    rendered: RenderedPrompt
    pictures: tuple[Picture, ...]
    screenshot: str
    """Name of the screenshot's blob."""
    context: tuple[ContextMessage, ...] = ()
    """The messages before the present one."""
    cut_rounds: int = 0
    """Number of rounds left out because the prompt had too many tokens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model turn, as it is recorded."""

    asked: EncodedSituation
    response: str
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    """Oldest version that generated one of its tokens."""
    finish_reason: FinishReason | None = None
    """Reason why the model stopped; ``None`` if no model made the turn."""
    version_spans: tuple[TokenSpan, ...] = ()
    """Spans of its tokens by version; empty if one version generated all of them."""


class Actor(Protocol):
    """Decides the turns of many concurrent episodes."""

    @property
    def policy_version(self) -> int:
        """Version that is recorded for its episodes."""

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        """Open a session for an episode, or for those that a slot plays one after the other.

        Their situations hold its name.
        """

    async def act(self, asked: EncodedSituation) -> Turn:
        """Return the next turn of an episode."""


@dataclass(slots=True)
class PolicyActor:
    """The policy, whose turns an engine generates."""

    engine: Engine
    renderer: Renderer
    policy: PolicyConfig
    seed: int
    """Seed of the run, which fixes the sampling noise together with the episode's id."""
    policy_version: int
    """Version that the engine serves."""
    patience: float
    """Seconds to wait for a failing engine."""

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        return self.engine.session(name)

    async def act(self, asked: EncodedSituation) -> Turn:
        situation = asked.situation
        request = GenerationRequest(
            prompt=asked.rendered,
            pictures=asked.pictures,
            key=f"{situation.group.group_id}-s{situation.sample:02d}/{len(situation.steps)}",
            episode=situation.session,
            seed=self.seed,
            max_new_tokens=self.policy.max_new_tokens,
            temperature=self.policy.temperature,
            greedy=situation.group.greedy,
            began=situation.began,
        )
        turn = await generate_patiently(self.engine, request, self.patience, situation.delayed)
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
    """The scripted oracle of each task.

    It answers in the form that the policy is asked for. Its turns carry log-probability 0: they are
    certain, and are used for cloning only.
    """

    renderer: Renderer
    prompt: PromptName
    policy_version: int

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, asked: EncodedSituation) -> Turn:
        asked.situation.began()
        action = _ask_oracle(asked.situation)
        # An oracle without an action answers nothing, which ends the episode as a failure.
        response = "" if isinstance(action, Invalid) else call_text(action, self.prompt)
        response_ids = tuple(self.renderer.encode_response(response))
        return Turn(asked, response, response_ids, (0.0,) * len(response_ids), self.policy_version)


def _ask_oracle(situation: Situation) -> Action:
    task, observation = situation.group.task, situation.frame.observation
    history = [step.action for step in situation.steps]
    if is_generated(task):
        return oracle_of(task)(observation, history)  # made anew each turn, in under a millisecond
    return oracle_action(task.kind, observation, history)
