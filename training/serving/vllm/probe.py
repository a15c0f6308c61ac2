"""Compares a server's log-probs with a forward pass of the checkpoint it should serve.

After every publication each server answers fixed prompts: one with an image that the server has
seen at earlier versions, and one with a new image, both longer than a block of the prefix cache. So
it detects weights that did not arrive, a stale packed head, a stale image embedding and a stale
prefix.

The forward pass is costly for a large model. Between two of them the answers are only compared with
each other: servers of one version have to agree, and an update changes log-probs, but not by much.
Where that is not so, the forward pass decides.
"""

from __future__ import annotations

import asyncio
import io
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL import Image, ImageDraw

from envs.types import ProbeError, RollwrightError
from training.policy.adapters import is_adapter, load_policy
from training.policy.renderer import Renderer
from training.serving.engine import Generation, GenerationRequest, Picture
from training.serving.vllm.client import ServerClient
from training.serving.vllm.publishing import failed_servers, split_answers

SIZE = (320, 240)
"""(width, height) of the probe images in pixels."""
TOKENS = 16
"""Number of tokens that are generated for each prompt."""
WORDS = 120
"""Number of words of each prompt, for more tokens than one prefix-cache block. A block holds 128
tokens on the CPU and 16 on GPUs."""
TEMPERATURE = 1.3
"""Sampling temperature. At 1 a server without ``--logprobs-mode processed_logprobs`` would have
nearly the right log-probs."""
FLOAT32_LIMIT = 1e-4
"""Largest mean |difference| of log-probs in float32; 1e-6 is usual, a stale head gives 1e-2."""
LOW_PRECISION_LIMIT = 5e-2
"""Largest mean |difference| in bfloat16, where two correct implementations differ."""
MAX_CHANGE = 0.5
"""Largest mean |difference| of log-probs between two versions that needs no forward pass. An update
is assumed to change far less, and another model or a swapped layer far more."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeTurn:
    """A probe request and the server's answer."""

    request: GenerationRequest
    generation: Generation


class Scorer(Protocol):
    """Computes the log-probs that a checkpoint gives to tokens. Blocks."""

    def __call__(self, folder: Path, turns: Sequence[ProbeTurn]) -> list[list[float]]:
        """Return the log-prob of each generated token, under the temperature and the bans."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Differences between a server's log-probs and the checkpoint's."""

    mean: float
    """Mean |difference| over all tokens."""
    maximum: float
    """Largest |difference|."""
    tokens: int
    """Number of tokens compared."""
    failed: Mapping[str, RollwrightError] = field(default_factory=dict)
    """Servers that did not answer, or serve other weights (`ProbeError`), by address."""


class Probe:
    """Check of the served log-probs after a publication.

    Args:
        renderer: Renderer of the policy.
        scorer: Source of the expected log-probs; ``None``: a forward pass of transformers in this
            process, in float32 on the CPU.
        limit: Largest allowed mean |difference|.
        images: Largest number of images in a prompt.
        every: Checks from one forward pass to the next; 0: the first one, and where answers are in
            doubt.
    """

    def __init__(
        self,
        renderer: Renderer,
        scorer: Scorer | None = None,
        *,
        limit: float = FLOAT32_LIMIT,
        images: int = 1,
        every: int = 1,
    ) -> None:
        self._renderer = renderer
        self._scorer = scorer or TransformersScorer(renderer)
        self._limit = limit
        self._images = images
        self._every = every
        self._checks = 0
        """Checks since the last forward pass."""
        self._known: tuple[int, list[ProbeTurn]] | None = None
        """Version and answers of the newest check that passed."""

    async def check(self, clients: Sequence[ServerClient], version: int, folder: Path) -> ProbeResult:
        """Check every server that answers and return the worst result of those that are right.

        Raises:
            ProbeError: the log-probs of no server are those of the version.
            EngineError: every server failed.
        """
        requests = probe_requests(self._renderer, version, self._images)
        answers = await asyncio.gather(
            *(self._ask(client, requests, version, is_adapter(folder)) for client in clients)
        )
        turns, faults = split_answers(clients, answers)
        failed = failed_servers(clients, version, list(faults.values()))
        worst, doubt = self._compare_answers(version, list(turns.values()))
        if doubt:
            logger.info("v%d is compared with its checkpoint: %s", version, doubt)
            worst, wrong = await self._compare_checkpoint(turns, version, folder)
            failed = failed_servers(clients, version, [wrong.get(address, fault) for address, fault in faults.items()])
        self._checks = 1 if doubt else self._checks + 1
        self._known = version, next(answer for address, answer in turns.items() if address not in failed)
        return replace(worst, failed=failed)

    def _compare_answers(self, version: int, answers: Sequence[list[ProbeTurn]]) -> tuple[ProbeResult, str]:
        """Compare answers with each other and with those of the check before.

        Returns the largest difference between servers, and why a forward pass is needed; empty if
        it is not.
        """
        first, worst = answers[0], ProbeResult(0.0, 0.0, 0)
        if self._known is None or (self._every and self._checks >= self._every):
            return worst, "it is due"
        before, known = self._known
        others = [*answers[1:], *([known] if before == version else [])]
        for other in others:
            result = compare_shared(first, other)
            worst = max(worst, result, key=lambda result: result.mean)
        if not worst.mean <= self._limit:
            return worst, f"its servers differ by {worst.mean:.1e} in the mean"
        if before != version:
            change = compare_shared(known[:1], first[:1])  # later prompts have a version's own image
            if not 0 < change.mean <= MAX_CHANGE:
                return worst, f"its log-probs differ by {change.mean:.1e} in the mean from those of v{before}"
        return worst, ""

    async def _compare_checkpoint(
        self, turns: Mapping[str, list[ProbeTurn]], version: int, folder: Path
    ) -> tuple[ProbeResult, dict[str, ProbeError]]:
        """Compare each server's answers with a forward pass.

        Returns the worst result within the limit, and the faults of servers beyond it.
        """
        expected = iter(
            await asyncio.to_thread(self._scorer, folder, [turn for part in turns.values() for turn in part])
        )
        worst, wrong = ProbeResult(0.0, 0.0, 0), dict[str, ProbeError]()
        for address, part in turns.items():
            result = compare(part, list(islice(expected, len(part))))
            if not result.mean <= self._limit:  # NaN fails too
                wrong[address] = ProbeError(
                    f"{address} does not serve v{version} ({folder}): its log-probs differ by {result.mean:.1e} in "
                    f"the mean ({result.maximum:.1e} at most, {result.tokens} tokens) from those of the checkpoint; "
                    f"allowed is {self._limit:.0e}"
                )
            else:
                worst = max(worst, result, key=lambda result: result.mean)
        return worst, wrong

    async def _ask(
        self, client: ServerClient, requests: Sequence[GenerationRequest], version: int, adapter: bool
    ) -> list[ProbeTurn] | RollwrightError:
        turns = []
        for request in requests:
            try:
                generation = await client.generate(request, version, adapter=adapter)
            except RollwrightError as error:
                return error
            if served := sorted({span.version for span in generation.version_spans} - {version}):
                return ProbeError(f"{client.address} serves v{served[0]} and not v{version}")
            turns.append(ProbeTurn(request, generation))
        return turns


