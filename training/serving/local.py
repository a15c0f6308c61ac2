"""In-process generation with transformers, for small policies and laptops.

The embedded engine, in the worker's own process. `LocalModel` answers a batch of turns, `LocalEngine` makes the batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Condition
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from envs.types import FinishReason, PolicyError
from training.policy.adapters import load_policy
from training.policy.renderer import Renderer, end_ids
from training.serving.batches import Batching, CohortBatches, FreeBatches, ModelThread
from training.serving.engine import EngineStatistics, Generation, GenerationRequest
from training.serving.sampling import GrowingTurn, Sampler


class Model(Protocol):
    """Answers batches of turns. Blocks."""

    def load(self, version: int, folder: Path) -> None:
        """Serve the checkpoint in ``folder`` as ``version``. Nothing happens if that version is served.

        Called from another thread than `generate`, also while that goes on.
        """

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One turn for each request, in order."""


class LocalEngine:
    """An `Engine` over a model in this process, which answers one batch at a time in a thread of its own.

    Args:
        deterministic: Batches are made of the turns of all open sessions of a cohort, so that a turn's company does not depend on timing;
            otherwise of whatever waits when the model is free.
        cohorts: Parts of the sessions that use model and browser in turn, where batches are deterministic.
        deadline: Seconds that such a batch waits for slow sessions.
        busy: Entered on the event loop while the model generates: for those who account for time.
    """

    def __init__(
        self,
        model: Model,
        *,
        deterministic: bool = True,
        cohorts: int = 1,
        deadline: float = 2.0,
        busy: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._model = model
        self._executor = ThreadPoolExecutor(1, "generate")
        self._thread = ModelThread(model.generate, self._executor, busy)
        self._batches: Batching = (
            CohortBatches(self._thread, deadline, cohorts) if deterministic else FreeBatches(self._thread)
        )

    @property
    def statistics(self) -> EngineStatistics:
        """What its batches were since it was made, as they are now."""
        return replace(self._thread.statistics)

    async def generate(self, request: GenerationRequest) -> Generation:
        """The turn that the model makes for ``request``, in the next batch."""
        return await self._batches.generate(request)

    async def publish(self, version: int, folder: Path) -> None:
        """Serve a checkpoint; a batch under way goes on with it. What fails leaves the version before in place.

        Raises:
            StorageError: A file is not the one that was published, or is cut short; names it.
            ReadError: A file cannot be read for the moment: its disk or network fails.
            PolicyError: The checkpoint cannot be loaded.
        """
        await asyncio.to_thread(self._model.load, version, folder)

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Where batches are deterministic they wait for the turn of every open session."""
        return self._batches.session(episode)

    async def close(self) -> None:
        """Let go of the model's thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class LocalModel:
    """One transformers model on ``device``.

    A version that is loaded while a batch is generated takes its place after the forward pass under way: what there is of the turns stays, and
    is read anew by the new weights, so that each token is of one version and no cache is of two.

    Args:
        renderer: Of the policy: its processor makes the pixels.
        device: torch device; ``auto`` takes a CUDA device when there is one.
    """

    def __init__(self, renderer: Renderer, device: str = "auto") -> None:
        self.renderer = renderer
        self._device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._version: int | None = None
        self._model: Any = None
        self._in_use = Condition()
        """Held by a batch, up to its next stop, or by who loads."""
        self._loading: deque[int] = deque()
        """Versions that wait for a stop, or are being loaded."""

    @property
    def policy_version(self) -> int | None:
        """Version that is loaded, ``None`` before the first."""
        return self._version

    def load(self, version: int, folder: Path) -> None:
        """Serve ``folder`` as ``version``. A fault leaves the version before.

        Raises:
            StorageError, ReadError, PolicyError: as `LocalEngine.publish`.
        """
        if version == self._version:
            return
        self._loading.append(version)
        with self._in_use:
            try:
                self._load(version, folder)
            finally:
                self._loading.remove(version)
                self._in_use.notify_all()

    def _load(self, version: int, folder: Path) -> None:
        model = load_policy(folder, self._dtype())
        if getattr(model.config, "image_token_id", None) != self.renderer.image_token_id:
            raise PolicyError(
                f"{folder} is a {model.config.model_type} model without the image token of policy.template; Qwen-VL ones are known"
            )
        model.generation_config = GenerationConfig(
            eos_token_id=end_ids(folder, self.renderer.tokenizer),
            pad_token_id=self.renderer.tokenizer.pad_token_id,
        )
        self._model, self._version = model.to(self._device).eval(), version

    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._device.type == "cuda" else torch.float32

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One turn for each request, in order. A prompt that leaves no room for its turn in the model's context gets none."""
        if self._model is None:
            raise PolicyError("the inference engine has no policy yet: publish a version first")
        turns = [GrowingTurn(request) for request in requests if self._fits(request)]
        while under_way := [turn for turn in turns if turn.room]:
            with self._in_use:
                self._in_use.wait_for(lambda: not self._loading)
                self._grow(under_way)
        made = map(_generation, turns)
        return [
            next(made) if self._fits(request) else Generation((), (), (), "context_overflow") for request in requests
        ]

    def _fits(self, request: GenerationRequest) -> bool:
        return len(request.prompt.ids) + request.max_new_tokens <= self.renderer.context_tokens

    @torch.inference_mode()
    def _grow(self, turns: list[GrowingTurn]) -> None:
        """Go on with these turns until all are whole, or another version is to be loaded."""
        sampler = Sampler(turns, self.renderer.banned_ids, self._device)
        inputs = self._inputs(turns)
        # transformers keeps the M-RoPE offset of the last call on the model; a stale one would shift the positions of this batch.
        self._model.model.rope_deltas = None
        self._model.generate(
            **inputs,
            logits_processor=LogitsProcessorList([sampler]),
            stopping_criteria=StoppingCriteriaList([_Stop(self._loading)]),
            generation_config=GenerationConfig(max_new_tokens=max(turn.room for turn in turns), do_sample=False),
        )
        ends = set(self._model.generation_config.eos_token_id)
        assert self._version is not None
        for turn, row in zip(turns, sampler.rows(), strict=True):
            turn.grow(*row, ends, self._version)

    def _inputs(self, turns: Sequence[GrowingTurn]) -> dict[str, torch.Tensor]:
        """Left-padded model inputs: ids and mask (B, L) of the prompts and what there is of the turns, pixels of all images."""
        known = [[*turn.request.prompt.ids, *turn.ids] for turn in turns]
        width = max(map(len, known))
        ids = torch.full((len(turns), width), self.renderer.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, given in enumerate(known):
            ids[row, width - len(given) :] = torch.tensor(given)
            mask[row, width - len(given) :] = 1
        pixels = self.renderer.image_inputs([each.jpeg for turn in turns for each in turn.request.pictures])
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "mm_token_type_ids": (ids == self.renderer.image_token_id).int(),
            **pixels,
        }
        return {name: value.to(self._device) for name, value in inputs.items()}


class _Stop(StoppingCriteria):  # type: ignore[misc]
    """Stops all rows after the forward pass under way while anything waits."""

    def __init__(self, waiting: Sized) -> None:
        self._waiting = waiting

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), bool(self._waiting), device=input_ids.device)


def _generation(turn: GrowingTurn) -> Generation:
    reason: FinishReason = "stop" if turn.ended else "length"
    return Generation(tuple(turn.ids), tuple(turn.logprobs), tuple(turn.spans), reason)
