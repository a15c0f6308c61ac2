"""The trainer's log-probabilities are those of the model: same tokens, same pixels, same positions,
whatever shares the batch."""

from __future__ import annotations

import io
import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from envs.types import TrainingError
from training.records.batches import TrainingBatch
from training.trainer import update
from training.trainer.collate import MicroBatch
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.rows import TrainingRow, read_rows
from training.trainer.setup import build_trainer
from training.trainer.update import Stopwatch, run_update

from .conftest import BANNED, HandMadeRun, make_run, make_spec, screenshot


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> HandMadeRun:
    return make_run(tmp_path_factory.mktemp("parity"), checkpoint)


@pytest.fixture(scope="module")
def batch(run: HandMadeRun) -> TrainingBatch:
    return run.fill(1, 6)


@pytest.fixture
def trainer(run: HandMadeRun) -> PolicyTrainer:
    return build_trainer(run.store, make_spec(temperature=0.8, banned_ids=BANNED), 0)


@pytest.fixture
def rows(run: HandMadeRun, batch: TrainingBatch) -> list[TrainingRow]:
    return read_rows(run.store, batch)


def scores(trainer: PolicyTrainer, rows: list[TrainingRow]) -> list[torch.Tensor]:
    """Log-probabilities of each row's response tokens, all rows in one micro-batch."""
    micro = trainer.data_collator.micro_batch(rows, [True] * len(rows))
    logprobs, _ = trainer.score(micro)
    return [row[mask] for row, mask in zip(logprobs, micro.mask, strict=True)]


def plain_scores(checkpoint: Path, row: TrainingRow) -> torch.Tensor:
    """The same by transformers alone, one row, all logits."""
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(checkpoint)
    image = processor.image_processor([Image.open(io.BytesIO(row.screenshots[0]))], return_tensors="pt")
    ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
    kinds = (ids == model.config.image_token_id).int()
    with torch.no_grad():
        logits = (
            model(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, **image).logits[0] / 0.8
        )
    logits[:, list(BANNED)] = -torch.inf
    start = len(row.prompt_ids)
    return logits.log_softmax(-1)[range(start - 1, ids.shape[1] - 1), list(row.response_ids)]


def test_scores_equal_a_plain_forward(trainer: PolicyTrainer, rows: list[TrainingRow], checkpoint: Path) -> None:
    assert len({len(row) for row in rows}) > 3, "the rows must differ in length, or padding is not tested"
    for row, found in zip(rows, scores(trainer, rows), strict=True):
        assert (found - plain_scores(checkpoint, row)).abs().max() < 1e-4


def test_scores_depend_on_image_and_weights(trainer: PolicyTrainer, rows: list[TrainingRow]) -> None:
    before = torch.cat(scores(trainer, rows))
    other_image = [replace(row, screenshots=(screenshot(999),)) for row in rows]
    assert (torch.cat(scores(trainer, other_image)) - before).abs().max() > 1e-3
    with torch.no_grad():
        next(p for name, p in trainer.model.named_parameters() if "q_proj.weight" in name).mul_(1.5)
    assert (torch.cat(scores(trainer, rows)) - before).abs().max() > 1e-4


def test_a_row_scores_the_same_alone_and_in_company(trainer: PolicyTrainer, rows: list[TrainingRow]) -> None:
    together = scores(trainer, rows[:4])
    for row, found in zip(rows[:4], together, strict=True):
        (alone,) = scores(trainer, [row])
        assert (found - alone).abs().max() < 1e-5


def test_positions_do_not_depend_on_the_batch(trainer: PolicyTrainer, rows: list[TrainingRow]) -> None:
    together = trainer.data_collator.micro_batch(rows[:4], [True] * 4).inputs["position_ids"]
    for row, found in zip(rows[:4], together.split([len(row) for row in rows[:4]], dim=2), strict=True):
        alone = trainer.data_collator.micro_batch([row], [True]).inputs["position_ids"]
        assert torch.equal(found, alone) and found[0, 0].tolist() == list(range(len(row)))


def test_filler_rows_change_nothing(trainer: PolicyTrainer, rows: list[TrainingRow]) -> None:
    def gradient(filler: int) -> torch.Tensor:
        taken = [*rows[:2], *[rows[2]] * filler]
        micro = trainer.data_collator.micro_batch(taken, [True] * 2 + [False] * filler)
        micro.proximal = micro.behaviour
        trainer.model.zero_grad()
        trainer.training_step(trainer.model_wrapped, {"micro": micro})
        return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])

    assert torch.allclose(gradient(0), gradient(2), atol=1e-5)


