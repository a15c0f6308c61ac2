"""Collates rows into tensors with LLaMA-Factory's collator.

Its multimodal plugin makes pixels, grids and rotary positions from the stored ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import torch
from llamafactory.data import SFTDataCollatorWith4DAttentionMask
from PIL import Image
from torch import Tensor

from envs.types import TrainingError
from training.algorithms.losses import IGNORE_INDEX
from training.trainer.rows import TrainingRow


@dataclass(kw_only=True)
class MicroBatch:
    """Tensors of one forward pass.

    B is the number of rows. C is the number of response columns: positions that predict a response
    token in at least one row.

    This is not a dict of tensors, because transformers' trainer casts every float tensor of a dict
    to the model's dtype under DeepSpeed, and bfloat16 is too coarse for log-probabilities.
    """

    inputs: dict[str, Any]
    """Arguments of the model's forward. ``logits_to_keep`` are the C columns: no other logits."""
    targets: Tensor
    """``[B, C]`` response ids; ``IGNORE_INDEX`` elsewhere."""
    mask: Tensor
    """``[B, C]`` bool; true on the response tokens of rows that count."""
    behaviour: Tensor
    """``[B, C]`` float32 log pi_behaviour."""
    advantages: Tensor
    """``[B]`` float32 advantages."""
    row_weights: Tensor
    """``[B]`` float32 weight of each row's tokens in the loss (see `aggregation_weights`)."""
    images: Tensor
    """``[B]`` int64 number of images."""
    proximal: Tensor | None = field(default=None)
    """``[B, C]`` log pi_proximal, set at the start of an update."""
    reference: Tensor | None = field(default=None)
    """``[B, C]`` log-probabilities of the run's first policy, if the loss has a KL term."""

    def nbytes(self) -> int:
        """Return the memory of its tensors in bytes."""
        return sum(value.nbytes for value in [*self.inputs.values(), *vars(self).values()] if isinstance(value, Tensor))


@dataclass
class PolicyCollator(SFTDataCollatorWith4DAttentionMask):  # type: ignore[misc]
    """LLaMA-Factory's SFT collator with additional tensors for reinforcement learning."""

    def micro_batch(
        self, rows: Sequence[TrainingRow], counts: Sequence[bool], weights: Sequence[float] | None = None
    ) -> MicroBatch:
        """Collate rows into a micro-batch.

        Args:
            rows: Rows to collate.
            counts: False for filler rows, which no loss or metric sees.
            weights: Weight of each row's tokens; ``None``: 1.
        """
        inputs = self([_features(row) for row in rows])
        self._check_pictures(rows, inputs.get("image_grid_thw"))
        labels = inputs.pop("labels")
        # Position t predicts token t + 1.
        responses = labels[:, 1:] != IGNORE_INDEX
        columns = responses.any(0).nonzero()[:, 0]
        targets = labels[:, 1:][:, columns]
        behaviour = torch.zeros(targets.shape, dtype=torch.float32)
        behaviour[targets != IGNORE_INDEX] = torch.tensor(
            [value for row in rows for value in row.behaviour], dtype=torch.float32
        )
        return MicroBatch(
            inputs={**inputs, "logits_to_keep": columns, "use_cache": False},
            targets=targets,
            mask=(targets != IGNORE_INDEX) & torch.tensor(counts)[:, None],
            behaviour=behaviour,
            advantages=torch.tensor([row.advantage for row in rows], dtype=torch.float32),
            row_weights=torch.tensor(weights or [1.0] * len(rows), dtype=torch.float32),
            images=torch.tensor([len(row.screenshots) for row in rows]),
        )

    def _check_pictures(self, rows: Sequence[TrainingRow], grids: Tensor | None) -> None:
        """Check that each row has as many placeholders as its pictures have patches.

        Raises:
            TrainingError: a row has not; the message names the first one.
        """
        token = self.tokenizer.convert_tokens_to_ids(self.template.mm_plugin.image_token)
        merged = self.processor.image_processor.merge_size**2
        patches = iter([] if grids is None else (grids.prod(1) // merged).tolist())
        for row in rows:
            expected = sum(next(patches) for _ in row.screenshots)
            if (placeholders := row.prompt_ids.count(token)) != expected:
                raise TrainingError(
                    f"a step of {row.episode_id or 'an episode'} has {placeholders} image placeholders, and its "
                    f"{len(row.screenshots)} pictures have {expected} patches: its record does not belong to this "
                    "checkpoint, or a picture was replaced"
                )


def _features(row: TrainingRow) -> dict[str, Any]:
    ids = [*row.prompt_ids, *row.response_ids]
    return {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "labels": [IGNORE_INDEX] * len(row.prompt_ids) + list(row.response_ids),
        "images": [Image.open(BytesIO(screenshot)) for screenshot in row.screenshots],
    }
