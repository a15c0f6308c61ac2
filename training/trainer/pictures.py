"""Encodes each picture of a micro-batch once, in however many of its rows it is.

Steps of an episode whose context is a window show the same pictures up to as many times as the
window has rounds, and the attempts of a group begin with the same page. A picture's embeddings do
not depend on the row, so they are computed once and copied to each place; the gradients of the
places add up. The image encoder is a tenth to a third of a model's work in such rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def distinct_pictures(pictures: Sequence[bytes], pixels: Tensor, grids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixels of the distinct pictures, and the grids with a fourth column.

    Args:
        pictures: Encoded pictures, N of them, in placeholder order.
        pixels: ``[patches, width]`` patches of all pictures, one picture after the other.
        grids: ``[N, 3]`` patches of each picture in time, height and width.

    Returns:
        ``[patches, width]`` patches of each distinct picture, in the order of their first places,
        and ``[N, 4]`` grids; their last column is the picture's place among the distinct ones.
    """
    numbers: dict[bytes, int] = {}
    places = [numbers.setdefault(picture, len(numbers)) for picture in pictures]
    if len(numbers) < len(places):  # else a copy of what may be hundreds of megabytes
        parts = torch.split(pixels, grids.prod(1).tolist())
        pixels = torch.cat([parts[first] for first in _first_places(places)])
    return pixels, torch.cat([grids, torch.tensor(places)[:, None]], dim=1)


def encode_pictures_once(model: nn.Module) -> None:
    """Make a model take the pixels and grids of `distinct_pictures`; other inputs stay possible."""
    for module in model.modules():
        if "visual" in dict(module.named_children()) and hasattr(module, "get_image_features"):
            _wrap(module)


def _wrap(module: Any) -> None:
    encode = module.get_image_features

    def get_image_features(pixel_values: Tensor, image_grid_thw: Tensor, **options: Any) -> Any:
        if image_grid_thw.shape[1] == 3:
            return encode(pixel_values, image_grid_thw, **options)
        places = image_grid_thw[:, 3].tolist()
        outputs = encode(pixel_values, image_grid_thw[_first_places(places), :3], **options)
        embeddings = outputs.pooler_output
        outputs.pooler_output = tuple(embeddings[place] for place in places)
        if layers := getattr(outputs, "deepstack_features", None):
            lengths = [len(embedding) for embedding in embeddings]
            outputs.deepstack_features = [_copied(torch.split(layer, lengths), places) for layer in layers]
        return outputs

    module.get_image_features = get_image_features


def _copied(parts: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    return torch.cat([parts[place] for place in places])


def _first_places(places: Sequence[int]) -> list[int]:
    """Return the index of the first occurrence of 0, 1, 2, …"""
    return [places.index(number) for number in range(max(places) + 1)]
