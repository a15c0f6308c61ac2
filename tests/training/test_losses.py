from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from training.algorithms import losses
from training.algorithms.choices import Correction
from training.algorithms.losses import IGNORE_INDEX, LossMetrics, behaviour_cloning_loss, entropy_bonus, token_logprobs
from training.algorithms.policy_loss import PolicyLoss, policy_loss


def loss_of(ratio: float, advantage: float, weight: float = 1.0) -> tuple[float, LossMetrics]:
    """One token with pi / pi_proximal = ratio and pi_proximal / pi_behaviour = weight."""
    proximal = torch.tensor([[-2.0]])
    loss, metrics = policy_loss(
        proximal + math.log(ratio),
        proximal,
        proximal - math.log(weight),
        torch.tensor([advantage]),
        torch.tensor([[True]]),
        PolicyLoss(clip_high=0.2),
        normaliser=1,
    )
    return float(loss), metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight", "loss"),
    [
        (1.0, 2.0, 1.0, -2.0),
        (1.5, 1.0, 1.0, -1.2),  # clipped above
        (0.5, 1.0, 1.0, -0.5),  # not clipped: the pessimistic side
        (0.5, -1.0, 1.0, 0.8),  # clipped below
        (1.5, -1.0, 1.0, 1.5),
        (10.0, -1.0, 1.0, 3.0),  # dual clip: 3 |A|
        (10.0, -0.5, 1.0, 1.5),
        (1.0, 1.0, 4.9, -4.9),
        (1.0, 1.0, 5.1, 0.0),  # masked, not clipped
        (1.0, -1.0, 0.5, 0.5),
    ],
)
def test_hand_computed_values(ratio: float, advantage: float, weight: float, loss: float) -> None:
    assert loss_of(ratio, advantage, weight)[0] == pytest.approx(loss, abs=1e-5)


def test_metrics_name_what_happened() -> None:
    assert loss_of(0.5, -1.0)[1].clip_low == 1
    assert loss_of(1.5, 1.0)[1].clip_high == 1
    assert loss_of(10, -1.0)[1].dual_clip == 1
    masked = loss_of(1.0, 1.0, 6.0)[1]
    assert (masked.behaviour_masked, masked.behaviour_weight) == (1, 0)
    same = loss_of(1.0, 1.0)[1].means()
    assert (same["ratio"], same["kl_proximal"], same["kl_behaviour"]) == pytest.approx((1, 0, 0), abs=1e-6)


def reference(lp: Tensor, prox: Tensor, beh: Tensor, adv: Tensor, mask: Tensor, normaliser: float) -> float:
    """The loss token by token, as written in the paper."""
    total = 0.0
    for b in range(lp.shape[0]):
        for t in range(lp.shape[1]):
            if not mask[b, t]:
                continue
            a, rho, w = float(adv[b]), math.exp(lp[b, t] - prox[b, t]), math.exp(prox[b, t] - beh[b, t])
            if w > 5.0:
                continue
            pg = max(-a * rho, -a * min(max(rho, 0.8), 1.28))
            if a < 0:
                pg = min(pg, 3.0 * abs(a))
            total += w * pg
    return total / normaliser


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_equals_the_per_token_reference(seed: int) -> None:
    torch.manual_seed(seed)
    prox = -3 * torch.rand(5, 7)
    lp, beh = prox + torch.randn(5, 7), prox + 1.5 * torch.randn(5, 7)
    adv, mask = torch.randn(5), torch.rand(5, 7) < 0.6
    loss, metrics = policy_loss(lp, prox, beh, adv, mask, normaliser=13)
    assert float(loss) == pytest.approx(reference(lp, prox, beh, adv, mask, 13), rel=1e-4, abs=1e-5)
    assert metrics.tokens == mask.sum()


