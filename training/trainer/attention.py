"""Attention over packed rows: each token attends to the earlier tokens of its own row.

A micro-batch is one sequence of rows, one after the other (`collate.MicroBatch`), with the rows'
boundaries as ``cu_seq_lens_q``. flash-attention (``trainer.llamafactory: {flash_attn: fa2}``) takes
them in transformers. torch's own attention would need a mask of S x S there, and the time of it;
the function here calls it once a row instead, causal and without a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "sdpa_of_rows"
"""Name of the function in transformers' table of attention functions."""


def attend_in_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return causal attention inside each row, ``[1, S, heads, width]``.

    Args:
        query: ``[1, heads, S, width]``, as ``key`` and ``value`` are.
        attention_mask: Unused; there is no padding.
        cu_seq_lens_q: Boundaries of the rows, ``[rows + 1]`` from 0 to S.
    """
    lengths = cu_seq_lens_q.diff().tolist()
    rows = zip(*(torch.split(states, lengths, dim=2) for states in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, *row, None, **options)[0] for row in rows], dim=1), None


def attend_to_rows(model: PreTrainedModel) -> None:
    """Make a model's text part attend inside rows where it uses torch's attention.

    Other implementations stay: transformers gives them the rows' boundaries or a mask of them.
    """
    config: PreTrainedConfig = model.config.get_text_config()
    if config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attend_in_rows)
        config._attn_implementation = NAME
