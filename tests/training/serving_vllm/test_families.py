"""Each family of models on a server of its own: one, two and five pictures, whole weights and an
adapter, as transformers scores them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from training.policy.renderer import Renderer
from training.serving.config import ServingConfig
from training.serving.engine import GenerationRequest, Picture
from training.serving.vllm.client import ServerClient
from training.serving.vllm.command import ServerOptions
from training.serving.vllm.probe import ProbeTurn, TransformersScorer, compare
from training.serving.vllm.service import make_supervisor

from ..test_context import encoded, make_steps
from ..vision_models import FAMILIES, TEMPLATES, picture
from .conftest import PYTHON
from .test_adapters import make_adapter

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SIZE = (96, 130)
LIMIT = 1e-4


def ask(renderer: Renderer, images: int) -> GenerationRequest:
    prompt = encoded(renderer, "window", 4, make_steps(renderer, images - 1), "Page: now")
    pictures = tuple(Picture(picture(SIZE, number), SIZE) for number in range(images))
    return GenerationRequest(prompt, pictures, f"k{images}", "e", 1, 12, 1.0)


async def compare_all(client: ServerClient, renderer: Renderer, version: int, folder: Path, *, adapter: bool) -> None:
    """The server's log-probs are the folder's; with pictures in another order they are not."""
    scorer = TransformersScorer(renderer)
    for images in (1, 2, 5):
        request = ask(renderer, images)
        generation = await client.generate(request, version, adapter=adapter)
        turn = ProbeTurn(request, generation)
        found = compare([turn], scorer(folder, [turn]))
        print(f"{folder.name}, {images} pictures: {found.mean:.1e} in the mean, {found.maximum:.1e} at most")
        assert found.mean <= LIMIT and found.tokens == 12
        if images > 1:
            swapped = ProbeTurn(replace(request, pictures=request.pictures[::-1]), generation)
            assert compare([swapped], scorer(folder, [swapped])).mean > 10 * LIMIT


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
async def test_log_probs_over_several_pictures_are_those_of_transformers(
    family: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no serving environment (.venv-vllm): run `make vllm`")
    checkpoint = tiny_checkpoint(family)
    renderer = Renderer(checkpoint, TEMPLATES[family])
    ends = renderer.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    renderer.banned_ids = sorted({*renderer.banned_ids, *ends})
    options = ServerOptions(
        model=checkpoint,
        weights_root=checkpoint.parent,
        python=PYTHON,
        dtype="float32",
        max_model_len=2048,
        serving=ServingConfig(max_turns=4),
        max_images=5,
        lora_rank=8,
        flags={"enforce_eager": True},
    )
    supervisor = make_supervisor(options, renderer, tmp_path / "logs")
    await supervisor.start(0, checkpoint)
    try:
        client = supervisor.replicas[0].client
        await compare_all(client, renderer, 0, checkpoint, adapter=False)
        adapter = make_adapter(tmp_path / "v000001", 1, base=checkpoint)
        await supervisor.publish(1, adapter)
        await compare_all(client, renderer, 1, adapter, adapter=True)
    finally:
        await supervisor.close()
