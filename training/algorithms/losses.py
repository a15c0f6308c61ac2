"""Policy losses as pure functions of tensors.

Shapes: B rows, C response columns (positions that predict a response token in some row of the
micro-batch), V vocabulary. Every ``[B, C]`` tensor goes with a boolean ``mask`` that is true on
response tokens. All sums are divided by a ``normaliser`` that the caller passes in: the number of
response tokens of the *whole minibatch*, so that micro-batches and ranks add up to one token mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from envs.types import Extensions, TrainingError

IGNORE_INDEX = -100
"""Target at positions that hold no response token (torch's and LLaMA-Factory's value)."""

CHUNK_NUMBERS = 2**24
"""Largest number of logits in float32 at once (rows times vocabulary): 64 MB a tensor, some 110
tokens of a vocabulary of 152k."""

MAX_LOG_RATIO = 20.0
"""Bound of every log ratio before it is exponentiated (verl's value). Above 88.7 exp overflows in
float32, and its gradient is nan even where the clip takes the other branch. The bound changes no
gradient: with a clip at e^0.3 and a dual clip of 3, tokens this far out have none."""

MAX_IMAGES = 8
"""Number of images from which rows are counted together: twice the four rounds of the default
context."""


@dataclass(frozen=True, kw_only=True)
class LossMetrics:
    """Sums over response tokens; ``means()`` gives the metrics.

    They add over micro-batches and ranks.
    """

    tokens: float = 0.0
    loss: float = 0.0
    """The minibatch's loss: already divided by the normaliser, so no sum over tokens."""
    clip_low: float = 0.0
    """Tokens with A < 0 whose ratio fell below 1 - clip_low: no gradient."""
    clip_high: float = 0.0
    """Tokens with A > 0 whose ratio rose above 1 + clip_high: no gradient."""
    dual_clip: float = 0.0
    dppo_masked: float = 0.0
    behaviour_masked: float = 0.0
    behaviour_clamped: float = 0.0
    ratio: float = 0.0
    """Importance ratio pi / pi_proximal."""
    behaviour_weight: float = 0.0
    """Weight pi_proximal / pi_behaviour, summed over the tokens that are not masked; the mean is
    over the same tokens."""
    behaviour_weight_squared: float = 0.0
    """Squares of these weights. The means have ``ess`` instead."""
    kl_behaviour: float = 0.0
    """Estimate of KL(pi_behaviour || pi)."""
    kl_proximal: float = 0.0
    kl_reference: float = 0.0
    """Estimate of KL(pi || pi_reference), drawn from the behaviour policy."""
    entropy: float = 0.0
    logprob: float = 0.0
    kl_of_images: tuple[float, ...] = (0.0,) * (MAX_IMAGES + 1)
    """``kl_behaviour`` by the number of images in the row: 0, 1, ..., `MAX_IMAGES` or more."""
    tokens_of_images: tuple[float, ...] = (0.0,) * (MAX_IMAGES + 1)
    """``tokens`` by the number of images in the row."""

    def __add__(self, other: LossMetrics) -> LossMetrics:
        return LossMetrics.of([a + b for a, b in zip(self.sums(), other.sums(), strict=True)])

    def sums(self) -> list[float]:
        """Return all sums in one list of fixed length, for `of`."""
        return [part for value in astuple(self) for part in (value if isinstance(value, tuple) else (value,))]

    @classmethod
    def of(cls, sums: Sequence[float]) -> LossMetrics:
        """Make the metrics from a list that `sums` returned."""
        names, bins = _names(), MAX_IMAGES + 1
        kl, tokens = tuple(sums[len(names) : -bins]), tuple(sums[-bins:])
        single = dict(zip(names, sums[: len(names)], strict=True))
        return cls(**single, kl_of_images=kl, tokens_of_images=tokens)

    def means(self) -> dict[str, float]:
        """Return means per response token, the count of tokens, and the minibatch's loss.

        ``ess`` is the effective sample size of the behaviour weights as a share of the tokens that
        are not masked for them, ``(sum w)^2 / (n sum w^2)`` (Kish 1965): 1 where all weights are
        equal. A mean over no token is left out.
        """
        kept = self.tokens - self.behaviour_masked
        counts = dict.fromkeys(_names(), self.tokens) | {"behaviour_weight": kept}
        del counts["behaviour_weight_squared"]
        means = {name: getattr(self, name) / count for name, count in counts.items() if count > 0}
        if kept > 0 and self.behaviour_weight_squared > 0:
            means["ess"] = self.behaviour_weight**2 / (kept * self.behaviour_weight_squared)
        return means | {"tokens": self.tokens, "loss": self.loss}

    def kl_by_images(self) -> dict[str, float]:
        """Return the mean ``kl_behaviour`` per response token by the row's number of images.

        Numbers of images that no row has are left out.

        >>> images = (0, 6.0, *[0] * 7)
        >>> metrics = LossMetrics(kl_of_images=images, tokens_of_images=(0, 3, *[0] * 7))
        >>> metrics.kl_by_images()
        {'1': 2.0}
        """
        names = [*map(str, range(MAX_IMAGES)), f"{MAX_IMAGES}_or_more"]
        both = zip(names, self.kl_of_images, self.tokens_of_images, strict=True)
        return {name: kl / count for name, kl, count in both if count > 0}


def _names() -> list[str]:
    """Return the names of the sums that are single numbers."""
    return [field.name for field in fields(LossMetrics) if not field.name.endswith("_of_images")]


NOT_OF_EXTENSIONS = frozenset(
    {"clip_low", "clip_high", "dual_clip", "dppo_masked", "behaviour_masked", "behaviour_clamped", "kl_reference"}
)
"""Metrics that ``named_policy_loss`` does not measure: it cannot know what the function clips or
drops."""

NOT_OF_CLONING = NOT_OF_EXTENSIONS | {"ratio", "behaviour_weight", "ess", "kl_proximal"}
"""Metrics that ``behaviour_cloning_loss`` does not measure: it has no ratio."""


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    banned_ids: Sequence[int] = (),
    *,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of the sampling distribution at response positions.

    The distribution is ``softmax(logits / temperature)`` over the ids that are not banned, exactly
    as in sampling. Only the rows that predict a response token are computed, `CHUNK_NUMBERS`
    numbers at a time in float32, and each chunk is computed again in the backward pass. So N rows
    of a vocabulary of V need, besides the logits, about `loss_bytes` for their gradient and one
    chunk.

    Args:
        logits: ``[B, C, V]``, any float dtype; ``logits[b, c]`` predicts ``targets[b, c]`` (already
            shifted).
        targets: ``[B, C]`` int64, ``IGNORE_INDEX`` where there is no response token.
        temperature: Sampling temperature, > 0.
        banned_ids: Ids that sampling never draws. A banned target has log-probability ``-inf``.
        entropy_grad: Keep the entropy in the autograd graph.

    Returns:
        Log-probabilities and entropies (nats), both ``[B, C]`` float32, 0 where there is no
        response token.
    """
    mask = targets != IGNORE_INDEX
    rows, row_targets = logits[mask], targets[mask]
    banned = torch.zeros(rows.shape[-1], dtype=torch.bool, device=rows.device)
    banned[list(banned_ids)] = True
    size = max(1, CHUNK_NUMBERS // rows.shape[-1])

    def compute(part: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return _chosen_and_entropy(part, chosen, banned, temperature, entropy_grad)

    if len(rows) <= size:
        logprobs, entropies = compute(rows, row_targets)
    else:
        parts = [
            checkpoint(compute, part, chosen, use_reentrant=False, preserve_rng_state=False)
            for part, chosen in zip(torch.split(rows, size), torch.split(row_targets, size), strict=True)
        ]
        logprobs, entropies = (torch.cat(chunks) for chunks in zip(*parts, strict=True))
    blank = torch.zeros(targets.shape, dtype=torch.float32, device=rows.device)
    return blank.masked_scatter(mask, logprobs), blank.masked_scatter(mask, entropies)


def packed_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    banned_ids: Sequence[int] = (),
    *,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return what `token_logprobs` does, of logits that exist at response positions only.

    Args:
        logits: ``[1, N, V]``, which predict the N response tokens of ``targets``, row by row.
        targets: ``[B, C]`` int64, ``IGNORE_INDEX`` where there is no response token.
    """
    mask = targets != IGNORE_INDEX
    packed = token_logprobs(logits, targets[mask][None], temperature, banned_ids, entropy_grad=entropy_grad)
    blank = torch.zeros(targets.shape, dtype=torch.float32, device=logits.device)
    logprobs, entropies = (blank.masked_scatter(mask, values) for values in packed)
    return logprobs, entropies


def _chosen_and_entropy(
    rows: Tensor, targets: Tensor, banned: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logp = (rows.float() / temperature).masked_fill(banned, -torch.inf).log_softmax(-1)
    chosen = logp.gather(-1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        # 0 log 0 = 0: for ids that are banned, and for those whose probability is 0 in the model.
        entropy = -(logp.exp() * logp.masked_fill(logp.isneginf(), 0.0)).sum(-1)
    return chosen, entropy


def loss_bytes(rows: int, vocabulary: int, item_bytes: int) -> int:
    """Return the largest memory in bytes of `token_logprobs` and its backward pass.

    The logits that it is given are not included. Right within a fifth (measured on the CPU). It is
    two tensors of all rows that predict a response token, in the logits' data type (the rows with
    their gradient, then that with the logits' gradient), and one chunk: four float32 tensors of
    `CHUNK_NUMBERS` in its own backward pass.

    Args:
        rows: Number of rows that predict a response token, where the logits have no others.
        item_bytes: Bytes of one logit.
    """
    chunk = min(rows, max(1, CHUNK_NUMBERS // vocabulary)) * vocabulary
    return 2 * rows * vocabulary * item_bytes + 4 * 4 * chunk


def entropy_bonus(mean_entropy: float, coefficient: float, floor: float) -> float:
    """Return the coefficient of the entropy bonus for one update.

    An unbounded bonus makes the entropy diverge (5 nats and a falling reward in our measurements),
    and without a bonus exploration ends. So the bonus acts below the floor only.

    Args:
        mean_entropy: Nats per token of the policy at the start of the update.
    """
    return coefficient if mean_entropy < floor else 0.0


def behaviour_cloning_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    *,
    normaliser: float,
    row_weights: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, LossMetrics]:
    """Return the sum of ``-log p`` of the response tokens, and its metrics.

    Shapes, ``normaliser`` and ``row_weights`` as in ``policy_loss``.
    """
    zero = torch.zeros_like(behaviour)
    loss = weighted_sum(torch.where(mask, -logprobs, zero), row_weights) / normaliser
    with torch.no_grad():
        metrics = sum_metrics(
            tokens=mask,
            loss=loss,
            kl_behaviour=kl_estimate(torch.where(mask, logprobs - behaviour, zero)),
            entropy=zero if entropy is None else torch.where(mask, entropy, zero),
            logprob=torch.where(mask, logprobs, zero),
        )
    return loss, metrics


@dataclass(frozen=True, slots=True)
class Tokens:
    """Input of an extension's loss function.

    Float tensors ``[B, C]``, 0 where ``mask`` is false.
    """

    logprobs: Tensor
    """Log-probs of the policy being trained, with gradient."""
    proximal: Tensor
    """Log-probs of the policy at the start of the update."""
    behaviour: Tensor
    """Log-probs of the behaviour policy, recorded at sampling."""
    advantages: Tensor
    mask: Tensor
    """Response tokens, ``[B, C]`` bool."""


LOSSES: Extensions[Callable[[Tokens], Tensor]] = Extensions("loss", "rollwright.losses", {})
"""Loss functions of extensions by name: each maps ``Tokens`` to the loss of each token, ``[B,
C]``."""


def named_policy_loss(
    name: str,
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    normaliser: float,
    row_weights: Tensor | None = None,
    entropy: Tensor | None = None,
    entropy_coefficient: float = 0.0,
) -> tuple[Tensor, LossMetrics]:
    """Return the loss that an extension's function gives each token, and its metrics.

    The loss is masked and divided as ``policy_loss`` does.

    Raises:
        ConfigError: There is no such function, or it cannot be imported in this process.
        TrainingError: It did not return a tensor of the tokens' shape.
    """
    zero = torch.zeros_like(behaviour)
    advantage = torch.where(mask, per_token(advantages, mask), zero)
    logprobs, proximal, behaviour = (torch.where(mask, values, zero) for values in (logprobs, proximal, behaviour))
    tokens = Tokens(logprobs, proximal, behaviour, advantage, mask)
    losses = LOSSES.find(name)(tokens)
    if not isinstance(losses, Tensor) or losses.shape != mask.shape:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else repr(losses)
        raise TrainingError(f"algorithm.loss: {name} gave {got}; expected a loss for each token, {tuple(mask.shape)}")
    loss = weighted_sum(torch.where(mask, losses, zero), row_weights) / normaliser
    if entropy is not None and entropy_coefficient:
        loss = loss - entropy_coefficient * weighted_sum(torch.where(mask, entropy, zero), row_weights) / normaliser
    with torch.no_grad():
        log_ratio = clamp_log_ratio(tokens.logprobs - tokens.proximal)
        weight = torch.where(mask, clamp_log_ratio(tokens.proximal - tokens.behaviour).exp(), zero)
        metrics = sum_metrics(
            tokens=mask,
            loss=loss,
            ratio=torch.where(mask, log_ratio.exp(), zero),
            behaviour_weight=weight,
            behaviour_weight_squared=weight.square(),
            kl_behaviour=kl_estimate(tokens.logprobs - tokens.behaviour),
            kl_proximal=kl_estimate(log_ratio),
            entropy=zero if entropy is None else torch.where(mask, entropy, zero),
            logprob=tokens.logprobs,
        )
    return loss, metrics


@torch.no_grad()
def sum_by_images(logprobs: Tensor, behaviour: Tensor, mask: Tensor, images: Tensor) -> LossMetrics:
    """Return the sums of ``kl_behaviour`` and of tokens by each row's number of images.

    All other sums are 0.

    Args:
        images: Number of images in each row, ``[B]`` int64.
    """
    kl = kl_estimate(torch.where(mask, logprobs - behaviour, torch.zeros_like(behaviour))).sum(1)
    rows = torch.stack([kl, mask.sum(1)]).double()
    sums = rows.new_zeros(2, MAX_IMAGES + 1).index_add_(1, images.clamp(max=MAX_IMAGES), rows)
    of_kl, of_tokens = sums.tolist()
    return LossMetrics(kl_of_images=tuple(of_kl), tokens_of_images=tuple(of_tokens))


def weighted_sum(losses: Tensor, row_weights: Tensor | None) -> Tensor:
    """Return the sum of ``[B, C]``, each row by its weight ``[B]``; ``None``: all 1."""
    return losses.sum() if row_weights is None else (losses.sum(1) * row_weights).sum()


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Return Schulman's k3 estimate of KL(q || p) for each token drawn from q.

    Never negative, and 0 at equality.

    Args:
        log_ratio: ``log p - log q``.
    """
    bounded = clamp_log_ratio(log_ratio)
    return bounded.expm1() - bounded


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def per_token(values: Tensor, mask: Tensor) -> Tensor:
    return (values[:, None] if values.dim() == 1 else values).expand(mask.shape)


def sum_metrics(**parts: Tensor) -> LossMetrics:
    """Sum each tensor and make the metrics, with one transfer from the device."""
    values = torch.stack([part.detach().sum().double() for part in parts.values()]).tolist()
    return LossMetrics(**dict(zip(parts, values, strict=True)))
