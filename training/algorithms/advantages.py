"""Advantages of whole episodes and of their steps. Pure functions of rewards and lengths.

GRPO (Shao et al. 2024, DeepSeekMath, section 4.1.1): an episode is compared with the other episodes
of its group, in units of the group's standard deviation. A web episode is many training rows, one
per step, so the episode's advantage is then handed to its steps under a *step normaliser*
(AsyncWebRL: dividing by the episode's own length weakens the gradient of failures, which are longer
than successes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from envs.types import Extensions, TrainingError

StepNormalizer = Literal["constant", "trajectory", "none"]
"""Divisor of an episode's advantage before each of its steps gets it. ``constant``: a constant k
(all steps of all episodes count alike). ``trajectory``: the episode's own number of steps T (every
episode counts alike). ``none``: 1. The values of ``AlgorithmConfig.step_normalizer``."""


def group_advantages(rewards: Sequence[float], std_epsilon: float = 1e-4) -> list[float]:
    """Return ``(r_i - mean) / (std + std_epsilon)`` over a group, with the population std.

    For c successes of n binary rewards: ``sqrt((n - c) / c)`` for a success, ``-sqrt(c / (n - c))``
    for a failure, within ``std_epsilon``. A group without variance carries no signal; all its
    advantages are exactly 0 (see ``has_signal``).

    Args:
        rewards: Scores of the group's episodes that have one (abstentions left out); at least one.
        std_epsilon: Keeps groups of nearly equal rewards from being scaled up to unit variance.
    """
    if not rewards:
        raise ValueError("a group needs at least one reward")
    if not has_signal(rewards):
        return [0.0] * len(rewards)
    values = np.asarray(rewards, dtype=np.float64)
    return [float(value) for value in (values - values.mean()) / (values.std() + std_epsilon)]


def dr_grpo_advantages(rewards: Sequence[float]) -> list[float]:
    """Return ``r_i - mean``: Dr. GRPO (Liu et al. 2025, section 3.2).

    It avoids the bias of dividing by a group's standard deviation.
    """
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def rloo_advantages(rewards: Sequence[float]) -> list[float]:
    """Return ``r_i`` less the mean of the *other* rewards: REINFORCE leave-one-out.

    Source: Kool et al. 2019; Ahmadian et al. 2024.
    """
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def named_advantages(name: str, rewards: Sequence[float]) -> list[float]:
    """Return the advantages that a named function gives a group whose rewards differ.

    Args:
        name: ``dr_grpo``, ``rloo``, the name of an entry point of ``rollwright.advantages``, or
            ``module:function``.
        rewards: Scores of the group's episodes that have one; at least two.

    Raises:
        ConfigError: There is no such function, or it cannot be imported in this process.
        TrainingError: It did not give one finite number for each reward.
    """
    values = [float(value) for value in ADVANTAGES.find(name)(list(rewards))]
    if len(values) != len(rewards) or not all(map(math.isfinite, values)):
        raise TrainingError(
            f"algorithm.advantages: {name} gave {values} for the rewards {list(rewards)}; expected {len(rewards)} finite numbers"
        )
    return values


ADVANTAGES: Extensions[Callable[[Sequence[float]], Sequence[float]]] = Extensions(
    "advantage", "rollwright.advantages", {"dr_grpo": dr_grpo_advantages, "rloo": rloo_advantages}
)
"""Advantage functions by name; ``grpo`` and ``raft`` are not functions of the rewards alone
(`training.records.batches`)."""


def has_signal(rewards: Sequence[float]) -> bool:
    """Return True if the rewards of a group differ.

    The rewards themselves are compared: a mean of equal floats may differ from them in the last
    bit.
    """
    return len(set(rewards)) > 1


def step_advantages(advantage: float, steps: int, normaliser: StepNormalizer, constant: float = 10.0) -> list[float]:
    """Return the advantage of each step of an episode.

    All ``steps`` get the same share (discount 1, no credit assignment inside an episode).

    Args:
        advantage: Advantage of the episode, from ``group_advantages``.
        steps: Number of steps of the episode; 0 for one that ended before its first.
        normaliser: Name of the divisor.
        constant: k of ``constant``; 10 is the horizon of WebGym's easy tasks (AsyncWebRL
            ``step_adv_const_length``).
    """
    if not steps:
        return []
    divisor = {"constant": constant, "trajectory": float(steps), "none": 1.0}[normaliser]
    return [advantage / divisor] * steps
