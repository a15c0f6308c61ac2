"""Checks that the extensions named in a configuration can be imported.

The check runs before anything is rolled out.
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
    """Import the extensions that this machine uses.

    These are all, or those of the trainer only if the workers are a cluster elsewhere.

    Raises:
        ConfigError: an extension cannot be imported; names its key.
    """
    rewards = RewardConfig() if isinstance(config, WarmStartConfig) else config.rewards
    lookups = [] if config.cluster.address else [*_worker_lookups(config.rollout, rewards)]
    if isinstance(config, TrainConfig):
        lookups += _training_lookups(config)
    for key, find in lookups:
        try:
            find()
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from error


def _worker_lookups(rollout: RolloutConfig, rewards: RewardConfig) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "rollout.parser", partial(as_parsed, rollout.parser)
    if rewards.function:
        yield "rewards.function", partial(reward_source, rewards.function)
    for name in rewards.extra:
        yield "rewards.extra", partial(reward_source, name)


def _training_lookups(config: TrainConfig) -> Iterator[tuple[str, Callable[[], Any]]]:
    if config.algorithm.advantages not in ("", "grpo", "raft"):
        yield "algorithm.advantages", partial(ADVANTAGES.find, config.algorithm.advantages)
    if config.algorithm.loss:
        from training.algorithms.losses import LOSSES  # imports torch: seconds

        yield "algorithm.loss", partial(LOSSES.find, config.algorithm.loss)