def test_micro_batches_add_up_to_the_minibatch() -> None:
    torch.manual_seed(0)
    lp, prox, beh, adv, mask = (
        -torch.rand(6, 4),
        -torch.rand(6, 4),
        -torch.rand(6, 4),
        torch.randn(6),
        torch.rand(6, 4) < 0.7,
    )
    tokens = float(mask.sum())
    whole, of_whole = policy_loss(lp, prox, beh, adv, mask, normaliser=tokens)
    parts = [
        policy_loss(lp[s], prox[s], beh[s], adv[s], mask[s], normaliser=tokens) for s in (slice(0, 1), slice(1, 6))
    ]
    assert float(sum(loss for loss, _ in parts)) == pytest.approx(float(whole), abs=1e-6)
    summed = parts[0][1] + parts[1][1]
    assert summed.means() == pytest.approx(of_whole.means(), abs=1e-5)


@pytest.mark.parametrize(
    ("weights", "correction", "ess"),
    [
        ((1.0, 1.0, 1.0), "mask", 1.0),
        ((2.0, 2.0), "mask", 1.0),
        ((3.0, 1.0), "mask", 0.8),  # 16 / (2 * 10)
        ((3.0, 1.0, 50.0), "mask", 0.8),  # masked at 5: no sample
        ((3.0, 1.0, 50.0), "clamp", 81 / (3 * 35)),  # as 5
    ],
)
def test_effective_sample_size_by_hand(weights: tuple[float, ...], correction: Correction, ess: float) -> None:
    """Each weight is in a micro-batch of its own."""
    total = LossMetrics()
    for weight in weights:
        one, mask = torch.tensor([[-1.0]]), torch.tensor([[True]])
        behaviour = one - math.log(weight)
        choices = PolicyLoss(correction=correction, behaviour_cap=5.0)
        total += policy_loss(one, one, behaviour, torch.ones(1), mask, choices, normaliser=1)[1]
    assert total.means()["ess"] == pytest.approx(ess, rel=1e-5)
    assert "behaviour_weight_squared" not in total.means()


def test_gradient_at_ratio_one_is_that_of_advantage_times_logprob() -> None:
    torch.manual_seed(1)
    start, adv, mask = -torch.rand(4, 5), torch.randn(4), torch.rand(4, 5) < 0.8
    lp = start.clone().requires_grad_()
    policy_loss(lp, start, start, adv, mask, normaliser=3)[0].backward()
    assert torch.allclose(lp.grad, -adv[:, None] * mask / 3, atol=1e-6)


def test_clipped_and_masked_tokens_have_no_gradient() -> None:
    prox = torch.full((1, 3), -1.0)
    lp = (prox + torch.tensor([[0.5, 0.0, 0.0]])).requires_grad_()
    beh = prox - torch.tensor([[0.0, 2.0, 0.0]])
    policy_loss(lp, prox, beh, torch.tensor([1.0]), torch.ones(1, 3, dtype=torch.bool), normaliser=1)[0].backward()
    assert lp.grad.tolist() == [[0, 0, -1]]


def test_positions_outside_the_mask_never_matter() -> None:
    mask = torch.tensor([[True, False]])
    lp = torch.tensor([[-1.0, float("nan")]], requires_grad=True)
    other = torch.tensor([[-1.0, -torch.inf]])
    loss, metrics = policy_loss(lp, other, other, torch.tensor([1.0]), mask, normaliser=1)
    loss.backward()
    assert float(loss.detach()) == -1 and metrics.tokens == 1 and lp.grad[0, 0] == -1
    assert all(math.isfinite(value) for value in metrics.means().values())


def test_behaviour_weight_overflow_is_masked_without_nan() -> None:
    lp = torch.tensor([[-1.0]], requires_grad=True)
    loss, metrics = policy_loss(
        lp, torch.tensor([[-1.0]]), torch.tensor([[-500.0]]), torch.tensor([1.0]), torch.tensor([[True]]), normaliser=1
    )
    loss.backward()
    assert float(loss.detach()) == 0 and metrics.behaviour_masked == 1 and lp.grad.tolist() == [[0]]


