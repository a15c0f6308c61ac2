"""Samples tokens for the local engine, with a separate noise generator for each turn.

Gumbel noise is added to the tempered log-probs and the maximum is taken, which draws exactly from
the distribution. The noise of each turn comes from its own generator, so it does not depend on the
other turns of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import LogitsProcessor

from training.serving.engine import GenerationRequest, VersionSpan, noise_seed


@dataclass(slots=True)
class GrowingTurn:
    """A turn and its tokens so far, which may come from successive versions."""

    request: GenerationRequest
    noise: torch.Generator | None = None
    """Generator of the sampling noise; ``None`` for greedy decoding."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    ended: bool = False
    """True when the last id is an end token."""

    def __post_init__(self) -> None:
        if not self.request.greedy:
            self.noise = torch.Generator().manual_seed(noise_seed(self.request.seed, self.request.key))

    @property
    def remaining(self) -> int:
        """Number of tokens that may still be added."""
        return 0 if self.ended else self.request.max_new_tokens - len(self.ids)

    def grow(self, ids: list[int], logprobs: list[float], ends: set[int], version: int) -> None:
        """Add tokens of one version, up to an end token or the turn's limit.

        The batch may have gone on for longer turns, so ``ids`` can be longer than that.
        """
        start, ids = len(self.ids), ids[: self.remaining]
        stop = next((index + 1 for index, token in enumerate(ids) if token in ends), None)
        self.ended = stop is not None
        self.ids += ids[:stop]
        self.logprobs += logprobs[: len(self.ids) - start]
        self.spans.append(VersionSpan(version, start, len(self.ids)))


class TokenSampler(LogitsProcessor):  # type: ignore[misc]
    """Chooses each row's token and masks all others.

    Only the chosen log-probs are kept, so memory does not grow with the vocabulary.
    """

    def __init__(self, turns: Sequence[GrowingTurn], banned: list[int], device: torch.device) -> None:
        self._banned = torch.tensor(banned, dtype=torch.long, device=device)
        self._temperature = torch.tensor([[turn.request.temperature] for turn in turns], device=device)
        self._generators = [turn.noise for turn in turns]
        self._tokens: list[torch.Tensor] = []
        self._logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float() / self._temperature
        scores[:, self._banned] = float("-inf")
        logprobs = scores.log_softmax(-1)
        chosen = (logprobs + self._noise(scores.shape[1]).to(scores.device)).argmax(-1, keepdim=True)
        self._tokens.append(chosen[:, 0])
        self._logprobs.append(logprobs.gather(1, chosen)[:, 0])
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen, 0.0)

    def _noise(self, vocabulary: int) -> torch.Tensor:
        """Return Gumbel noise (B, V); zeros for greedy rows."""
        noise = torch.zeros(len(self._generators), vocabulary)
        for row, generator in enumerate(self._generators):
            if generator is not None:
                # The smallest positive float avoids log(0).
                uniform = torch.rand(vocabulary, generator=generator).clamp_min_(torch.finfo(torch.float32).tiny)
                noise[row] = -torch.log(-torch.log(uniform))
        return noise

    def rows(self) -> list[tuple[list[int], list[float]]]:
        """Return (ids, log-probs) of each row, end tokens and limits ignored."""
        ids, logprobs = torch.stack(self._tokens, 1).tolist(), torch.stack(self._logprobs, 1).tolist()
        return list(zip(ids, logprobs, strict=True))