def compare(turns: Sequence[ProbeTurn], expected: Sequence[Sequence[float]]) -> ProbeResult:
    """Return the mean and largest |difference| over all tokens; infinite without any token."""
    return result_of_pairs(
        pair
        for turn, values in zip(turns, expected, strict=True)
        for pair in zip(turn.generation.logprobs, values, strict=True)
    )


def compare_shared(ours: Sequence[ProbeTurn], theirs: Sequence[ProbeTurn]) -> ProbeResult:
    """Compare two answers to the same requests, up to where their tokens part."""
    pairs: list[tuple[float, float]] = []
    for our, their in zip(ours, theirs, strict=True):
        ids = zip(our.generation.token_ids, their.generation.token_ids, strict=False)
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], ids)))
        pairs += zip(our.generation.logprobs[:shared], their.generation.logprobs[:shared], strict=True)
    return result_of_pairs(pairs)


def result_of_pairs(pairs: Iterable[tuple[float, float]]) -> ProbeResult:
    """Return the mean and largest |difference| of pairs; infinite without any."""
    differences = [abs(ours - theirs) for ours, theirs in pairs]
    if not differences:
        return ProbeResult(float("inf"), float("inf"), 0)
    return ProbeResult(sum(differences) / len(differences), max(differences), len(differences))


def probe_requests(renderer: Renderer, version: int, images: int = 1) -> list[GenerationRequest]:
    """Return the requests: with a constant image, with a version's image, with both.

    The last one is left out if a prompt may have only one image.
    """
    seen, new = probe_picture(0), probe_picture(version + 1)
    words = random.Random(0)
    text = "Task: " + " ".join(
        f"{words.choice(('click', 'type', 'select', 'read'))} {words.randrange(1000)}" for _ in range(WORDS)
    )
    sets = [(seen,), (new,), *([(seen, new)] if images > 1 else [])]
    return [
        GenerationRequest(
            prompt=renderer.encode(text, [picture.size for picture in pictures]),
            pictures=pictures,
            key=f"probe/{index}",
            episode="probe",
            seed=0,
            max_new_tokens=TOKENS,
            temperature=TEMPERATURE,
        )
        for index, pictures in enumerate(sets)
    ]


def probe_picture(seed: int) -> Picture:
    """Return a JPEG with boxes at places that depend on the seed."""
    draws = random.Random(seed)
    image = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        left, top = draws.randrange(SIZE[0] - 60), draws.randrange(SIZE[1] - 40)
        colour = (draws.randrange(256), draws.randrange(256), draws.randrange(256))
        draw.rectangle((left, top, left + draws.randrange(20, 60), top + draws.randrange(10, 40)), fill=colour)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return Picture(buffer.getvalue(), SIZE)


class TransformersScorer:
    """Scores turns with transformers, in float32 on the CPU. Loads the model for each call."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @torch.inference_mode()
    def __call__(self, folder: Path, turns: Sequence[ProbeTurn]) -> list[list[float]]:
        model = load_policy(folder, torch.float32).eval()
        return [self._score(model, turn) for turn in turns]

    def _score(self, model: Any, turn: ProbeTurn) -> list[float]:
        prompt, generated = turn.request.prompt.ids, turn.generation.token_ids
        ids = torch.tensor([[*prompt, *generated]])
        model.model.rope_deltas = None  # transformers keeps the offset of the last call
        pixels = self._renderer.image_inputs([picture.jpeg for picture in turn.request.pictures])
        kinds = (ids == self._renderer.image_token_id).int()
        logits = (
            model(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, **pixels)
            .logits[0]
            .float()
        )
        scores = logits[len(prompt) - 1 : -1] / turn.request.temperature
        scores[:, self._renderer.banned_ids] = float("-inf")
        chosen = scores.log_softmax(-1).gather(1, torch.tensor(generated)[:, None])
        return [float(value) for value in chosen[:, 0]]


def default_limit(dtype: str) -> float:
    """Return the largest allowed mean |difference| for the data type of the served weights."""
    return FLOAT32_LIMIT if dtype == "float32" else LOW_PRECISION_LIMIT
