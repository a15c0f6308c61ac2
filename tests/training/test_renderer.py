"""Prompts with any number of images: both forms of the ids, and where the images are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envs.types import PolicyError
from training.policy.renderer import Renderer, find_images

from .vision_models import FAMILIES, TEMPLATES, picture

SIZES = [(160, 210), (96, 130), (160, 210)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", range(4))
def test_both_forms_differ_in_the_placeholders_alone(
    family: str, count: int, tiny_checkpoint: Callable[[str], Path]
) -> None:
    renderer = Renderer(tiny_checkpoint(family), TEMPLATES[family])
    sizes = SIZES[:count]
    prompt = renderer.encode("Task: <|image_pad| > press go", sizes)
    assert len(prompt.image_places) == count
    assert prompt.short_ids.count(renderer.image_token_id) == count
    expanded = list(prompt.short_ids)
    for offset, length in prompt.image_places:
        assert expanded[offset] == renderer.image_token_id
        expanded[offset : offset + 1] = [renderer.image_token_id] * length
    assert tuple(expanded) == prompt.ids
    if sizes:  # as many placeholders as the model gets features
        inputs = renderer.image_inputs([picture(size, number) for number, size in enumerate(sizes)])
        merged = renderer.processor.image_processor.merge_size**2
        assert [length for _, length in prompt.image_places] == [
            int(grid.prod()) // merged for grid in inputs["image_grid_thw"]
        ]
    assert renderer.decode(prompt.short_ids).endswith("press go\nassistant\n")


def test_images_that_touch_are_told_apart() -> None:
    prompt = find_images([9, 7, 7, 7, 8], 7, [1, 2])
    assert (prompt.short_ids, prompt.image_places) == ((9, 7, 7, 8), ((1, 1), (2, 2)))


@pytest.mark.parametrize("ids", [[9, 7, 8], [7, 7, 7, 7]])
def test_placeholders_that_are_not_those_of_the_images_are_refused(ids: list[int]) -> None:
    with pytest.raises(PolicyError, match=r"has \d image placeholders and its 2 images have 3: policy.template"):
        find_images(ids, 7, [1, 2])


def test_a_checkpoint_that_cannot_be_used_is_named(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="it has no config"):
        Renderer(tmp_path, "qwen2_vl")
    with pytest.raises(PolicyError, match="template llama3 shows no images"):
        Renderer(tiny_checkpoint("qwen2_vl"), "llama3")
    folder = shutil.copytree(tiny_checkpoint("qwen2_vl"), tmp_path / "broken")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(PolicyError, match="broken cannot be loaded"):
        Renderer(folder, "qwen2_vl")
