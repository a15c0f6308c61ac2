"""Policy losses as combinations of four choices.

The choices are ratio, trust region, correction for the behaviour policy, and aggregation. Pure
functions of tensors; shapes as in `training.algorithms.losses`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from training.algorithms.choices import Aggregation, PolicyLoss
from training.algorithms.losses import LossMetrics, clamp_log_ratio, kl_estimate, per_token, sum_metrics, weighted_sum

ASYNCWEBRL = PolicyLoss()
"""AsyncWebRL's decoupled loss: the defaults."""


def policy_loss(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    choices: PolicyLoss = ASYNCWEBRL,
    *,
    normaliser: float,
    row_weights: Tensor | None = None,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
    entropy_coefficient: float = 0.0,
) -> tuple[Tensor, LossMetrics]:
    """Return the loss of one micro-batch and its metrics.

    The loss is a surrogate inside a trust region, corrected for the policy that sampled. Per token,
    with the importance ratio ``rho`` to the proximal policy and the weight ``w`` of the behaviour
    policy (decoupled PPO, Hilton et al. 2022)::

        loss = w surrogate(rho, A) + kl_coefficient k3(pi, reference)

    Log ratios are clamped to ``MAX_LOG_RATIO`` on both sides, in the metrics too.

    Args:
        logprobs: ``[B, C]``, log-probs of the policy being trained, with gradient.
        proximal: ``[B, C]``, log-probs at the start of the update.
        behaviour: ``[B, C]``, log-probs recorded at sampling.
        advantages: ``[B]`` or ``[B, C]``.
        mask: ``[B, C]`` bool.
        choices: Surrogate, trust region and correction.
        normaliser: Divisor of the sum; see `aggregation_weights`.
        row_weights: ``[B]``, weight of each row's tokens; ``None``: all 1.
        reference: ``[B, C]``, log-probs of the policy to which ``kl_coefficient`` penalises the
            distance.
        entropy: ``[B, C]``; needed for the bonus, else only reported.
        entropy_coefficient: Weight of the bonus, as ``entropy_bonus`` returns it.
    """
    advantage = per_token(advantages, mask)
    zero = torch.zeros_like(behaviour)
    token_log_ratio = clamp_log_ratio(torch.where(mask, logprobs - proximal, zero))
    log_ratio = _sequence_mean(token_log_ratio, mask) if choices.ratio == "sequence" else token_log_ratio
    bounded = _bounded(logprobs, proximal, log_ratio, advantage, mask, choices)
    weight, kept, clamped = _behaviour_weight(torch.where(mask, proximal - behaviour, zero).detach(), mask, choices)
    # `where`, not a product: values outside of the mask may be nan.
    losses = torch.where(kept, weight * bounded.surrogate, zero)
    kl = zero
    if reference is not None:
        kl = torch.where(mask, kl_estimate(torch.where(mask, reference - logprobs, zero)), zero)
        losses = losses + choices.kl_coefficient * kl
    loss = weighted_sum(losses, row_weights) / normaliser
    if entropy is not None and entropy_coefficient:
        loss = loss - entropy_coefficient * weighted_sum(torch.where(mask, entropy, zero), row_weights) / normaliser

    with torch.no_grad():
        metrics = sum_metrics(
            tokens=mask,
            loss=loss,
            clip_low=bounded.low,
            clip_high=bounded.high,
            dual_clip=bounded.dual,
            dppo_masked=bounded.masked,
            behaviour_masked=mask & ~kept,
            behaviour_clamped=clamped,
            ratio=torch.where(mask, log_ratio.exp(), zero),
            behaviour_weight=weight,
            behaviour_weight_squared=weight.square(),
            kl_behaviour=kl_estimate(torch.where(mask, logprobs - behaviour, zero)),
            kl_proximal=kl_estimate(token_log_ratio),
            kl_reference=kl,
            entropy=zero if entropy is None else torch.where(mask, entropy, zero),
            logprob=torch.where(mask, logprobs, zero),
        )
    return loss, metrics


