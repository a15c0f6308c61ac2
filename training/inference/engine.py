"""The inference engine protocol: token ids and images in, tokens and log-probs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One model turn to generate."""

    prompt_ids: tuple[int, ...]
    """Whole prompt, image placeholders expanded."""
    images: tuple[bytes, ...]
    """JPEG bytes, in the order of their placeholders."""
    key: str
    """Names the turn (episode and step). Sorts a batch, and seeds the sampling noise together with ``seed``."""
    seed: int
    """Seed of the run."""
    max_new_tokens: int
    temperature: float
    """Of sampling; log-probs are those of the tempered distribution."""
    greedy: bool = False
    """Take the most probable token (log-probs stay those of the distribution)."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A generated turn."""

    token_ids: tuple[int, ...]
    """Generated ids, the end-of-turn token included when it was reached."""
    logprobs: tuple[float, ...]
    """Log-probability of each id under temperature and bans; what was sampled from, so exact behaviour log-probs."""
    policy_version: int
    """Version that generated every token."""
    text: str
    """Decoded, special tokens left out."""


class InferenceEngine(Protocol):
    """Generates turns from a policy version. ``generate`` may block; callers run it off their event loop."""

    @property
    def policy_version(self) -> int | None:
        """Version that is loaded, ``None`` before the first."""

    def load(self, version: int, checkpoint: Path) -> None:
        """Serve ``checkpoint`` as ``version``. Loading the version that is served is a no-op."""

    def encode(self, text: str, image_size: tuple[int, int]) -> list[int]:
        """Token ids of the prompt with one image of (width, height) in its own pixels, and the user turn's ``text``."""

    def encode_response(self, text: str) -> list[int]:
        """Token ids of a turn that says ``text``, the end-of-turn token included."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One turn for each request, in order."""
