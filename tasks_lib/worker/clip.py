"""CLIP similarity of two images, from weights in a folder.

The visual part of Design2Code's score, as in its paper.
"""

from __future__ import annotations

import threading
from pathlib import Path

from envs.rewards import Clip, Image
from envs.types import ConfigError


def load_clip(folder: Path) -> Clip:
    """Load a Hugging Face checkpoint of CLIP as a function for `design_score`.

    The paper's checkpoint is ViT-B/32. The function computes on the CPU, one pair at a time. As in
    the paper, each picture is first resized to a square of its shorter side, which does not keep
    its proportions.

    Raises:
        ConfigError: the folder holds no CLIP checkpoint.
    """
    import torch
    from PIL import Image as Pictures
    from transformers import CLIPImageProcessor, CLIPModel

    try:
        model = CLIPModel.from_pretrained(str(folder), local_files_only=True).eval()
        processor = CLIPImageProcessor.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"rewards.clip: {folder} holds no CLIP checkpoint (config.json, weights, preprocessor_config.json): {error}"
        ) from error
    lock = threading.Lock()

    def cosine(first: Image, second: Image) -> float:
        squares = []
        for image in (first, second):
            side = min(image.shape[:2])
            squares.append(Pictures.fromarray(image).resize((side, side)))
        with lock, torch.no_grad():
            pixels = processor(images=squares, return_tensors="pt")["pixel_values"]
            features = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
            value = torch.nn.functional.cosine_similarity(features[0], features[1], dim=0)
        return float(value)

    return cosine
