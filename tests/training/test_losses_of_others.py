"""The loss against AReaL's and verl's formulas, written down here from their papers and code, in
numpy and float64.

AReaL cbff54d, ``ppo_actor_loss_fn``; verl 1dda039, ``compute_policy_loss_vanilla`` with
``token-mean``.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from training.algorithms.policy_loss import PolicyLoss, policy_loss

LOW, HIGH, DUAL, CAP = 0.2, 0.28, 3.0, 5.0

Values = NDArray[np.float64]


def areal(
    new: Values, proximal: Values, old: Values, advantage: Values, mask: NDArray[np.bool_]
) -> tuple[float, Values]:
    """Loss and its gradient by the new log-probs: decoupled, with behaviour weights above the cap
    masked."""
    ratio = np.exp(new - proximal)
    first, second = -advantage * ratio, -advantage * np.clip(ratio, 1 - LOW, 1 + HIGH)
    loss = np.maximum(first, second)
    slope = np.where(first >= second, first, 0.0)
    third = np.sign(advantage) * DUAL * advantage
    slope = np.where(third < loss, 0.0, slope)
    loss = np.minimum(loss, third)
    weight = np.exp(proximal - old)
    kept = (weight <= CAP) & mask
    count = mask.sum()
    return float((loss * weight)[kept].sum() / count), np.where(kept, slope * weight, 0.0) / count


def verl(new: Values, old: Values, advantage: Values, mask: NDArray[np.bool_]) -> float:
    """Dual-clip PPO with the behaviour policy as the old one."""
    ratio = np.exp(np.clip(new - old, -20.0, 20.0))
    clipped = np.maximum(-advantage * ratio, -advantage * np.clip(ratio, 1 - LOW, 1 + HIGH))
    dual = np.minimum(-advantage * DUAL, clipped)
    return float(np.where(advantage < 0, dual, clipped)[mask].sum() / mask.sum())


def draw(seed: int, spread: float) -> tuple[Values, Values, Values, Values, NDArray[np.bool_]]:
    """Log-probs of three policies, an advantage for each row, and a mask."""
    draws = np.random.default_rng(seed)
    proximal = -3 * draws.random((6, 9))
    new, old = proximal + spread * draws.normal(size=(6, 9)), proximal + spread * draws.normal(size=(6, 9))
    advantage = np.repeat(draws.normal(size=(6, 1)), 9, axis=1)
    mask = draws.random((6, 9)) < 0.6
    mask[0, 0] = True
    return new, proximal, old, advantage, mask


def ours(
    new: Values, proximal: Values, old: Values, advantage: Values, mask: NDArray[np.bool_], cap: float = CAP
) -> tuple[float, Values]:
    logprobs = torch.tensor(new, requires_grad=True)
    loss, _ = policy_loss(
        logprobs,
        torch.tensor(proximal),
        torch.tensor(old),
        torch.tensor(advantage[:, 0]),
        torch.tensor(mask),
        PolicyLoss(clip_low=LOW, clip_high=HIGH, dual_clip=DUAL, behaviour_cap=cap),
        normaliser=int(mask.sum()),
    )
    loss.backward()
    assert logprobs.grad is not None
    return float(loss.detach()), logprobs.grad.numpy()


@pytest.mark.parametrize("spread", [0.05, 0.5, 1.5])
@pytest.mark.parametrize("seed", range(30))
def test_the_decoupled_loss_and_its_gradient_are_areal_s(seed: int, spread: float) -> None:
    given = draw(seed, spread)
    (loss, slope), (expected, expected_slope) = ours(*given), areal(*given)
    assert loss == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert slope == pytest.approx(expected_slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("spread", [0.05, 0.5, 1.5])
@pytest.mark.parametrize("seed", range(30))
def test_without_a_proximal_policy_it_is_verl_s_dual_clip(seed: int, spread: float) -> None:
    new, _, old, advantage, mask = draw(seed, spread)
    assert ours(new, old, old, advantage, mask)[0] == pytest.approx(verl(new, old, advantage, mask), rel=1e-6, abs=1e-6)


def test_the_cases_hold_what_the_formulas_differ_in() -> None:
    """Clips on both sides, dual clips and masked weights; and another cap is seen."""
    counts, differs = np.zeros(4, dtype=int), 0
    for seed in range(30):
        new, proximal, old, advantage, mask = draw(seed, 1.5)
        ratio, weight = np.exp(new - proximal), np.exp(proximal - old)
        counts += [
            (mask & (advantage > 0) & (ratio > 1 + HIGH)).sum(),
            (mask & (advantage < 0) & (ratio < 1 - LOW)).sum(),
            (mask & (advantage < 0) & (ratio > DUAL)).sum(),
            (mask & (weight > CAP)).sum(),
        ]
        given = (new, proximal, old, advantage, mask)
        differs += ours(*given, cap=4.0)[0] != pytest.approx(areal(*given)[0], rel=1e-6, abs=1e-6)
    assert (counts >= 30).all(), counts
    assert differs >= 10
