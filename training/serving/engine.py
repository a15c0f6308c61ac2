"""The protocol of inference engines: a rendered prompt and its images in, tokens and log-probs out."""

from __future__ import annotations

import hashlib
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envs.types import FinishReason
from training.policy.rendered import RenderedPrompt


@dataclass(frozen=True, slots=True)
class Picture:
    """One image of a prompt."""

    jpeg: bytes
    size: tuple[int, int]
    """(width, height) in its own pixels."""
    path: Path | None = None
    """Its blob's file, where storage has it: lets a server read it itself."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One model turn to generate."""

    prompt: RenderedPrompt
    pictures: tuple[Picture, ...]
    """In the order of their placeholders."""
    key: str
    """Names the turn (episode and step). Sorts a batch, and seeds the sampling noise together with ``seed``."""
    episode: str
    """The `Engine.session` that it belongs to."""
    seed: int
    """Seed of the run."""
    max_new_tokens: int
    temperature: float
    """Of sampling; log-probs are those of the tempered distribution."""
    greedy: bool = False
    """Take the most probable token (log-probs stay those of the distribution)."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """The tokens ``start`` to ``end - 1`` of a turn are of one policy version."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A generated turn."""

    token_ids: tuple[int, ...]
    """Generated ids, the end-of-turn token included when it was reached."""
    logprobs: tuple[float, ...]
    """Log-probability of each id under temperature and bans; what was sampled from, so exact behaviour log-probs."""
    version_spans: tuple[VersionSpan, ...]
    """Which policy version generated which tokens; none for a turn without tokens."""
    finish_reason: FinishReason


@dataclass(slots=True)
class EngineStatistics:
    """Counters of an engine since it was made."""

    batches: int = 0
    """0 where a server makes the batches."""
    turns: int = 0
    late_batches: int = 0
    """Batches that closed by the deadline, without every open session."""
    seconds: float = 0.0
    """Wall seconds in which a turn was being generated."""
    waited_seconds: float = 0.0
    """Sum over the turns of the seconds from when each was asked for to when its batch began; 0 where a server makes the batches."""

    def __sub__(self, before: EngineStatistics) -> EngineStatistics:
        return EngineStatistics(
            self.batches - before.batches,
            self.turns - before.turns,
            self.late_batches - before.late_batches,
            self.seconds - before.seconds,
            self.waited_seconds - before.waited_seconds,
        )


class Engine(Protocol):
    """Generates turns from a policy version. Used from one event loop."""

    @property
    def statistics(self) -> EngineStatistics:
        """What it has done since it was made, as it is now."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """One turn.

        Raises:
            EngineError: the engine failed for the moment; asking again may help.
            PolicyError: the request or the policy is wrong; asking again does not help.
        """

    async def publish(self, version: int, folder: Path) -> None:
        """Serve the checkpoint in ``folder`` as ``version`` from now on. Nothing happens if that version is served."""

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Entered by whoever asks for turns one after the other: ``episode`` is that of its requests."""

    async def close(self) -> None:
        """Let go of what the engine holds."""


def noise_seed(seed: int, key: str) -> int:
    """63-bit seed of one turn's noise, stable across processes and machines."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:8], "big") >> 1
