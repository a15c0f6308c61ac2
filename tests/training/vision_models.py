"""Tiny random checkpoints of each family of vision-language models that the project knows, made
offline."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image, ImageDraw

from training.warm_start.tiny_checkpoint import TinyShape, build_model, build_tokenizer, save_checkpoint

TEMPLATES = {"qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl_nothink"}
"""LLaMA-Factory's chat template of each family, by the ``model_type`` of its checkpoints."""
FAMILIES = tuple(TEMPLATES)

_PREFIX = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
_PATCH = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16}
_VISION: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"window_size": 112, "fullatt_block_indexes": [1]},
    "qwen3_vl": {"num_position_embeddings": 256, "deepstack_visual_indexes": [0]},
}


def make_checkpoint(family: str, folder: Path, seed: int = 0) -> Path:
    """A random model of half a million parameters with tokenizer and processor files;
    ``folder``."""
    shape = TinyShape(layers=2, seed=seed)
    tokenizer = build_tokenizer(shape.letter_merges_below)
    qwen2 = build_model(shape, tokenizer)
    if family == "qwen2_vl":
        save_checkpoint(qwen2, tokenizer, folder)
        return folder
    text = qwen2.config.text_config.to_dict()
    text.pop("model_type")
    if family == "qwen3_vl":
        text["head_dim"] = shape.hidden // shape.heads
        text["rope_parameters"] = text["rope_parameters"] | {"type": "default", "mrope_interleaved": True}
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "out_hidden_size": shape.hidden,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": _PATCH[family],
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        **_VISION[family],
    }
    marks = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "tie_word_embeddings")
    config = getattr(transformers, f"{_PREFIX[family]}Config")(
        text_config=text, vision_config=vision, **{name: getattr(qwen2.config, name) for name in marks}
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{_PREFIX[family]}ForConditionalGeneration")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, shape.std)
    model.generation_config = qwen2.generation_config
    save_family(family, model, tokenizer, folder)
    return folder


def save_family(family: str, model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a checkpoint of one of the two newer families."""
    save_checkpoint(model, tokenizer, folder)
    processor = f"{_PREFIX[family]}Processor"
    sizes = {"patch_size": _PATCH[family], "processor_class": processor}
    if family == "qwen3_vl":
        tiles = (2 * _PATCH[family]) ** 2
        sizes |= {"size": {"shortest_edge": 4 * tiles, "longest_edge": 256 * tiles}}
        sizes |= {"min_pixels": 4 * tiles, "max_pixels": 256 * tiles}
    change_json(folder / "tokenizer_config.json", processor_class=processor)
    change_json(folder / "preprocessor_config.json", **sizes)
    videos = "Qwen3VLVideoProcessor" if family == "qwen3_vl" else "Qwen2VLVideoProcessor"
    change_json(folder / "video_preprocessor_config.json", **sizes, video_processor_type=videos)


def change_json(path: Path, **values: object) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def picture(size: tuple[int, int], seed: int = 0) -> bytes:
    """A JPEG of (width, height) with a few coloured boxes."""
    generator = torch.Generator().manual_seed(seed)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for _ in range(8):
        x, y, red, green, blue = (int(value) for value in torch.randint(0, 256, (5,), generator=generator))
        left, top = x * size[0] // 300, y * size[1] // 300
        draw.rectangle((left, top, left + size[0] // 6, top + size[1] // 6), fill=(red, green, blue))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
