"""Each update of a run has a learning rate above zero, the same after a restart, and it is the one
that moves the weights."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.config import TrainerConfig
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.resume import state_path
from training.trainer.rows import read_rows
from training.trainer.schedule import learning_rate_factor
from training.trainer.setup import build_trainer
from training.trainer.state_writer import save_file
from training.trainer.update import Stopwatch, run_update

from .conftest import HandMadeRun, make_spec

SCHEDULERS = get_args(TrainerConfig.model_fields["scheduler"].annotation)
PEAK, UPDATES = 1e-3, 4


@given(st.sampled_from(SCHEDULERS), st.integers(1, 400), st.integers(0, 500))
def test_no_update_is_trained_with_rate_zero(scheduler: str, updates: int, warmup: int) -> None:
    settings = TrainerConfig(scheduler=scheduler, warmup_updates=warmup)
    found = [learning_rate_factor(settings, update, updates) for update in range(1, updates + 1)]
    assert all(0 < factor <= 1 for factor in found)
    rising, falling = found[: max(1, warmup)], found[max(1, warmup) - 1 :]
    assert rising == sorted(set(rising)) and (len(rising) < warmup or rising[-1] == 1)
    assert falling == sorted(falling, reverse=True)
    if scheduler != "constant_with_warmup":
        assert len(set(falling)) == len(falling)


@pytest.mark.parametrize(
    ("scheduler", "warmup", "factors"),
    [
        ("constant_with_warmup", 0, [1, 1, 1, 1]),
        ("constant_with_warmup", 2, [1 / 2, 1, 1, 1]),
        ("linear", 0, [1, 3 / 4, 2 / 4, 1 / 4]),
        ("linear", 2, [1 / 2, 1, 2 / 3, 1 / 3]),
        ("cosine", 0, [1, (1 + 0.5**0.5) / 2, 1 / 2, (1 - 0.5**0.5) / 2]),
        ("cosine", 2, [1 / 2, 1, 3 / 4, 1 / 4]),
        ("linear", 9, [1 / 9, 2 / 9, 3 / 9, 4 / 9]),  # longer than the run
    ],
)
def test_rates_worked_out_by_hand(scheduler: str, warmup: int, factors: list[float]) -> None:
    settings = TrainerConfig(scheduler=scheduler, warmup_updates=warmup)
    found = [learning_rate_factor(settings, update, UPDATES) for update in range(1, UPDATES + 1)]
    assert found == pytest.approx(factors)


def write_state(trainer: PolicyTrainer, folder: Path) -> None:
    folder.mkdir(parents=True)
    for path, content in trainer.copy_state(folder).items():
        save_file(path, content)


def largest_steps(run: HandMadeRun, trainer: PolicyTrainer, versions: list[int]) -> list[tuple[float, float]]:
    """For each update the rate that it reports and the largest change of a weight that it makes."""
    found = []
    for version in versions:
        before = torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])
        batch = run.fill(version, 3)
        metrics = run_update(trainer, batch, read_rows(run.store, batch), Stopwatch())
        after = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        found.append((metrics["learning_rate"], float((after - before).abs().max())))
    return found


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_reported_rate_moves_the_weights_in_every_update(run: HandMadeRun, scheduler: str, tmp_path: Path) -> None:
    """With both betas 0 Adam's step is the sign of the gradient times the rate, so the largest
    change of a weight *is* the rate."""
    settings = {"scheduler": scheduler, "learning_rate": PEAK, "adam_beta1": 0.0, "adam_beta2": 0.0}
    spec = make_spec(trainer=settings, total_updates=UPDATES)
    trainer = build_trainer(run.store, spec, 0)
    steps = largest_steps(run, trainer, [1, 2])
    write_state(trainer, state_path(run.store, 2))
    run.store.publish_policy(2, run.store.policy_path(0), {})
    trainer.save_weights(run.store.policy_path(2))
    steps += largest_steps(run, trainer, [3, 4])
    for rate, step in steps:
        assert rate > 0 and step == pytest.approx(rate, rel=2e-3)
    assert largest_steps(run, build_trainer(run.store, spec, 2), [3, 4]) == steps[2:]


def test_lora_plus_trains_second_matrices_at_a_multiple_of_the_rate(run: HandMadeRun) -> None:
    """Also when an update is done again with its own rate. First matrices have no gradient in the
    first update, as the second ones are zero then."""
    settings = {"finetuning_type": "lora", "lora_rank": 4, "scheduler": "linear", "learning_rate": PEAK}
    settings |= {"adam_beta1": 0.0, "adam_beta2": 0.0, "llamafactory": {"loraplus_lr_ratio": 4.0}}
    trainer = build_trainer(run.store, make_spec(trainer=settings, total_updates=UPDATES), 0)
    for version, again, expected in ((1, None, PEAK), (2, None, PEAK * 3 / 4), (3, PEAK / 8, PEAK / 8)):
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
        batch = run.fill(version, 3)
        metrics = run_update(trainer, batch, read_rows(run.store, batch), Stopwatch(), again)
        assert metrics["learning_rate"] == pytest.approx(expected)
        steps = {
            kind: max(
                float((p.detach() - before[name]).abs().max())
                for name, p in trainer.model.named_parameters()
                if kind in name
            )
            for kind in ("lora_A", "lora_B")
        }
        assert steps["lora_B"] == pytest.approx(4 * expected, rel=2e-3)
        assert steps["lora_A"] == pytest.approx(expected if version > 1 else 0.0, rel=2e-3)
