"""A picture that several rows of a micro-batch show is encoded once, and trains as if it were
encoded for each row."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from training.ledger.store import RunStore
from training.trainer.plan import plan_minibatches
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.rows import TrainingRow
from training.trainer.setup import build_trainer

from ..vision_models import FAMILIES, TEMPLATES, make_checkpoint, picture
from .conftest import make_spec

SIZE = (112, 112)


@pytest.fixture(scope="module", params=FAMILIES)
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PolicyTrainer:
    folder: Path = tmp_path_factory.mktemp(request.param)
    store = RunStore(folder / "run")
    store.publish_policy(0, make_checkpoint(request.param, folder / "checkpoint"), {})
    trainer = build_trainer(store, make_spec(template=TEMPLATES[request.param]), 0)
    trainer.model.train()
    return trainer


def windows(trainer: PolicyTrainer, steps: int, rounds: int) -> list[TrainingRow]:
    """Rows of an episode; each shows its own page and those of the rounds before, of two sizes."""
    collator, rows = trainer.data_collator, list[TrainingRow]()
    pad, start, end = collator.tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"])
    pictures = [picture(SIZE if step % 2 else (SIZE[0], 2 * SIZE[1]), seed=step) for step in range(steps)]
    for step in range(steps):
        shown = pictures[max(0, step - rounds) : step + 1]
        grids = [
            collator.processor.image_processor([Image.open(BytesIO(each))], return_tensors="pt")["image_grid_thw"]
            for each in shown
        ]
        prompt = [
            token
            for number, grid in enumerate(grids)
            for token in (start, *[pad] * (int(grid.prod()) // 4), end, 40 + step + number)
        ]
        rows.append(
            TrainingRow(
                prompt_ids=prompt,
                response_ids=[60 + step, 61, 62 + step],
                behaviour=[-6.9] * 3,
                screenshots=tuple(shown),
                advantage=1.0 - 0.6 * step,
                episode_id="e",
            )
        )
    return rows


def scores_and_gradient(trainer: PolicyTrainer, rows: list[TrainingRow]) -> tuple[torch.Tensor, torch.Tensor]:
    micro = trainer.data_collator.micro_batch(rows, [True] * len(rows))
    scores, _ = trainer.score(micro)
    micro.proximal = micro.behaviour = scores
    trainer.model.zero_grad()
    trainer.training_step(trainer.model_wrapped, {"micro": micro})
    return scores, torch.cat(
        [weight.grad.flatten() for weight in trainer.model.parameters() if weight.grad is not None]
    )


def encoded_patches(trainer: PolicyTrainer, rows: list[TrainingRow]) -> int:
    patches = list[int]()
    (encoder,) = (module for name, module in trainer.model.named_modules() if name.endswith("visual"))
    hook = encoder.register_forward_pre_hook(lambda module, given: patches.append(len(given[0])))
    trainer.score(trainer.data_collator.micro_batch(rows, [True] * len(rows)))
    hook.remove()
    return sum(patches)


def test_shared_pictures_train_as_if_encoded_for_each_row(trainer: PolicyTrainer) -> None:
    rows = windows(trainer, steps=3, rounds=2)
    together, gradient = scores_and_gradient(trainer, rows)
    alone = [scores_and_gradient(trainer, [row]) for row in rows]
    assert (together - torch.cat([scores for scores, _ in alone])).abs().max() < 1e-5
    summed = torch.stack([gradient for _, gradient in alone]).sum(0)
    assert (gradient - summed).norm() <= 1e-5 * summed.norm()
    # Each step's picture once, though the first is in three rows.
    own = sum(encoded_patches(trainer, windows(trainer, steps=3, rounds=0)[step : step + 1]) for step in range(3))
    assert encoded_patches(trainer, rows) == own < sum(encoded_patches(trainer, [row]) for row in rows)


def test_another_picture_in_one_row_moves_that_row_alone(trainer: PolicyTrainer) -> None:
    rows = windows(trainer, steps=3, rounds=2)
    other = picture((SIZE[0], 2 * SIZE[1]), seed=99)
    changed = [*rows[:2], replace(rows[2], screenshots=(other, *rows[2].screenshots[1:]))]
    (before, _), (after, _) = scores_and_gradient(trainer, rows), scores_and_gradient(trainer, changed)
    moved = (before - after).abs().amax(1)
    assert moved[:2].max() <= 1e-6 and moved[2] > 1e-4


def test_rows_of_one_episode_are_neighbours_within_a_budget() -> None:
    episodes = [f"e{row % 5}" for row in range(40)]
    lengths = [100 + 7 * row % 30 for row in range(40)]
    (plan,) = plan_minibatches(lengths, 40, 8, 2, 0, 1, 400, None, episodes)
    assert sorted(slot.row for micro in plan for slot in micro if slot.counts) == list(range(40))
    assert all(sum(lengths[slot.row] for slot in micro) <= 400 for micro in plan)
    changes = sum(len({episodes[slot.row] for slot in micro}) - 1 for micro in plan)
    assert changes <= 4, "five episodes that follow one another meet in four micro-batches at most"
