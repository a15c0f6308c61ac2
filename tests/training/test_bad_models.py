"""What the local engine says of a model that does not fit, and of a prompt that does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envs.types import PolicyError
from training.policy.renderer import Renderer
from training.serving.engine import GenerationRequest, Picture
from training.serving.local import LocalModel

from .vision_models import picture

SIZE = (96, 130)


def test_a_checkpoint_without_the_image_token_is_named(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """The version before is served on."""
    whole = tiny_checkpoint("qwen2_vl")
    other = shutil.copytree(whole, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"image_token_id": config["image_token_id"] + 1}))
    engine = LocalModel(Renderer(whole, "qwen2_vl"), "cpu")
    engine.load(0, whole)
    with pytest.raises(PolicyError, match=r"other is a qwen2_vl model without the image token of policy\.template"):
        engine.load(1, other)
    assert engine.policy_version == 0


def test_a_prompt_longer_than_the_model_gets_no_turn_and_its_neighbours_do(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    renderer = Renderer(tiny_checkpoint("qwen2_vl"), "qwen2_vl")
    engine = LocalModel(renderer, "cpu")
    engine.load(0, tiny_checkpoint("qwen2_vl"))
    prompt = renderer.encode("press go", [SIZE])
    short = GenerationRequest(
        prompt=prompt,
        pictures=(Picture(picture(SIZE), SIZE),),
        key="e-0",
        episode="e",
        seed=1,
        max_new_tokens=2,
        temperature=1.0,
        greedy=True,
    )
    renderer.context_tokens = len(prompt.ids) + 2
    long = replace(short, max_new_tokens=3)
    fits, too_long, again = engine.generate([short, long, short])
    assert (too_long.token_ids, too_long.finish_reason) == ((), "context_overflow")
    assert fits.token_ids and fits.token_ids == again.token_ids
