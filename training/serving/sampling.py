"""Sampling with noise that belongs to the turn, for the local engine.

Gumbel noise is added to the tempered log-probs and the maximum taken, which draws exactly from the distribution. The noise of each
turn comes from its own generator, so a turn does not depend on what else is in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

from training.serving.engine import GenerationRequest, noise_seed


class Sampler(LogitsProcessor):  # type: ignore[misc]
    """Chooses each row's token itself and leaves only that one, so that memory does not grow with the vocabulary."""

    def __init__(self, requests: Sequence[GenerationRequest], banned: list[int], device: torch.device) -> None:
        self._requests = requests
        self._banned = torch.tensor(banned, dtype=torch.long, device=device)
        self._temperature = torch.tensor([[request.temperature] for request in requests], device=device)
        self._generators = [
            None if request.greedy else torch.Generator().manual_seed(noise_seed(request.seed, request.key))
            for request in requests
        ]
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
        """(B, V) Gumbel noise; zeros for greedy rows."""
        noise = torch.zeros(len(self._generators), vocabulary)
        for row, generator in enumerate(self._generators):
            if generator is not None:
                # The smallest positive float keeps log(0) away.
                uniform = torch.rand(vocabulary, generator=generator).clamp_min_(torch.finfo(torch.float32).tiny)
                noise[row] = -torch.log(-torch.log(uniform))
        return noise

    def turns(self) -> list[tuple[list[int], list[float], int]]:
        """(ids, log-probs, limit) of each row, uncut."""
        ids = torch.stack(self._tokens, 1).tolist()
        logprobs = torch.stack(self._logprobs, 1).tolist()
        return [
            (row, values, request.max_new_tokens)
            for row, values, request in zip(ids, logprobs, self._requests, strict=True)
        ]
