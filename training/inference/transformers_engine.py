"""In-process generation with transformers, for small policies and laptops.

The embedded engine, in the worker's own process.

Sampling adds Gumbel noise to the tempered log-probs and takes the maximum, which draws exactly from the distribution. The noise of each
turn comes from its own generator, so a turn does not depend on what else is in its batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForImageTextToText, GenerationConfig, LogitsProcessor, LogitsProcessorList

from envs.types import PolicyError
from training.inference.engine import Generation, GenerationRequest
from training.ledger.checkpoint_files import check_checkpoint_files
from training.ledger.disk import raise_read_errors, read_fault
from training.policy.bans import banned_ids
from training.policy.renderer import PromptRenderer


class TransformersEngine:
    """An ``InferenceEngine`` over one transformers model on ``device``.

    Args:
        template: LLaMA-Factory template that prompts are rendered with.
        device: torch device; ``auto`` takes a CUDA device when there is one.
    """

    def __init__(self, template: str, device: str = "auto") -> None:
        self._template = template
        self._device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._version: int | None = None
        self._model: Any = None
        self._renderer: PromptRenderer | None = None
        self._banned: list[int] = []
        self._image_token: int = -1

    @property
    def policy_version(self) -> int | None:
        return self._version

    def load(self, version: int, checkpoint: Path) -> None:
        """Serve ``checkpoint`` as ``version``; tokenizer and processor are read once, the weights each time.

        Raises:
            StorageError: A file is not the one that was published, or is cut short; names it.
            ReadError: A file cannot be read for the moment: its disk or network fails.
            PolicyError: The checkpoint cannot be loaded.
        """
        if version == self._version:
            return
        with raise_read_errors(checkpoint):
            model, renderer = self._read(checkpoint)
        image_token = getattr(model.config, "image_token_id", None)
        if image_token is None:
            raise PolicyError(
                f"{checkpoint} is a {model.config.model_type} model without an image token; Qwen-VL ones are known"
            )
        model.generation_config = GenerationConfig(
            eos_token_id=self._end_ids(model.generation_config.eos_token_id),
            pad_token_id=renderer.tokenizer.pad_token_id,
        )
        self._model, self._image_token, self._version = model.to(self._device).eval(), image_token, version

    def _read(self, checkpoint: Path) -> tuple[Any, PromptRenderer]:
        """The model, and the renderer, which the first checkpoint gives."""
        check_checkpoint_files(checkpoint)
        try:
            if self._renderer is None:
                self._renderer = PromptRenderer(checkpoint, self._template)
                self._banned = banned_ids(checkpoint)
            return AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=self._dtype()), self._renderer
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            if read_fault(error) is not None:
                raise  # it says nothing of the checkpoint
            why = str(error).strip().partition("\n")[0]
            raise PolicyError(f"checkpoint {checkpoint} cannot be loaded: {type(error).__name__}: {why}") from error

    def _end_ids(self, named: int | list[int] | None) -> list[int]:
        """The tokens that end a turn: those that the checkpoint names, or else its tokenizer's.

        The only part of a checkpoint's generation_config.json that counts. Its penalties, filters and lengths would change the distribution
        that turns are sampled from, and the trainer would not know of it.
        """
        ends = [named] if isinstance(named, int) else named or [self._loaded().tokenizer.eos_token_id]
        if None in ends:
            raise PolicyError(
                "the checkpoint names no end-of-turn token; set eos_token_id in its generation_config.json,"
                " or eos_token in its tokenizer_config.json"
            )
        return list(ends)

    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._device.type == "cuda" else torch.float32

    def encode(self, text: str, image_size: tuple[int, int]) -> list[int]:
        return self._loaded().encode(text, image_size)

    def encode_response(self, text: str) -> list[int]:
        tokenizer = self._loaded().tokenizer
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One turn for each request, in order; requests of one call share ``max_new_tokens``'s maximum."""
        renderer = self._loaded()
        if not requests:
            return []
        sampler = _Sampler(requests, self._banned, self._device)
        inputs = self._batch(renderer, requests)
        # transformers keeps the M-RoPE offset of the last call on the model; a stale one would shift the positions of this batch.
        self._model.model.rope_deltas = None
        ends = set(self._model.generation_config.eos_token_id)
        self._model.generate(
            **inputs,
            logits_processor=LogitsProcessorList([sampler]),
            generation_config=GenerationConfig(
                max_new_tokens=max(request.max_new_tokens for request in requests), do_sample=False
            ),
        )
        return [self._generation(renderer, *turn, ends) for turn in sampler.turns()]

    def _batch(self, renderer: PromptRenderer, requests: Sequence[GenerationRequest]) -> dict[str, torch.Tensor]:
        """Left-padded model inputs: ids and mask (B, L), pixels of all images."""
        width = max(len(request.prompt_ids) for request in requests)
        ids = torch.full((len(requests), width), renderer.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask[row, width - len(request.prompt_ids) :] = 1
        pixels = renderer.image_inputs([image for request in requests for image in request.images])
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "mm_token_type_ids": (ids == self._image_token).int(),
            **pixels,
        }
        return {name: value.to(self._device) for name, value in inputs.items()}

    def _generation(
        self, renderer: PromptRenderer, ids: list[int], logprobs: list[float], limit: int, ends: set[int]
    ) -> Generation:
        """Cut a row after its end token or its own limit (others of its batch may have gone on)."""
        stop = next((index + 1 for index, token in enumerate(ids) if token in ends), len(ids))
        stop = min(stop, limit)
        assert self._version is not None
        return Generation(tuple(ids[:stop]), tuple(logprobs[:stop]), self._version, renderer.decode(ids[:stop]))

    def _loaded(self) -> PromptRenderer:
        if self._renderer is None:
            raise PolicyError("the inference engine has no policy yet: call load(version, checkpoint) first")
        return self._renderer


class _Sampler(LogitsProcessor):  # type: ignore[misc]
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


def noise_seed(seed: int, key: str) -> int:
    """63-bit seed of one turn's noise, stable across processes and machines."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:8], "big") >> 1
