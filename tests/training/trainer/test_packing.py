"""Rows that follow one another in one sequence train as each would alone, and steps that continue
one another train their common tokens once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.types import TrainingError, Trajectory
from training.config import AlgorithmConfig
from training.records.batches import build_batch
from training.records.groups import EpisodeSummary, shapes_of
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.rows import TrainingRow, read_rows
from training.trainer.setup import build_trainer
from training.trainer.update import Stopwatch, run_update

from .conftest import HandMadeRun, make_run, make_spec, screenshot
from .test_parity import plain_scores, scores


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> HandMadeRun:
    return make_run(tmp_path_factory.mktemp("packing"), checkpoint)


@pytest.fixture(scope="module", params=["auto", "disabled"], ids=["torch", "eager"])
def trainer(run: HandMadeRun, request: pytest.FixtureRequest) -> PolicyTrainer:
    """With torch's attention, and with the masks that transformers makes for any other."""
    spec = make_spec(temperature=0.8, banned_ids=(760, 761), trainer={"llamafactory": {"flash_attn": request.param}})
    return build_trainer(run.store, spec, 0)


@pytest.fixture(scope="module")
def appended(run: HandMadeRun) -> Trajectory:
    return run.add_episode("appended", 4, 1.0, seed=5, append=True)


def rows_of(run: HandMadeRun, episodes: Sequence[Trajectory]) -> list[TrainingRow]:
    """All steps, with advantages that differ."""
    named = [run.row(each.episode_id, step.index) for each in episodes for step in each.steps]
    rows = read_rows(run.store, run.add_batch(1, named))
    return [replace(row, advantage=0.7 - 0.4 * index) for index, row in enumerate(rows)]


