"""What two processes report of a batch that they share, in micro-batches, is what numpy computes of
the whole batch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from training.algorithms.choices import PolicyLoss
from training.algorithms.losses import MAX_IMAGES, LossMetrics, sum_by_images
from training.algorithms.policy_loss import policy_loss
from training.trainer.update import sum_over_processes

WORLD, ROWS, COLUMNS, CAP = 2, 11, 9, 2.0


def make_batch() -> tuple[torch.Tensor, ...]:
    """Log-probabilities of the policy, at the update's start and of sampling, the mask, and each
    row's images."""
    torch.manual_seed(3)
    logprobs, proximal, behaviour = (-2 * torch.rand(ROWS, COLUMNS) for _ in range(3))
    images = torch.tensor([0, 1, 1, 1, 2, 2, 4, 4, MAX_IMAGES, MAX_IMAGES + 1, 40])
    return logprobs, proximal, behaviour, torch.rand(ROWS, COLUMNS) < 0.6, images


def report_share(rank: int, folder: str) -> None:
    """One process: its rows in micro-batches of two; a last one of one row has it again as
    filler."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    logprobs, proximal, behaviour, mask, images = make_batch()
    own, total = list(range(rank, ROWS, WORLD)), LossMetrics()
    for start in range(0, len(own), 2):
        rows = own[start : start + 2]
        counts = mask[rows]
        if len(rows) == 1:
            rows, counts = rows * 2, torch.cat([counts, torch.zeros_like(counts)])
        lp, prox, beh = logprobs[rows], proximal[rows], behaviour[rows]
        _, metrics = policy_loss(lp, prox, beh, torch.ones(2), counts, PolicyLoss(behaviour_cap=CAP), normaliser=1)
        total += metrics + sum_by_images(lp, beh, counts, images[rows])
    trainer: Any = SimpleNamespace(args=SimpleNamespace(world_size=WORLD, device=torch.device("cpu")))
    summed = sum_over_processes(trainer, total)
    Path(folder, f"{rank}.json").write_text(json.dumps([summed.means(), summed.kl_by_images()]))
    torch.distributed.destroy_process_group()


def test_two_processes_report_what_numpy_finds_in_the_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(report_share, args=(str(tmp_path),), nprocs=WORLD)
    means, by_images = json.loads((tmp_path / "0.json").read_text())
    assert json.loads((tmp_path / "1.json").read_text()) == [means, by_images]

    logprobs, proximal, behaviour, mask, images = (each.numpy().astype(np.float64) for each in make_batch())
    mask = mask.astype(bool)
    weights = np.exp(proximal - behaviour)[mask]
    kept = weights[weights <= CAP]
    assert 0 < len(kept) < len(weights)
    assert means["ess"] == pytest.approx(kept.sum() ** 2 / (len(kept) * (kept**2).sum()), rel=1e-5)
    halves = [np.exp(proximal - behaviour)[rank::WORLD][mask[rank::WORLD]] for rank in range(WORLD)]
    shares = [half.sum() ** 2 / (len(half) * (half**2).sum()) for half in (each[each <= CAP] for each in halves)]
    assert abs(means["ess"] - np.mean(shares)) > 1e-4, "a mean of the processes' shares would pass too"

    ratio = np.exp(logprobs - behaviour)
    kl = ratio - 1 - np.log(ratio)
    expected = {
        name: kl[rows][mask[rows]].mean()
        for name, rows in {
            **{str(count): images == count for count in (0, 1, 2, 4)},
            f"{MAX_IMAGES}_or_more": images >= MAX_IMAGES,
        }.items()
    }
    assert by_images == pytest.approx(expected, rel=1e-4)
    assert means["kl_behaviour"] == pytest.approx(kl[mask].mean(), rel=1e-4)