def test_micro_batches_accumulate_to_one_gradient(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow]
) -> None:
    def weights_after(micro_rows: int) -> torch.Tensor:
        settings = {"micro_batch_rows": micro_rows, "max_grad_norm": 1e9}
        trainer = build_trainer(run.store, make_spec(trainer=settings), 0)
        metrics = run_update(trainer, batch, rows, Stopwatch())
        assert metrics["kl_proximal"] == pytest.approx(0, abs=1e-6), "one step from the proximal policy"
        assert metrics["grad_norm"] > 0
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    gaps = (weights_after(6) - weights_after(2)).abs()
    # Adam's first step is a full one even where the gradient is rounding noise, so that a few
    # weights may go either way.
    assert (gaps <= 2e-4).float().mean() > 0.9999, f"{(gaps > 2e-4).sum()} of {len(gaps)} weights, largest {gaps.max()}"


def test_filtered_bc_raises_the_likelihood_of_its_rows(run: HandMadeRun) -> None:
    batch = run.fill(1, 8, "filtered_bc")
    rows = read_rows(run.store, batch)
    trainer = build_trainer(run.store, make_spec(trainer={"epochs": 6}), 0)
    before = torch.cat(scores(trainer, rows)).mean()
    metrics = run_update(trainer, batch, rows, Stopwatch())
    assert torch.cat(scores(trainer, rows)).mean() > before + 0.5
    assert metrics["loss"] == pytest.approx(-metrics["logprob"], rel=1e-3)
    assert metrics["optimizer_steps"] == 6


def test_collating_again_instead_of_keeping_gives_the_same_update(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    def metrics(cache_bytes: int) -> dict[str, float]:
        monkeypatch.setattr(update, "CACHE_BYTES", cache_bytes)
        spec = make_spec(trainer={"epochs": 2, "minibatch_rows": 3})
        return run_update(build_trainer(run.store, spec, 0), batch, rows, Stopwatch())

    assert metrics(0) == metrics(100 * 2**20)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ({}, {"epochs": 2, "minibatch_rows": 3}),
        ({}, {"epochs": 1}),
        ({"proximal": "behaviour"}, {"epochs": 2}),
        ({"kl_coefficient": 0.1}, {"epochs": 1, "minibatch_rows": 2}),
    ],
    ids=["proximal pass", "one step", "no proximal pass", "reference pass"],
)
def test_the_heartbeat_rises_to_all_of_an_update(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow], algorithm: dict, settings: dict
) -> None:
    trainer = build_trainer(run.store, make_spec(algorithm=algorithm, trainer={"micro_batch_rows": 2, **settings}), 0)
    for _ in range(2):
        shares = list[float]()
        trainer.heartbeat = SimpleNamespace(beat=lambda phase, share, shares=shares: shares.append(share))  # type: ignore[assignment]
        run_update(trainer, batch, rows, Stopwatch())
        assert shares[0] == 0 and shares == sorted(shares) and shares[-1] == 1 and len({*shares}) > 3


