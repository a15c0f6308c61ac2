"""Checks that the extensions named in a configuration can be imported.

This is before anything is rolled out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from envs.actions import as_parsed
from envs.rewards import reward_source
from envs.types import ConfigError
from tasks_lib.config import EvaluateConfig, RewardConfig, RolloutConfig, TrainConfig, WarmStartConfig
from training.algorithms.advantages import ADVANTAGES


def check_extensions(config: TrainConfig | EvaluateConfig | WarmStartConfig) -> None:
    """Import what is used on this machine: all of it, or without a worker's part where the workers are a cluster elsewhere.

    Raises:
        ConfigError: something cannot be imported, with the key that names it.
    """
    rewards = RewardConfig() if isinstance(config, WarmStartConfig) else config.rewards
    looks = [] if config.cluster.address else [*_of_workers(config.rollout, rewards)]
    if isinstance(config, TrainConfig):
        looks += _of_training(config)
    for key, find in looks:
        try:
            find()
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from error


def _of_workers(rollout: RolloutConfig, rewards: RewardConfig) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "rollout.parser", partial(as_parsed, rollout.parser)
    if rewards.function:
        yield "rewards.function", partial(reward_source, rewards.function)
    for name in rewards.extra:
        yield "rewards.extra", partial(reward_source, name)


def _of_training(config: TrainConfig) -> Iterator[tuple[str, Callable[[], Any]]]:
    if config.algorithm.advantages not in ("", "grpo", "raft"):
        yield "algorithm.advantages", partial(ADVANTAGES.find, config.algorithm.advantages)
    if config.algorithm.loss:
        from training.algorithms.losses import LOSSES  # imports torch: seconds

        yield "algorithm.loss", partial(LOSSES.find, config.algorithm.loss)