def test_logprobs_are_of_the_tempered_distribution_without_bans() -> None:
    torch.manual_seed(2)
    logits, targets = torch.randn(2, 3, 11), torch.tensor([[3, IGNORE_INDEX, 4], [IGNORE_INDEX, IGNORE_INDEX, 0]])
    found, entropy = token_logprobs(logits, targets, 0.7, (5, 9))
    allowed = [i for i in range(11) if i not in (5, 9)]
    for b, c in [(0, 0), (0, 2), (1, 2)]:
        p = torch.softmax(logits[b, c, allowed] / 0.7, -1)
        assert float(found[b, c]) == pytest.approx(float(p[allowed.index(int(targets[b, c]))].log()), abs=1e-5)
        assert float(entropy[b, c]) == pytest.approx(float(-(p * p.log()).sum()), abs=1e-5)
    assert found[0, 1] == entropy[0, 1] == 0


def test_entropy_gradient_survives_bans_and_is_off_by_default() -> None:
    logits, targets = torch.randn(1, 2, 6, requires_grad=True), torch.tensor([[1, 2]])
    assert not token_logprobs(logits, targets, 1.0, (3,))[1].requires_grad
    token_logprobs(logits, targets, 1.0, (3,), entropy_grad=True)[1].sum().backward()
    assert torch.isfinite(logits.grad).all() and (logits.grad[..., 3] == 0).all() and logits.grad.abs().sum() > 0


def test_entropy_bonus_lowers_the_loss_only_below_the_floor() -> None:
    assert entropy_bonus(0.2, 0.01, 0.25) == 0.01
    assert entropy_bonus(0.3, 0.01, 0.25) == 0
    one = torch.tensor([[-1.0]])
    mask, entropy = torch.tensor([[True]]), torch.tensor([[0.5]])
    loss, _ = policy_loss(
        one, one, one, torch.tensor([0.0]), mask, normaliser=1, entropy=entropy, entropy_coefficient=0.1
    )
    assert float(loss) == pytest.approx(-0.05)


def test_behaviour_cloning_is_minus_the_mean_logprob() -> None:
    lp = torch.tensor([[-1.0, -2.0], [-4.0, -9.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [True, False]])
    loss, metrics = behaviour_cloning_loss(lp, lp.detach(), mask, normaliser=3)
    loss.backward()
    assert float(loss.detach()) == pytest.approx((1 + 2 + 4) / 3)
    assert torch.allclose(lp.grad, torch.tensor([[-1 / 3, -1 / 3], [-1 / 3, 0]]))
    assert metrics.means()["logprob"] == pytest.approx(-7 / 3)


# -- what overflows, is infinite or is empty


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("far", [25.0, 88.0, 89.0, 500.0, 1e30, math.inf])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_overflowing_ratio_has_the_value_and_gradient_of_its_limit(sign: int, far: float, advantage: float) -> None:
    """Clipped above for A > 0, the dual clip for A < 0; 0 and clipped below on the other side. The
    other token trains as ever."""
    proximal = torch.tensor([[-2.0, -2.0]])
    lp = torch.tensor([[-2.0 + sign * far, -2.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    loss, metrics = policy_loss(lp, proximal, proximal, torch.tensor([advantage]), mask, normaliser=1)
    loss.backward()
    limit = {(1, 1.0): -1.28, (1, -1.0): 3.0, (-1, 1.0): 0.0, (-1, -1.0): 0.8}[sign, advantage]
    assert float(loss.detach()) == pytest.approx(limit - advantage, abs=1e-6)
    assert lp.grad.tolist() == [[pytest.approx(0, abs=1e-8), -advantage]]
    means = metrics.means()
    assert all(math.isfinite(value) for name, value in means.items() if name != "logprob")
    assert means["kl_proximal"] > 1


@pytest.mark.parametrize("cap", [5.0, 1e3, 1e12])
@pytest.mark.parametrize("far", [30.0, 95.0, math.inf])
def test_an_impossible_token_is_masked_with_finite_metrics(far: float, cap: float) -> None:
    lp = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    behaviour = torch.tensor([[-1.0 - far, -1.0]])
    loss, metrics = policy_loss(
        lp,
        lp.detach(),
        behaviour,
        torch.tensor([1.0]),
        torch.ones(1, 2, dtype=torch.bool),
        PolicyLoss(behaviour_cap=cap),
        normaliser=2,
    )
    loss.backward()
    assert lp.grad.tolist() == [[0, -0.5]]
    means = metrics.means()
    assert all(math.isfinite(value) for value in means.values())
    assert (means["behaviour_masked"], means["behaviour_weight"], means["ratio"]) == (0.5, 1, 1)
    assert means["kl_behaviour"] > 1
    assert math.isfinite(behaviour_cloning_loss(lp, behaviour, behaviour < 0, normaliser=1)[1].kl_behaviour)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, -1e38])
def test_junk_outside_the_mask_reaches_no_loss_gradient_or_metric(junk: float) -> None:
    mask = torch.tensor([[True, False], [False, False]])
    torch.manual_seed(0)
    clean, bad = -torch.rand(2, 2), torch.full((2, 2), junk)

    def result(filler: Tensor) -> tuple[list[float], list[LossMetrics], list[Tensor]]:
        values = torch.where(mask, clean, filler)
        lp = values.clone().requires_grad_()
        made = [
            policy_loss(
                lp,
                values - 0.1 * mask,
                values + 0.1 * mask,
                torch.tensor([1.0, 2.0]),
                mask,
                normaliser=1,
                entropy=values,
                entropy_coefficient=0.1,
            ),
            behaviour_cloning_loss(lp, values, mask, normaliser=1, entropy=values),
        ]
        gradients = [torch.autograd.grad(loss, lp, retain_graph=True)[0] for loss, _ in made]
        return [float(loss) for loss, _ in made], [metrics for _, metrics in made], gradients

    losses, metrics, gradients = result(bad)
    expected = result(torch.zeros(2, 2))
    assert (losses, metrics) == expected[:2]
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected[2], strict=True))


