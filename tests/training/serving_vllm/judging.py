"""Compares turns of a server with a forward pass of transformers."""

from __future__ import annotations

from pathlib import Path

from training.policy.renderer import Renderer
from training.serving.engine import Generation, GenerationRequest, Picture
from training.serving.vllm.probe import ProbeResult, ProbeTurn, TransformersScorer, compare

EXACT = 1e-4
"""Largest |difference| of log-probs in float32; 1e-5 is seen."""
WRONG = 3e-3
"""More than that shows weights, a head, an image or a prefix of another version."""


class Judge:
    """Compares a turn with a forward pass."""

    def __init__(self, renderer: Renderer) -> None:
        self._scorer = TransformersScorer(renderer)

    def __call__(self, folder: Path, request: GenerationRequest, generation: Generation) -> ProbeResult:
        turn = ProbeTurn(request, generation)
        return compare([turn], self._scorer(folder, [turn]))


def ask(
    renderer: Renderer, *pictures: Picture, key: str = "turn", tokens: int = 24, temperature: float = 0.7
) -> GenerationRequest:
    """A turn whose prompt is longer than two blocks of the prefix cache."""
    text = "Task: " + " ".join(f"press {number}" for number in range(100))
    return GenerationRequest(
        prompt=renderer.encode(text, [picture.size for picture in pictures]),
        pictures=pictures,
        key=key,
        episode="episode",
        seed=1,
        max_new_tokens=tokens,
        temperature=temperature,
    )