class _Bounded(NamedTuple):
    """The surrogate inside its trust region, and the tokens each bound acted on, ``[B, C]``."""

    surrogate: Tensor
    low: Tensor
    high: Tensor
    dual: Tensor
    masked: Tensor


def _bounded(
    logprobs: Tensor, proximal: Tensor, log_ratio: Tensor, advantage: Tensor, mask: Tensor, choices: PolicyLoss
) -> _Bounded:
    nowhere = torch.zeros_like(mask)
    if choices.ratio == "none":
        return _Bounded(-advantage * torch.where(mask, logprobs, 0.0), nowhere, nowhere, nowhere, nowhere)
    ratio = log_ratio.exp()
    surrogate = -advantage * ratio
    if choices.trust_region == "none":
        return _Bounded(surrogate, nowhere, nowhere, nowhere, nowhere)
    if choices.trust_region == "dppo":
        moved = torch.where(mask, logprobs.detach().exp() - proximal.exp(), 0.0)
        masked = mask & (moved * advantage.sign() > choices.dppo_limit)
        return _Bounded(torch.where(masked, 0.0, surrogate), nowhere, nowhere, nowhere, masked)
    low, high = 1 - choices.clip_low, 1 + choices.clip_high
    surrogate = torch.maximum(surrogate, -advantage * ratio.clamp(low, high))
    dual = nowhere
    if choices.trust_region == "dual_clip":
        ceiling = choices.dual_clip * advantage.abs()
        dual = mask & (advantage < 0) & (surrogate > ceiling)
        surrogate = torch.where(dual, ceiling, surrogate)
    return _Bounded(
        surrogate,
        mask & (advantage < 0) & (ratio < low),
        mask & (advantage > 0) & (ratio > high),
        dual,
        nowhere,
    )


def _behaviour_weight(log_weight: Tensor, mask: Tensor, choices: PolicyLoss) -> tuple[Tensor, Tensor, Tensor]:
    """Return the correction weights, the kept tokens, and those whose weight was clamped.

    A weight is pi_proximal / pi_behaviour as it enters the loss.
    """
    nowhere, zero = torch.zeros_like(mask), torch.zeros_like(log_weight)
    if choices.correction == "none":
        return torch.where(mask, torch.ones_like(log_weight), zero), mask, nowhere
    # Compared before it is clamped: a cap above e^20 still drops tokens beyond it.
    weight = log_weight.exp()
    if choices.correction == "clamp":
        bounded = clamp_log_ratio(log_weight).exp().clamp(max=choices.behaviour_cap)
        return torch.where(mask, bounded, zero), mask, mask & (weight > choices.behaviour_cap)
    kept = mask & (weight <= choices.behaviour_cap)
    if choices.correction == "band":
        kept = kept & (weight >= choices.behaviour_floor)
    return torch.where(kept, clamp_log_ratio(log_weight).exp(), zero), kept, nowhere


def _sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return each row's mean over its response tokens, at all of these tokens."""
    counts = mask.sum(1, keepdim=True).clamp(min=1)
    return torch.where(mask, (values.sum(1, keepdim=True) / counts).expand(mask.shape), torch.zeros_like(values))


def aggregation_weights(how: Aggregation, tokens: Sequence[int], episodes: Sequence[str]) -> tuple[list[float], float]:
    """Return the weight of each row's tokens in a minibatch's loss, and the divisor.

    ``token``: every token counts alike (DAPO, eq. 8). ``step``: every step counts alike, whatever
    the length of its response (GRPO's sample mean). ``sequence``: every episode counts alike,
    whatever the number of its tokens in this minibatch.

    Args:
        tokens: Response tokens of each row.
        episodes: Episode of each row.

    Returns:
        One weight a row, and the normaliser: the sum of weights times tokens.
    """
    if how == "token":
        return [1.0] * len(tokens), float(sum(tokens))
    if how == "step":
        return [1 / count for count in tokens], float(len(tokens))
    of_episode: Counter[str] = Counter()
    for episode, count in zip(episodes, tokens, strict=True):
        of_episode[episode] += count
    return [1 / of_episode[episode] for episode in episodes], float(len(of_episode))
