"""Collates rows into the tensors of one packed sequence with LLaMA-Factory's collator.

Its multimodal plugin makes pixels, grids and rotary positions from the stored ids. Its own packing
is not used: it counts positions for the mask by the rotary ones, which stand still inside a
picture, and asks for a fixed length.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import torch
from llamafactory.data import SFTDataCollatorWith4DAttentionMask
from PIL import Image
from torch import Tensor

from envs.types import TrainingError
from training.algorithms.losses import IGNORE_INDEX
from training.trainer.pictures import distinct_pictures
from training.trainer.rows import TrainingRow

OF_TOKENS = ("input_ids", "token_type_ids", "mm_token_type_ids")
"""Inputs of the shape ``[B, L]`` that are packed."""
OF_PADDING = ("attention_mask", "labels", "position_ids", "rope_deltas")
"""Outputs of LLaMA-Factory's collator that say where the padding is, which is taken out."""


@dataclass(kw_only=True)
class MicroBatch:
    """Tensors of one forward pass over packed sequences.

    B is the number of rows. C is the length of the longest response. Sequences have no padding and
    follow one another in one sequence of S tokens; each begins at position 0 and sees no other.
    Rows whose prompts continue one another share a sequence (see `TrainingRow.sequence`).

    This is not a dict of tensors, because transformers' trainer casts every float tensor of a dict
    to the model's dtype under DeepSpeed, and bfloat16 is too coarse for log-probabilities.
    """

    inputs: dict[str, Any]
    """Arguments of the model's forward. ``logits_to_keep`` are the positions that predict a
    response token, row by row: there are no other logits."""
    targets: Tensor
    """``[B, C]`` response ids; ``IGNORE_INDEX`` after a response's end."""
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
        sequences = share_sequences(rows)
        longest = [rows[members[-1]] for members in sequences]
        inputs, starts = self._packed(longest)
        start_of = {row: start for members, start in zip(sequences, starts, strict=False) for row in members}
        # Position t predicts token t + 1.
        first = [start_of[index] + len(row.prompt_ids) - 1 for index, row in enumerate(rows)]
        lengths = [len(row.response_ids) for row in rows]
        inputs["logits_to_keep"] = torch.cat(
            [torch.arange(start, start + length) for start, length in zip(first, lengths, strict=True)]
        )
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        targets = torch.full(mask.shape, IGNORE_INDEX)
        targets[mask] = torch.tensor([token for row in rows for token in row.response_ids])
        behaviour = torch.zeros(mask.shape, dtype=torch.float32)
        behaviour[mask] = torch.tensor([value for row in rows for value in row.behaviour], dtype=torch.float32)
        return MicroBatch(
            inputs={**inputs, "use_cache": False},
            targets=targets,
            mask=mask & torch.tensor(counts)[:, None],
            behaviour=behaviour,
            advantages=torch.tensor([row.advantage for row in rows], dtype=torch.float32),
            row_weights=torch.tensor(weights or [1.0] * len(rows), dtype=torch.float32),
            images=torch.tensor([len(row.screenshots) for row in rows]),
        )

    def _packed(self, rows: Sequence[TrainingRow]) -> tuple[dict[str, Any], list[int]]:
        """Return the model's inputs for rows that follow one another, and where each begins.

        Rows without any picture are followed by the blank one that LLaMA-Factory adds, so that all
        processes use the image encoder; it is a sequence of its own.
        """
        features = [features_of(row) for row in rows]
        padded = self(features)
        self._check_pictures(rows, padded.get("image_grid_thw"))
        spans = [(index, 0, len(row)) for index, row in enumerate(rows)]
        if (end := len(features[0]["input_ids"])) > len(rows[0]):
            spans.append((0, len(rows[0]), end))

        def packed(values: Tensor) -> Tensor:
            return torch.cat([values[..., index, start:end] for index, start, end in spans], dim=-1).unsqueeze(-2)

        lengths = [end - start for _, start, end in spans]
        # Positions of the text: transformers and flash-attention find the rows by them.
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        if "position_ids" in padded:
            # Qwen2-VL and its kin: time, height and width after those (LLaMA-Factory gives four).
            positions = torch.cat([positions[None], packed(padded["position_ids"][-3:])])
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        inputs = {name: value for name, value in padded.items() if name not in (*OF_TOKENS, *OF_PADDING)}
        inputs |= {name: packed(padded[name]) for name in OF_TOKENS if name in padded}
        pictures = [picture for row in rows for picture in row.screenshots]
        if pictures:
            inputs["pixel_values"], inputs["image_grid_thw"] = distinct_pictures(
                pictures, inputs["pixel_values"], inputs["image_grid_thw"]
            )
        inputs |= {"position_ids": positions, "cu_seq_lens_q": bounds.int(), "cu_seq_lens_k": bounds.int()}
        return {**inputs, "max_length_q": max(lengths), "max_length_k": max(lengths)}, bounds.tolist()

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


def share_sequences(rows: Sequence[TrainingRow]) -> list[list[int]]:
    """Return the rows of each sequence, the longest last, in the order of their first rows.

    Raises:
        TrainingError: A row does not begin with a shorter one that is said to be of its sequence.
    """
    members: dict[Hashable, list[int]] = {}
    for index, row in enumerate(rows):
        members.setdefault(index if row.sequence is None else (row.episode_id, row.sequence), []).append(index)
    sequences = [sorted(indices, key=lambda index: len(rows[index])) for indices in members.values()]
    for sequence in sequences:
        longest = rows[sequence[-1]]
        ids = longest.ids() if len(sequence) > 1 else []
        for row in map(rows.__getitem__, sequence[:-1]):
            own, pictures = row.ids(), row.screenshots
            if ids[: len(own)] != own or longest.screenshots[: len(pictures)] != pictures:
                raise TrainingError(f"steps of {row.episode_id} were to share a sequence, and are not parts of one")
    return sequences


def features_of(row: TrainingRow) -> dict[str, Any]:
    """Return a row as LLaMA-Factory's collator takes it."""
    ids = row.ids()
    return {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "labels": [IGNORE_INDEX] * len(row.prompt_ids) + list(row.response_ids),
        "images": [Image.open(BytesIO(screenshot)) for screenshot in row.screenshots],
    }