def alone(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """The same rows, each a sequence of its own."""
    return [replace(row, sequence=None) for row in rows]


def loss_and_gradient(
    trainer: PolicyTrainer, rows: Sequence[TrainingRow], counts: Sequence[bool] | None = None
) -> tuple[float, torch.Tensor]:
    weights = [1 / (1 + index) for index in range(len(rows))]
    micro = trainer.data_collator.micro_batch(rows, counts or [True] * len(rows), weights)
    # Off the policy that sampled, so that ratios are none of 1.
    micro.proximal = micro.behaviour = trainer.score(micro)[0] + 0.1
    trainer.model.zero_grad()
    loss = trainer.training_step(trainer.model_wrapped, {"micro": micro})
    gradient = torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
    return float(loss), gradient.clone()


def test_packed_rows_score_as_transformers_scores_each_alone(
    run: HandMadeRun, trainer: PolicyTrainer, checkpoint: Path
) -> None:
    rows = rows_of(run, [run.add_episode(f"plain{seed}", 2, 1.0, seed=seed) for seed in (11, 12, 13)])
    assert len({len(row) for row in rows}) > 3
    for row, found in zip(rows, scores(trainer, rows), strict=True):
        assert (found - plain_scores(checkpoint, row)).abs().max() < 1e-5


def test_logits_exist_for_response_tokens_alone(run: HandMadeRun, trainer: PolicyTrainer, appended: Trajectory) -> None:
    rows = rows_of(run, [appended, run.add_episode("short", 3, 1.0, seed=21)])
    micro, places = trainer.data_collator.micro_batch(rows, [True] * len(rows)), []
    hook = trainer.model.get_output_embeddings().register_forward_hook(
        lambda module, given, logits: places.append(logits.shape[:-1].numel())
    )
    trainer.score(micro)
    hook.remove()
    assert places == [sum(len(row.response_ids) for row in rows)] == [int(micro.mask.sum())]
    assert (micro.targets != -100).sum() == micro.mask.sum() and micro.targets.shape[1] == max(
        len(row.response_ids) for row in rows
    )


def test_a_changed_episode_moves_no_other_row_and_no_gradient_of_it(run: HandMadeRun, trainer: PolicyTrainer) -> None:
    rows = rows_of(run, [run.add_episode(f"other{seed}", 2, 1.0, seed=seed) for seed in (31, 32)])
    for place in (0, 2):
        ids = [*rows[place].prompt_ids]
        ids[-4:] = ids[-8:-4]
        changed = [*rows]
        changed[place] = replace(rows[place], prompt_ids=ids, screenshots=(screenshot(77),))
        others = [index for index in range(len(rows)) if index != place]
        before, after = scores(trainer, rows), scores(trainer, changed)
        assert all((before[index] - after[index]).abs().max() <= 1e-6 for index in others)
        assert (before[place] - after[place]).abs().max() > 1e-3
        counts = [index != place for index in range(len(rows))]
        (loss, gradient), (again, moved) = (loss_and_gradient(trainer, each, counts) for each in (rows, changed))
        assert again == pytest.approx(loss, abs=1e-6) and (gradient - moved).norm() <= 1e-6 * gradient.norm()
        (_, whole), (_, other) = (loss_and_gradient(trainer, each) for each in (rows, changed))
        assert (whole - other).norm() > 1e-3 * whole.norm(), "the row itself has a gradient"


def test_rows_without_pictures_score_as_beside_rows_with_them(run: HandMadeRun, trainer: PolicyTrainer) -> None:
    """Alone they are followed by LLaMA-Factory's blank picture, which takes part in nothing."""
    texts = rows_of(run, [run.add_episode("text", 3, 1.0, seed=41, append=True, pictures=False)])
    seen = rows_of(run, [run.add_episode("seen", 1, 1.0, seed=42)])
    micro = trainer.data_collator.micro_batch(texts, [True] * 3)
    assert micro.images.tolist() == [0, 0, 0] and micro.inputs["image_grid_thw"].shape[0] == 1
    for found, expected in zip(scores(trainer, texts), scores(trainer, [*seen, *alone(texts)])[1:], strict=True):
        assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("kept", [(0, 1, 2, 3), (3, 1), (0, 2)], ids=["all", "two of them, turned round", "a gap"])
def test_steps_of_one_sequence_train_as_a_row_each(
    run: HandMadeRun, trainer: PolicyTrainer, appended: Trajectory, kept: tuple[int, ...]
) -> None:
    rows = [rows_of(run, [appended])[index] for index in kept]
    rows += rows_of(run, [run.add_episode("beside", 1, 0.0, seed=51)])
    shared, single = (trainer.data_collator.micro_batch(each, [True] * len(rows)) for each in (rows, alone(rows)))
    lengths = [len(row) for row in rows]
    assert shared.inputs["input_ids"].shape == (1, max(lengths[:-1]) + lengths[-1])
    assert single.inputs["input_ids"].shape == (1, sum(lengths))
    assert shared.images.tolist() == single.images.tolist() == [*(1 + index for index in kept), 1]
    assert shared.inputs["image_grid_thw"].shape[0] == 2 + max(kept)
    assert torch.equal(shared.targets, single.targets) and torch.equal(shared.mask, single.mask)
    (loss, gradient), (expected, reference) = (loss_and_gradient(trainer, each) for each in (rows, alone(rows)))
    assert loss == pytest.approx(expected, abs=1e-5)
    assert (gradient - reference).abs().max() <= 1e-5 * max(1.0, float(reference.abs().max()))


@pytest.mark.parametrize("aggregation", ["token", "step", "sequence"])
def test_an_update_of_shared_sequences_reports_what_a_row_each_does(
    run: HandMadeRun, appended: Trajectory, aggregation: str
) -> None:
    rows = rows_of(run, [appended, run.add_episode("second", 3, 0.0, seed=61, append=True)])
    batch = run.add_batch(1, [])

    def updated(rows: list[TrainingRow]) -> tuple[dict[str, Any], torch.Tensor]:
        spec = make_spec(algorithm={"aggregation": aggregation}, trainer={"llamafactory": {"adam_epsilon": 1.0}})
        trainer = build_trainer(run.store, spec, 0)
        metrics = run_update(trainer, batch, rows, Stopwatch())
        return metrics, torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    (metrics, weights), (expected, others) = updated(rows), updated(alone(rows))
    by_images, of_images = metrics.pop("kl_by_images"), expected.pop("kl_by_images")
    assert metrics == pytest.approx(expected, abs=1e-5, rel=1e-4) and by_images == pytest.approx(of_images, rel=1e-4)
    assert (weights - others).abs().max() <= 1e-5


def test_a_sequence_holds_the_steps_whose_prompts_begin_with_those_before(
    run: HandMadeRun, appended: Trajectory
) -> None:
    assert [shape.sequence for shape in shapes_of(appended)] == [0, 0, 0, 0]
    assert [shape[:2] for shape in shapes_of(appended)] == [
        (len(step.prompt_ids), len(step.response_ids)) for step in appended.steps
    ]
    steps = list(appended.steps)
    cut = steps[1].model_copy(update={"response_ids": steps[1].response_ids[:-1]})
    assert sequences(appended, [steps[0], cut, *steps[2:]]) == [0, 0, 0, 0], "a response that was cut is a prefix too"
    other = steps[1].model_copy(update={"response_ids": (steps[1].response_ids[0] + 1, *steps[1].response_ids[1:])})
    assert sequences(appended, [steps[0], other, *steps[2:]]) == [0, 0, 2, 2], "a thought that later prompts leave out"
    picture = steps[2].model_copy(update={"context": (steps[2].context[0].model_copy(update={"pictures": ("x",)}),)})
    assert sequences(appended, [*steps[:2], picture, steps[3]]) == [0, 0, 2, 3], "other pictures"
    plain = run.add_episode("window", 2, 1.0, seed=71)
    assert sequences(plain, list(plain.steps)) == [0, 1]


def sequences(trajectory: Trajectory, steps: list[Any]) -> list[int]:
    """Of an episode with other steps."""
    return [shape.sequence for shape in shapes_of(trajectory.model_copy(update={"steps": tuple(steps)}))]


def test_a_batch_names_the_shape_of_its_rows(run: HandMadeRun, appended: Trajectory) -> None:
    summaries = [EpisodeSummary.of(appended), EpisodeSummary.of(run.add_episode("lost", 2, 0.0, seed=81))]
    batch = build_batch(1, [summaries], AlgorithmConfig(group_size=2))
    again = type(batch).model_validate_json(batch.model_dump_json())
    assert [row.shape for row in again.rows] == [*summaries[0].shapes, *summaries[1].shapes]


def test_rows_that_are_no_part_of_their_sequence_are_refused(
    run: HandMadeRun, trainer: PolicyTrainer, appended: Trajectory
) -> None:
    rows = rows_of(run, [appended])
    for wrong in (
        replace(rows[1], response_ids=[*rows[1].response_ids[:-1], 5]),
        replace(rows[1], screenshots=(screenshot(1), *rows[1].screenshots[1:])),
    ):
        with pytest.raises(TrainingError, match="steps of appended were to share a sequence, and are not parts of one"):
            trainer.data_collator.micro_batch([rows[0], wrong, *rows[2:]], [True] * 4)