def test_entropy_of_a_model_that_rules_tokens_out_itself() -> None:
    """Some models write -inf at ids that their vocabulary pads: 0 log 0 is 0, in the gradient
    too."""
    logits = torch.tensor([[[0.0, 0.0, -torch.inf, 5.0]]], requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.tensor([[0]]), 1.0, (3,), entropy_grad=True)
    (logprobs + entropy).sum().backward()
    assert float(entropy) == pytest.approx(math.log(2)) and float(logprobs) == pytest.approx(-math.log(2))
    assert torch.isfinite(logits.grad).all()


def test_a_mean_over_no_token_is_no_number() -> None:
    one = torch.tensor([[-1.0]])
    _, nothing = policy_loss(one, one, one, torch.tensor([1.0]), torch.tensor([[False]]), normaliser=1)
    assert nothing.means() == {"tokens": 0, "loss": 0}
    _, dropped = policy_loss(one, one, one - 9, torch.tensor([1.0]), torch.tensor([[True]]), normaliser=1)
    assert not {"behaviour_weight", "ess"} & dropped.means().keys() and dropped.means()["behaviour_masked"] == 1


@pytest.mark.parametrize("entropy_grad", [False, True])
def test_chunks_give_the_same_log_probs_and_gradients(entropy_grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 20, 50)
    targets = torch.randint(0, 40, (3, 20))
    targets[torch.rand(3, 20) < 0.3] = IGNORE_INDEX

    def found() -> list[torch.Tensor]:
        leaf = logits.clone().requires_grad_()
        logprobs, entropy = token_logprobs(leaf, targets, 0.7, (41, 45), entropy_grad=entropy_grad)
        (3 * logprobs.sum() + (entropy.sum() if entropy_grad else 0)).backward()
        assert leaf.grad is not None
        return [logprobs.detach(), entropy.detach(), leaf.grad]

    whole = found()
    for numbers in (1, 50, 350, 1999):
        monkeypatch.setattr(losses, "CHUNK_NUMBERS", numbers)
        for ours, expected in zip(found(), whole, strict=True):
            assert torch.allclose(ours, expected, rtol=1e-6, atol=1e-7)
