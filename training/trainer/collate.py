"""Collates rows into tensors through LLaMA-Factory's collator.

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
    """One forward pass.

    B rows; C response columns (positions that predict a response token in at least one row).

    No dict of tensors on purpose: transformers' trainer casts every float tensor of a dict to the model's dtype under DeepSpeed, and
    log-probabilities in bfloat16 are noise.
    """

    inputs: dict[str, Any]
    """For the model's forward. ``logits_to_keep`` are the C columns, so that logits exist for nothing else."""
    targets: Tensor
    """``[B, C]`` response ids, ``IGNORE_INDEX`` elsewhere."""
    mask: Tensor
    """``[B, C]`` true on response tokens of rows that count."""
    behaviour: Tensor
    """``[B, C]`` log pi_behaviour."""
    advantages: Tensor
    """``[B]``"""
    row_weights: Tensor
    """``[B]``, of each row's tokens in the minibatch's loss (`aggregation_weights`)."""
    images: Tensor
    """``[B]`` int64, in each row."""
    proximal: Tensor | None = field(default=None)
    """``[B, C]``, set at the start of an update."""
    reference: Tensor | None = field(default=None)
    """``[B, C]`` of the run's first policy, where the loss holds on to it."""

    def nbytes(self) -> int:
        """Memory of its tensors."""
        return sum(value.nbytes for value in [*self.inputs.values(), *vars(self).values()] if isinstance(value, Tensor))


@dataclass
class PolicyCollator(SFTDataCollatorWith4DAttentionMask):  # type: ignore[misc]
    """LLaMA-Factory's SFT collator with the columns of reinforcement learning."""

    def micro_batch(
        self, rows: Sequence[TrainingRow], counts: Sequence[bool], weights: Sequence[float] | None = None
    ) -> MicroBatch:
        """Collate rows; those with ``counts`` false are filler that no loss or metric sees. ``weights``: of the rows' tokens, else 1."""
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
        """Each row has as many placeholders as its pictures have patches.

        Raises:
            TrainingError: names the first row that has not.
        """
        token = self.tokenizer.convert_tokens_to_ids(self.template.mm_plugin.image_token)
        merged = self.processor.image_processor.merge_size**2
        patches = iter([] if grids is None else (grids.prod(1) // merged).tolist())
        for row in rows:
            wanted = sum(next(patches) for _ in row.screenshots)
            if (found := row.prompt_ids.count(token)) != wanted:
                raise TrainingError(
                    f"a step of {row.episode_id or 'an episode'} has {found} image placeholders, and its {len(row.screenshots)} pictures "
                    f"have {wanted} patches: its record does not belong to this checkpoint, or a picture was replaced"
                )


def _features(row: TrainingRow) -> dict[str, Any]:
    ids = [*row.prompt_ids, *row.response_ids]
    return {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "labels": [IGNORE_INDEX] * len(row.prompt_ids) + list(row.response_ids),
        "images": [Image.open(BytesIO(screenshot)) for screenshot in row.screenshots],
    }
