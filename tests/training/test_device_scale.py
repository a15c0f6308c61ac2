"""Pages of a device whose pixels are not CSS pixels: from a real browser through the prompt, the
engine and the trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from envs.browser import BrowserPool, PageStep
from envs.browser.options import Device
from envs.sites import StaticSite
from envs.types import SeedRange, Split, WebTask
from tasks_lib.worker.actors import PolicyActor, Situation, Turn
from tasks_lib.worker.turns import encode_stage, turn_pipeline
from training.config import PolicyConfig
from training.ledger.store import RunStore
from training.policy.bans import banned_ids
from training.policy.renderer import Renderer
from training.records.groups import GroupSpec
from training.serving.local import LocalEngine, LocalModel
from training.trainer.rows import TrainingRow
from training.trainer.setup import build_trainer

from .trainer.conftest import make_spec
from .vision_models import FAMILIES, TEMPLATES

VIEWPORT = (152, 206)
SCALES = (1.0, 2.0, 0.75)
TASK = WebTask(
    task_id="pages/index",
    site="pages",
    kind="page",
    path="/index.html",
    instruction="Press go.",
    difficulty=1,
    horizon=3,
    seeds={Split.TRAIN: SeedRange(start=0, stop=10)},
)


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> dict[float, PageStep]:
    """What a browser shows of one page, by device scale."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text("<!DOCTYPE html><body style='background: tan'><button>go</button></body>")

    async def look(scale: float) -> PageStep:
        site = StaticSite("pages", folder)
        await site.start()
        try:
            async with (
                BrowserPool(device=Device(width=VIEWPORT[0], height=VIEWPORT[1], scale=scale)) as pool,
                pool.lease(site) as session,
            ):
                return await session.reset(TASK, 0)
        finally:
            await site.close()

    return {scale: asyncio.run(look(scale)) for scale in SCALES}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_has_as_many_placeholders_as_the_picture_has_patches(
    family: str, frames: dict[float, PageStep], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoint(family)
    renderer = Renderer(checkpoint, TEMPLATES[family])
    model = LocalModel(renderer, "cpu")
    model.load(0, checkpoint)
    store = RunStore(tmp_path / "run")
    store.publish_policy(0, checkpoint, {})

    async def turn(sample: int, frame: PageStep) -> Turn:
        policy = PolicyConfig(template=TEMPLATES[family], max_new_tokens=3)
        group = GroupSpec(group_id="i000001-g0000", task=TASK, seeds=(0,))
        now = Situation(group, sample, frame, [], session="alone")
        engine = LocalEngine(model)
        with ThreadPoolExecutor(1) as threads:
            actor = PolicyActor(engine, renderer, policy, seed=0, policy_version=0, patience=0.0)
            async with actor.session("alone"):
                return await turn_pipeline(encode_stage(renderer, store, policy, threads), actor, 1).run(now)

    turns = {scale: asyncio.run(turn(sample, frames[scale])) for sample, scale in enumerate(SCALES)}
    lengths = {scale: len(made.asked.rendered.ids) for scale, made in turns.items()}
    assert len({made.asked.prompt for made in turns.values()}) == 1, "the words are the same at every scale"
    assert lengths[0.75] < lengths[1.0] < lengths[2.0]
    spec = make_spec(template=TEMPLATES[family], banned_ids=tuple(banned_ids(checkpoint)))
    rows = [
        TrainingRow(
            prompt_ids=made.asked.rendered.ids,
            response_ids=made.response_ids,
            behaviour=made.logprobs,
            screenshots=(store.blob(made.asked.screenshot),),
            advantage=1.0,
        )
        for made in turns.values()
    ]
    trainer = build_trainer(store, spec, 0)
    micro = trainer.data_collator.micro_batch(rows, [True] * len(rows))
    found, _ = trainer.score(micro)
    torch.testing.assert_close(found[micro.mask], micro.behaviour[micro.mask], atol=2e-5, rtol=0)
