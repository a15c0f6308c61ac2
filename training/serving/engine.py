"""Protocol of inference engines: a rendered prompt with images in, tokens and log-probs out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from envs.types import FinishReason
from training.policy.rendered import RenderedPrompt


@dataclass(frozen=True, slots=True)
class Picture:
    """One image of a prompt."""

    jpeg: bytes
    size: tuple[int, int]
    """(width, height) in pixels."""
    path: Path | None = None
    """File of the image's blob, if it is stored; a server can read it directly."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One model turn to generate."""

    prompt: RenderedPrompt
    pictures: tuple[Picture, ...]
    """Images in the order of their placeholders."""
    key: str
    """Name of the turn (episode and step). Sorts a batch and, with ``seed``, seeds the noise."""
    episode: str
    """Episode whose `Engine.session` the turn belongs to."""
    seed: int
    """Seed of the run."""
    max_new_tokens: int
    temperature: float
    """Sampling temperature; log-probs are those of the tempered distribution."""
    greedy: bool = False
    """True to take the most probable token; log-probs stay those of the distribution."""
    began: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Called when its generation begins, in any thread."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """One policy version generated the tokens ``start`` to ``end - 1`` of a turn."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A generated turn."""

    token_ids: tuple[int, ...]
    """Generated ids, including the end-of-turn token if it was reached."""
    logprobs: tuple[float, ...]
    """Exact behaviour log-probability of each id, under temperature and bans."""
    version_spans: tuple[VersionSpan, ...]
    """Policy version of each range of tokens; empty for a turn without tokens."""
    finish_reason: FinishReason


@dataclass(slots=True)
class EngineStatistics:
    """Counters of an engine since it was created."""

    batches: int = 0
    """Number of batches; 0 if a server forms them."""
    turns: int = 0
    late_batches: int = 0
    """Batches that closed at the deadline without every open session."""
    seconds: float = 0.0
    """Wall seconds during which at least one turn was being generated."""
    waited_seconds: float = 0.0
    """Seconds from request to start of the batch, summed over turns. 0 if a server batches."""

    def __sub__(self, before: EngineStatistics) -> EngineStatistics:
        return EngineStatistics(
            self.batches - before.batches,
            self.turns - before.turns,
            self.late_batches - before.late_batches,
            self.seconds - before.seconds,
            self.waited_seconds - before.waited_seconds,
        )


class Engine(Protocol):
    """Generates turns with a policy version. Used from one event loop."""

    @property
    def statistics(self) -> EngineStatistics:
        """Copy of the counters since the engine was created."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one turn.

        Raises:
            EngineError: the engine failed for the moment; a retry may help.
            PolicyError: the request or the policy is wrong; a retry does not help.
        """

    async def publish(self, version: int, folder: Path, *, or_newer: bool = False) -> None:
        """Serve the checkpoint in ``folder`` as ``version``, unless it is served already.

        Args:
            or_newer: Be content with a newer version, where another process publishes them.
        """

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Return the context of one episode's turns, which are requested one after the other."""

    async def close(self) -> None:
        """Release what the engine holds."""


def noise_seed(seed: int, key: str) -> int:
    """Return the 63-bit seed of a turn's noise, stable across processes and machines."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:8], "big") >> 1