def test_threads_that_collate_change_no_number(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept or made again, none to several ahead; and each micro-batch is made in a thread but the
    first."""

    def updated(workers: int, cache_bytes: int) -> tuple[dict[str, float], torch.Tensor, list[str]]:
        monkeypatch.setattr(update, "CACHE_BYTES", cache_bytes)
        settings = {"loader_workers": workers, "epochs": 2, "minibatch_rows": 3, "micro_batch_rows": 1}
        trainer = build_trainer(run.store, make_spec(trainer=settings), 0)
        collate, made = trainer.data_collator.micro_batch, list[str]()

        def noted(*given: Any) -> MicroBatch:
            made.append(threading.current_thread().name)
            return collate(*given)

        trainer.data_collator.micro_batch = noted
        metrics = run_update(trainer, batch, rows, Stopwatch())
        return metrics, torch.cat([p.detach().flatten() for p in trainer.model.parameters()]), made

    metrics, weights, made = updated(0, 0)
    assert {*made} == {"MainThread"} and len(made) == 3 * len(rows)
    for workers, cache_bytes in ((1, 2**30), (1, 0), (3, 0)):
        again, found, made = updated(workers, cache_bytes)
        assert again == metrics and torch.equal(found, weights)
        assert [name for name in made if name == "MainThread"] == ["MainThread"]
        assert len(made) == len(rows) if cache_bytes else len(made) >= 3 * len(rows)


def test_seconds_of_a_part_inside_another_count_once() -> None:
    watch = Stopwatch()
    started = time.perf_counter()
    with watch.part("train"):
        time.sleep(0.02)
        with watch.part("collate"):
            time.sleep(0.05)
    taken = time.perf_counter() - started
    assert watch.seconds["collate"] >= 0.05 > watch.seconds["train"]
    assert sum(watch.seconds.values()) == pytest.approx(taken, abs=0.01)


def test_a_batch_without_rows_changes_no_weight(trainer: PolicyTrainer, run: HandMadeRun) -> None:
    before = [p.detach().clone() for p in trainer.model.parameters()]
    metrics = run_update(trainer, run.add_batch(1, []), [], Stopwatch())
    assert metrics["rows"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


@pytest.mark.parametrize("finetuning", ["full", "lora"])
def test_a_gradient_that_is_not_finite_moves_no_weight(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow], finetuning: str
) -> None:
    trainer = build_trainer(run.store, make_spec(trainer={"finetuning_type": finetuning}), 0)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    for advantage in (math.nan, math.inf, -math.inf, 1e38):
        poisoned = [replace(rows[0], advantage=advantage), *rows[1:]]
        with pytest.raises(
            TrainingError, match=r"update v1: the gradient norm is (nan|inf) in minibatch 1 of 1.*v1 is not published"
        ):
            run_update(trainer, batch, poisoned, Stopwatch())
        assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
        trainer.model.zero_grad()


def test_tokens_far_from_their_policy_train_without_overflow(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow]
) -> None:
    spec = make_spec(algorithm={"proximal": "behaviour"})
    far = [replace(row, behaviour=(-400.0, *row.behaviour[1:])) for row in rows]
    metrics = run_update(build_trainer(run.store, spec, 0), batch, far, Stopwatch())
    numbers = {**metrics, **metrics["kl_by_images"]}
    del numbers["kl_by_images"]
    assert numbers["grad_norm"] > 0 and all(math.isfinite(value) for value in numbers.values())


def test_what_was_not_measured_is_not_reported(run: HandMadeRun, batch: TrainingBatch, trainer: PolicyTrainer) -> None:
    """A mean over no token, or the ratio of cloning: 0 would read as a collapsed entropy, or as a
    policy that is far off."""
    nothing = run_update(trainer, run.add_batch(1, []), [], Stopwatch())
    cloned = run_update(trainer, run.fill(1, 2, "filtered_bc"), read_rows(run.store, run.fill(1, 2)), Stopwatch())
    assert not {"entropy", "ratio", "kl_behaviour", "ess", "logprob"} & nothing.keys()
    assert nothing["kl_by_images"] == {} and cloned["kl_by_images"] == pytest.approx({"1": cloned["kl_behaviour"]})
    assert not {"ratio", "behaviour_weight", "ess", "clip_low", "clip_high"} & cloned.keys()
    assert cloned["entropy"] > 0 and cloned["logprob"] < 0


def test_recomputed_activations_give_the_same_update(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow]
) -> None:
    def updated(**settings: bool) -> dict[str, torch.Tensor]:
        trainer = build_trainer(run.store, make_spec(trainer=settings), 0)
        assert trainer.model.is_gradient_checkpointing == settings.get("gradient_checkpointing", False)
        run_update(trainer, batch, rows, Stopwatch())
        return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}

    plain, recomputed, frozen = updated(), updated(gradient_checkpointing=True), updated(train_vision_tower=False)
    assert all((plain[name] - recomputed[name]).abs().max() < 1e-5 for name in plain)
    before = dict(build_trainer(run.store, make_spec(), 0).model.named_parameters())
    same = {name for name in before if torch.equal(before[name], frozen[name])}
    assert same == {name for name in before if ".visual." in name}
    assert any(not torch.equal(before[name], plain[name]) for name in same)


@pytest.mark.parametrize("finetuning", ["full", "lora"])
def test_the_loss_holds_on_to_the_first_policy(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow], finetuning: str
) -> None:
    def kl(coefficient: float) -> tuple[float, float]:
        """Of the last of six epochs' means, and the distance that the policy went by the trainer's
        own scores."""
        settings = {"finetuning_type": finetuning, "epochs": 6, "learning_rate": 1e-2}
        spec = make_spec(trainer=settings, algorithm={"kl_coefficient": coefficient})
        trainer = build_trainer(run.store, spec, 0)
        before = torch.cat(scores(trainer, rows))
        micro = trainer.data_collator.micro_batch(rows, [True] * len(rows))
        run_update(trainer, batch, rows, Stopwatch())
        if coefficient:
            assert torch.equal(trainer.score_reference(micro)[micro.mask], before), "the reference moved"
        away = before - torch.cat(scores(trainer, rows))
        return float((away.exp() - 1 - away).mean()), float(away.abs().max())

    free, held = kl(0.0), kl(5.0)
    assert free[1] > 0.1 and held[0] < free[0] / 2


def test_metrics_are_those_of_the_loss(run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow]) -> None:
    def metrics(**algorithm: object) -> set[str]:
        trainer = build_trainer(run.store, make_spec(algorithm=algorithm), 0)
        return set(run_update(trainer, batch, rows, Stopwatch()))

    assert {"clip_low", "dual_clip", "behaviour_masked"} <= metrics()
    assert "kl_reference" not in metrics() and "ess" in metrics()
    assert "ess" not in metrics(correction="none")
    found = metrics(preset="dppo", correction="clamp", kl_coefficient=0.1)
    assert {"dppo_masked", "behaviour_clamped", "kl_reference"} <= found
    assert not {"clip_low", "clip_high", "dual_clip", "behaviour_masked"} & found


def test_steps_count_alike_whatever_the_length_of_their_response(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow]
) -> None:
    """The first step's loss is minus the mean of the steps' advantages, as all ratios are 1; of
    tokens it is weighted by lengths."""

    def first_loss(aggregation: str) -> float:
        spec = make_spec(algorithm={"aggregation": aggregation, "correction": "none"})
        return run_update(build_trainer(run.store, spec, 0), batch, rows, Stopwatch())["loss"]

    advantages, tokens = [row.advantage for row in rows], [len(row.response_ids) for row in rows]
    weighted = sum(a * n for a, n in zip(advantages, tokens, strict=True)) / sum(tokens)
    assert first_loss("step") == pytest.approx(-sum(advantages) / len(rows), abs=1e-6)
    assert first_loss("token") == pytest.approx(-weighted, abs=1e-6)
    assert abs(weighted - sum(advantages) / len(rows)) > 1e-3


def test_one_step_needs_no_pass_for_its_proximal_policy(
    run: HandMadeRun, batch: TrainingBatch, rows: list[TrainingRow]
) -> None:
    """With the pass that it saves, the update is the same: there the entropy bonus, too small to
    count, asks for it."""

    def updated(**algorithm: float) -> tuple[dict[str, float], torch.Tensor, int]:
        trainer = build_trainer(run.store, make_spec(algorithm=algorithm, trainer={"minibatch_rows": 64}), 0)
        watch, calls = Stopwatch(), 0
        forward = trainer.score

        def counted(micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
            nonlocal calls
            calls += 1
            return forward(micro)

        trainer.score = counted  # type: ignore[method-assign]
        metrics = run_update(trainer, batch, rows, watch)
        return metrics, torch.cat([p.detach().flatten() for p in trainer.model.parameters()]), calls

    (short, weights, none), (whole, expected, some) = updated(), updated(entropy_coefficient=1e-30)
    assert none == 0 < some
    assert torch.equal(weights, expected)
    assert short["loss"] == pytest.approx(whole["loss"], abs=1e-7) and short["ratio"] == 1


def test_several_steps_hold_on_to_the_policy_before_the_first(run: HandMadeRun) -> None:
    """The first step's ratio is 1; that of the second one is of the weights before and after the
    first."""
    batch = run.fill(2, 6)
    rows = read_rows(run.store, batch)
    spec = make_spec(trainer={"minibatch_rows": len(rows), "epochs": 2, "learning_rate": 1e-3})
    trainer = build_trainer(run.store, spec, 0)
    before = torch.cat(scores(trainer, rows))
    after = list[torch.Tensor]()
    step = trainer.optimizer_step

    def watched(micros: Any, normaliser: float) -> Any:
        after.append(torch.cat(scores(trainer, rows)))
        return step(micros, normaliser)

    trainer.optimizer_step = watched  # type: ignore[method-assign]
    metrics = run_update(trainer, batch, rows, Stopwatch())
    assert len(after) == 2 and torch.equal(after[0], before)
    ratio = (after[1] - before).exp().mean().item()
    assert abs(ratio - 1) > 1e-3 and metrics["ratio"] == pytest.approx((1 + ratio) / 2, rel=1e-4)


def test_a_row_with_other_pictures_than_placeholders_is_named(trainer: PolicyTrainer, rows: list[TrainingRow]) -> None:
    twice = replace(rows[1], screenshots=rows[1].screenshots * 2)
    with pytest.raises(
        TrainingError, match=rf"a step of {rows[1].episode_id} has 48 image placeholders, and its 2 pictures have 96"
    ):
        trainer.data_collator.micro_batch([rows[0], twice], [True, True])
