"""Generates turns with transformers in the worker's own process, for small policies and laptops.

`LocalModel` answers a batch of turns; `LocalEngine` forms the batches.
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
from training.serving.sampling import GrowingTurn, TokenSampler


class Model(Protocol):
    """Generates batches of turns. Blocks."""

    def load(self, version: int, folder: Path) -> None:
        """Serve the checkpoint in ``folder`` as ``version``, unless it is served already.

        Called from another thread than `generate`, possibly while that runs.
        """

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Return one turn for each request, in order."""


class LocalEngine:
    """`Engine` over a model in this process, with a thread for generation.

    Args:
        deterministic: True to batch the turns of all open sessions of a cohort, so that a batch's
            members do not depend on timing; False to batch whatever waits when the model is free.
        cohorts: Number of groups of sessions that take turns at the model, if deterministic.
        deadline: Seconds that a deterministic batch waits for slow sessions.
        busy: Context that is entered on the event loop while the model generates, to account for
            time.
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
        """Copy of the counters since the engine was created."""
        return replace(self._thread.statistics)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Return the model's turn for ``request``, generated in the next batch."""
        return await self._batches.generate(request)

    async def publish(self, version: int, folder: Path, *, or_newer: bool = False) -> None:
        """Serve a checkpoint, from the next token of a running batch on.

        On failure the previous version stays.

        Raises:
            StorageError: A file is not the published one or is truncated; the message names it.
            ReadError: A file cannot be read for the moment, because its disk or network fails.
            PolicyError: The checkpoint cannot be loaded.
        """
        await asyncio.to_thread(self._model.load, version, folder)

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Open a session; deterministic batches wait for the turn of every open session."""
        return self._batches.session(episode)

    async def close(self) -> None:
        """Stop the model's thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class LocalModel:
    """One transformers model on ``device``.

    A version that is loaded during a batch replaces the old one after the current forward pass. The
    tokens so far are kept, and the new weights compute their keys and values again. So each token
    comes from one version, and no cache mixes two.

    Args:
        renderer: Renderer of the policy; its processor makes the pixels.
        device: torch device; ``auto`` takes a CUDA device if there is one.
    """

    def __init__(self, renderer: Renderer, device: str = "auto") -> None:
        self.renderer = renderer
        self._device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._version: int | None = None
        self._model: Any = None
        self._in_use = Condition()
        """Lock of a batch until its next stop, or of a thread that loads."""
        self._loading: deque[int] = deque()
        """Versions that wait for a batch to stop, or are being loaded."""

    @property
    def policy_version(self) -> int | None:
        """Loaded version; ``None`` before the first."""
        return self._version

    def load(self, version: int, folder: Path) -> None:
        """Serve ``folder`` as ``version``. On failure the previous version stays.

        Raises:
            StorageError, ReadError, PolicyError: see `LocalEngine.publish`.
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
                f"{folder} is a {model.config.model_type} model without the image token of policy.template; "
                "use a Qwen-VL model"
            )
        model.generation_config = GenerationConfig(
            eos_token_id=end_ids(folder, self.renderer.tokenizer),
            pad_token_id=self.renderer.tokenizer.pad_token_id,
        )
        self._model, self._version = model.to(self._device).eval(), version

    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._device.type == "cuda" else torch.float32

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Return one turn for each request, in order.

        A prompt that leaves no room for a turn in the model's context gets an empty
        ``context_overflow`` turn.
        """
        if self._model is None:
            raise PolicyError("the inference engine has no policy yet: publish a version first")
        turns = [GrowingTurn(request) for request in requests if self._fits(request)]
        while under_way := [turn for turn in turns if turn.remaining]:
            with self._in_use:
                self._in_use.wait_for(lambda: not self._loading)
                self._grow(under_way)
        generations = map(_generation, turns)
        return [
            next(generations) if self._fits(request) else Generation((), (), (), "context_overflow")
            for request in requests
        ]

    def _fits(self, request: GenerationRequest) -> bool:
        return len(request.prompt.ids) + request.max_new_tokens <= self.renderer.context_tokens

    @torch.inference_mode()
    def _grow(self, turns: list[GrowingTurn]) -> None:
        """Extend these turns until all are complete or another version waits to be loaded."""
        sampler = TokenSampler(turns, self.renderer.banned_ids, self._device)
        inputs = self._inputs(turns)
        # transformers keeps the M-RoPE offset of the last call on the model; it would shift the
        # positions of this batch.
        self._model.model.rope_deltas = None
        self._model.generate(
            **inputs,
            logits_processor=LogitsProcessorList([sampler]),
            stopping_criteria=StoppingCriteriaList([_Stop(self._loading)]),
            generation_config=GenerationConfig(max_new_tokens=max(turn.remaining for turn in turns), do_sample=False),
        )
        ends = set(self._model.generation_config.eos_token_id)
        assert self._version is not None
        for turn, row in zip(turns, sampler.rows(), strict=True):
            turn.grow(*row, ends, self._version)

    def _inputs(self, turns: Sequence[GrowingTurn]) -> dict[str, torch.Tensor]:
        """Return left-padded ids and mask (B, L) of prompts and turns, and the pixels."""
        known = [[*turn.request.prompt.ids, *turn.ids] for turn in turns]
        width = max(map(len, known))
        ids = torch.full((len(turns), width), self.renderer.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, row_ids in enumerate(known):
            ids[row, width - len(row_ids) :] = torch.tensor(row_ids)
            mask[row, width - len(row_ids) :] = 1
        pixels = self.renderer.image_inputs([picture.jpeg for turn in turns for picture in turn.request.pictures])
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "mm_token_type_ids": (ids == self.renderer.image_token_id).int(),
            **pixels,
        }
        return {name: value.to(self._device) for name, value in inputs.items()}


class _Stop(StoppingCriteria):  # type: ignore[misc]
    """Stops all rows after the current forward pass if a version waits to be loaded."""

    def __init__(self, waiting: Sized) -> None:
        self._waiting = waiting

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), bool(self._waiting), device=input_ids.device)


def _generation(turn: GrowingTurn) -> Generation:
    reason: FinishReason = "stop" if turn.ended else "length"
    return Generation(tuple(turn.ids), tuple(turn.logprobs), tuple(turn.spans), reason)
