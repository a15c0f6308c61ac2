"""Writes a reading circuit into a tiny Qwen2-VL's attention heads, which training then sharpens.

A two-layer "induction" circuit (Olsson et al. 2022, arXiv:2209.11895) finds where a token stood
before and looks at what followed. Gradient descent finds it too, but only after a plateau too long
for a CPU: with these heads at the start repeated random tokens are predicted after some 130 steps,
without them not even after 450.

Layer 0: two heads attend to the previous token, and one to the latest element number. The first two
use only the q and k biases: with rotary positions a pair of biases is a fixed preference for one
distance. Layer 1: two heads look for the token that followed the present one before. One copies
that token, the other the element number that it carries. Content is matched only in the slow rotary
dimensions, which hardly turn over the length of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from envs.types import PolicyError

HEAD = 32
"""Width of a head that the circuit needs."""
_HALF = HEAD // 2
_SLOW_PAIRS = range(6, _HALF)
_SLOW = torch.tensor([*_SLOW_PAIRS, *(index + _HALF for index in _SLOW_PAIRS)])
_OUT_SCALE = 0.2  # block outputs must stay below the token embeddings, or no head can match tokens


def write_reading_heads(language_model: Any, number_tokens: Sequence[int], rope_theta: float, seed: int) -> None:
    """Write the circuit into layers 0 and 1, and scale down all block outputs.

    It takes three heads of layer 0 and two of layer 1.

    Args:
        language_model: Text part of a Qwen2-VL, with at least two layers of three heads of width
            32, each with its own keys.
        number_tokens: Token ids of ``[1]``, ``[2]``, …
        rope_theta: Base of the model's rotary positions.
        seed: Seed of the random projections that connect the heads.
    """
    config = language_model.config
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    if config.hidden_size != heads * HEAD or keys != heads or heads < 3 or config.num_hidden_layers < 2:
        raise PolicyError(
            f"the reading heads need two layers or more of three or more heads of width {HEAD}, each with its own keys; "
            f"the model has {config.num_hidden_layers} layers of {heads} heads ({keys} with keys) over a hidden size of "
            f"{config.hidden_size}"
        )
    generator = torch.Generator().manual_seed(seed)
    speeds = rope_theta ** (-torch.arange(_HALF) / _HALF)
    with torch.no_grad():
        for name, parameter in language_model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter *= _OUT_SCALE
        first, second = (layer.self_attn for layer in language_model.layers[:2])
        for head in (0, 1):
            written = _attend_to_previous(first, head, speeds, generator)
            _match(second, head, *written, generator)
        read, write = _attend_to_number(first, 2, language_model.embed_tokens.weight, list(number_tokens), generator)
        _copy_from(second, 1, torch.linalg.pinv(write), torch.linalg.pinv(read) * 0.1)
        for layer in language_model.layers[2:]:
            for head in (0, 1):
                basis = torch.linalg.qr(torch.randn(layer.self_attn.q_proj.in_features, HEAD, generator=generator))[0]
                _copy_from(layer.self_attn, head, basis.T, basis * 0.3)


def _random(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    values: Tensor = torch.randn(rows, columns, generator=generator) / columns**0.5
    return values


def _rows(head: int) -> slice:
    return slice(head * HEAD, (head + 1) * HEAD)


def _attend_to_previous(attention: Any, head: int, speeds: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Attend to the previous token and write a random projection of it.

    Returns the matrices that read and write it.
    """
    rows, hidden, size = _rows(head), attention.q_proj.in_features, len(_SLOW)
    loud = torch.zeros(_HALF)
    loud[:4] = 7.0  # the fast pairs separate distances 0, 1 and 2: about 5 nats between the first and its neighbours
    attention.k_proj.bias[rows] = torch.cat([loud, torch.zeros(_HALF)])
    attention.q_proj.bias[rows] = torch.cat([loud * torch.cos(speeds), -loud * torch.sin(speeds)])
    attention.q_proj.weight[rows] *= 0.1
    attention.k_proj.weight[rows] *= 0.1
    read, write = _random(generator, size, hidden), _random(generator, hidden, size)
    _copy_from(attention, head, read, write * 0.08)
    return read, write


def _match(attention: Any, head: int, read: Tensor, write: Tensor, generator: torch.Generator) -> None:
    """Attend to tokens whose previous token is the present one, and copy them."""
    rows, hidden = _rows(head), attention.q_proj.in_features
    for projection, matrix in ((attention.q_proj, read), (attention.k_proj, torch.linalg.pinv(write))):
        placed = torch.zeros(HEAD, hidden)
        placed[_SLOW] = 1.7 * matrix
        projection.weight[rows] = placed
    basis = torch.linalg.qr(torch.randn(hidden, HEAD, generator=generator))[0]
    _copy_from(attention, head, basis.T, basis * 0.3)


def _attend_to_number(
    attention: Any, head: int, embeddings: Tensor, number_tokens: list[int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Attend to the latest element number and write a random projection of it.

    Returns the matrices that read and write it.
    """
    rows, hidden = _rows(head), attention.q_proj.in_features
    mark = nn.functional.normalize(torch.randn(hidden, generator=generator), dim=0)
    embeddings[number_tokens] += 0.5 * mark
    loud = torch.zeros(HEAD)
    loud[3:6] = 5.3  # these pairs fall off over tens of tokens, so the latest number wins
    attention.q_proj.bias[rows] = loud
    attention.q_proj.weight[rows] *= 0.1
    attention.k_proj.bias[rows] = 0.0
    # The normalised embedding of a number has a component of 5.5 along the mark.
    attention.k_proj.weight[rows] = torch.outer(loud, mark) / 5.5
    # The numbers' own embeddings separate them best in a head's few dimensions.
    read = torch.linalg.svd(embeddings[number_tokens], full_matrices=False).Vh
    write = _random(generator, hidden, len(read))
    _copy_from(attention, head, read, write * 0.03)
    return read, write


def _copy_from(attention: Any, head: int, read: Tensor, write: Tensor) -> None:
    """Set a head's value matrix ``read`` [size, hidden] and output matrix ``write`` [hidden, size].

    ``size`` is at most the head's width.
    """
    start, size = head * HEAD, len(read)
    attention.v_proj.weight[_rows(head)] = 0.0
    attention.v_proj.weight[start : start + size] = read
    attention.o_proj.weight[:, _rows(head)] = 0.0
    attention.o_proj.weight[:, start : start + size] = write
