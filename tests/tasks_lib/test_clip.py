"""CLIP from a folder, with random weights: what is a number, what is refused. Whether real weights
say what the paper's do is not tried here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs.rewards.design2code import PageBlocks, TextBlock, design_score
from envs.types import ConfigError
from tasks_lib.config import EvaluateConfig, resolve
from tasks_lib.worker.clip import load_clip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two small layers."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={**small, "vocab_size": 50, "projection_dim": 8},
        vision_config={**small, "image_size": 32, "patch_size": 8, "projection_dim": 8},
        projection_dim=8,
    )
    made = tmp_path_factory.mktemp("clip")
    CLIPModel(config).save_pretrained(made)
    size = {"height": 32, "width": 32}
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size).save_pretrained(made)
    return made


def test_a_picture_is_most_like_itself(folder: Path) -> None:
    clip = load_clip(folder)
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, (60, 90, 3)).astype(np.uint8)
    second = np.zeros((100, 40, 3), dtype=np.uint8)
    assert clip(first, first) == pytest.approx(1.0, abs=1e-5)
    other = clip(first, second)
    assert -1 <= other < 1 - 1e-4 and clip(first, second) == other
    block = TextBlock(text="a", left=0, top=0, width=5, height=5, colour=(0, 0, 0))
    page = PageBlocks(width=90, height=60, blocks=(block,))
    score = design_score(page, page, (first, first), clip)
    assert score.visual_name == "clip" and score.final == pytest.approx(1.0, abs=1e-5)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no CLIP checkpoint"):
        load_clip(tmp_path)
    with pytest.raises(ConfigError, match=r"rewards\.clip: .* is no Hugging Face checkpoint folder"):
        resolve(EvaluateConfig, {"rewards": {"clip": str(tmp_path)}})


def test_a_folder_with_weights_is_taken(folder: Path) -> None:
    config: EvaluateConfig = resolve(EvaluateConfig, {"rewards": {"clip": str(folder)}})
    assert config.rewards.clip == str(folder)
