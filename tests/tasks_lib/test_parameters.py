"""A flow's parameters say what its configuration says, group by group."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from envs.types import ConfigError
from tasks_lib.commands.arguments import FLOWS, model_of
from tasks_lib.config import TrainConfig, load_preset, resolve
from tasks_lib.config.parameters import grouped, parameters_of, takes_groups, values_of

NEEDED: dict[str, dict[str, Any]] = {
    "flows.batch": {"endpoint": {"address": "http://127.0.0.1:1/v1", "model": "m"}, "run_id": "one"},
    "flows.regrade": {"run": "runs/one", "judge": {"base_url": "http://127.0.0.1:1/v1", "models": {"default": "m"}}},
    "flows.promote": {"run": "runs/one", "alias": "best"},
    "flows.build_tasks": {"sources": [{"kind": "files", "name": "own", "paths": ["datasets/tasks/miniwob.jsonl"]}]},
    "flows.sweep": {"base": {"preset": "quickstart"}, "grid": {"seed": [0, 1]}},
    "flows.train": {"preset": "quickstart", "seed": 3, "rollout": {"concurrency": 2}},
}


@pytest.mark.parametrize("flow", sorted(FLOWS))
def test_parameters_give_the_configuration_back(flow: str) -> None:
    config = resolve(model_of(flow), NEEDED.get(flow, {}))
    assert resolve(model_of(flow), values_of(parameters_of(config))) == config


@takes_groups(TrainConfig)
def resolved(config: TrainConfig) -> TrainConfig:
    return config


def defaults() -> dict[str, Any]:
    """What Prefect passes for the parameters that a caller left out."""
    signature = inspect.signature(resolved)
    return {name: parameter.default.default for name, parameter in signature.parameters.items()}


def test_what_is_not_given_is_the_presets() -> None:
    given = {**defaults(), "general": {"preset": "quickstart", "seed": 3}, "rollout": {"concurrency": 2}}
    expected = resolve(TrainConfig, {**load_preset("quickstart"), "seed": 3})
    found = resolved(**given)
    assert found.rollout == expected.rollout.model_copy(update={"concurrency": 2})
    assert found.model_copy(update={"rollout": expected.rollout}) == expected


def test_a_group_given_as_its_model_counts_only_with_what_was_set() -> None:
    """Prefect's validation turns a mapping into the model before the flow's function is called."""
    general = inspect.signature(resolved).parameters["general"].annotation
    found = resolved(**{**defaults(), "general": general(preset="quickstart")})
    assert found == resolve(TrainConfig, load_preset("quickstart"))


def test_a_bad_key_is_named() -> None:
    with pytest.raises(ConfigError, match="lerning_rate"):
        resolved(**{**defaults(), "trainer": {"lerning_rate": 1}})


def test_every_key_of_a_preset_is_in_a_group() -> None:
    preset = load_preset("quickstart")
    assert values_of(grouped(TrainConfig, preset)) == preset
