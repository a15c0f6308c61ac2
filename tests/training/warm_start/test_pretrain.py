"""Pre-training: it learns, the same way each time, and does not repeat what is there."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch

from envs.types import PolicyError
from tasks_lib.config import PROJECT
from training.ledger.store import read_json
from training.warm_start.curriculum import SHARES, batches
from training.warm_start.pretrain import (
    evaluate_skills,
    initial_policy,
    learning_rate,
    load_model,
    main,
    pre_train,
    stage_path,
    token_losses,
    train_stage,
)
from training.warm_start.recipe import PretrainStage, Recipe

STAGE = PretrainStage(steps=30, learning_rate=2e-3, warm_up=10)
RECIPE = Recipe(stages=(STAGE,))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@torch.no_grad()
def mean_loss(model, tokenizer) -> float:
    """Over one batch of every kind of the first phase, of samples that training does not see."""
    found = dict(batches(tokenizer, RECIPE, PretrainStage(steps=30, learning_rate=1, phase_ends=(1, 1, 1)), 99))
    assert set(found) == {"repeat", "lookup", "many"}
    return sum(token_losses(model, batch)[0].mean().item() for batch in found.values()) / len(found)


def test_thirty_steps_lower_the_loss():
    model, tokenizer = initial_policy()
    before = mean_loss(model, tokenizer)
    reports = list(train_stage(model, tokenizer, RECIPE, STAGE))
    assert [step for step, _ in reports] == [30]
    assert mean_loss(model, tokenizer) < before - 0.5


def test_equal_seeds_give_equal_weights_and_other_seeds_others():
    def weights(seed):
        model, tokenizer = initial_policy()
        list(train_stage(model, tokenizer, RECIPE, STAGE.model_copy(update={"steps": 2}), seed))
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    made = weights(0)
    assert made.equal(weights(0))
    assert not made.equal(weights(1))


def test_stages_follow_one_another_and_are_made_once(tmp_path: Path):
    short = [PretrainStage(steps=2, learning_rate=1e-3), PretrainStage(steps=1, learning_rate=1e-3)]
    recipe = Recipe(stages=tuple(short), held_out=2)
    (tmp_path / "recipe.json").write_text(recipe.model_dump_json())
    last = stage_path(tmp_path, 2)
    assert main([str(tmp_path), "--recipe", str(tmp_path / "recipe.json"), "--seed", "1"]) == 0
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert pre_train(recipe, tmp_path, 1) == last
    assert made == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    record = read_json(last / "stage.json")
    assert record["stage"] == 2 and record["seed"] == 1 and Recipe.model_validate(record["recipe"]) == recipe
    _, tokenizer = initial_policy()
    assert evaluate_skills(load_model(last), tokenizer, per_skill=2).keys() == record["held_out"]["text"].keys()
    with pytest.raises(PolicyError, match="another recipe or seed"):
        pre_train(recipe, tmp_path, 2)
    assert main([str(tmp_path), "--seed", "1"]) == 1


def test_the_curriculum_is_decided_by_the_seed_and_ends_with_images():
    _, tokenizer = initial_policy()
    late = PretrainStage(steps=16, learning_rate=1, phase_ends=(0, 0, 0))

    def kinds(seed):
        return [(kind, batch.ids.sum().item()) for kind, batch in islice(batches(tokenizer, RECIPE, late, seed), 4)]

    assert kinds(0) == kinds(0) != kinds(1)
    with_image = [batch for _, batch in batches(tokenizer, RECIPE, late) if batch.patches is not None]
    assert with_image
    image_token = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for batch in with_image:
        assert (batch.ids == image_token).sum().item() * 4 == len(batch.patches)
    assert all(sum(shares) == pytest.approx(1) for shares in SHARES)


def test_the_learning_rate_rises_then_falls_to_a_twentieth():
    stage = PretrainStage(steps=1000, learning_rate=1.0)
    rates = [learning_rate(step, stage) for step in range(1001)]
    assert rates[0] == pytest.approx(0.01) and max(rates) == rates[99] == pytest.approx(1.0)
    assert all(one >= next_ for one, next_ in pairwise(rates[100:]))
    assert rates[-1] == pytest.approx(0.05)


def test_the_default_recipe_is_what_made_the_shipped_reader():
    made_with = read_json(PROJECT / "datasets" / "policies" / "reader" / "recipe.json")["config"]["recipe"]
    assert Recipe.model_validate(made_with) == Recipe()
