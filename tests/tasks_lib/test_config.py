"""Configuration errors name the key and what is allowed; presets are valid; precedence is left to right."""

from __future__ import annotations

import pytest

from envs.types import ConfigError
from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.config import (
    PRESETS,
    PROJECT,
    EvaluateConfig,
    TrainConfig,
    WarmStartConfig,
    load_preset,
    merge,
    parse_assignments,
    resolve,
)
from tasks_lib.sweeps.config import SweepConfig


def test_a_relative_cache_of_the_judge_is_the_projects_wherever_a_worker_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    judge = {"base_url": "http://127.0.0.1:1/v1", "models": {"default": "m"}}

    def cache(**given):
        return resolve(TrainConfig, {"rollout": {"judge": {**judge, **given}}}).rollout.judge.cache

    assert cache(cache="judge-cache") == PROJECT / "judge-cache"
    assert cache(cache=str(tmp_path / "c")) == tmp_path / "c"
    assert cache() is None
    written = resolve(TrainConfig, {"rollout": {"judge": {**judge, "cache": "c"}}}).model_dump(mode="json")
    assert resolve(TrainConfig, written).rollout.judge.cache == PROJECT / "c", "again from a run's file"


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_every_preset_is_valid(preset):
    models = {"reader": WarmStartConfig, "bundled-tasks": BuildTasksConfig, "quickstart-seeds": SweepConfig}
    config = resolve(models.get(preset, TrainConfig), {"preset": preset})
    assert config.preset == preset
    assert config.run_id == (preset if isinstance(config, SweepConfig) else f"{preset}-seed0")


@pytest.mark.parametrize("model", [TrainConfig, EvaluateConfig, WarmStartConfig, SweepConfig])
@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "a b"])
def test_a_run_is_named_as_a_folder_of_its_own(model, name):
    with pytest.raises(ConfigError, match=r"run_id: got .*; allowed: string matching "):
        resolve(model, {"run_id": name})


def test_assignments_lie_over_the_preset():
    values = merge(
        {"preset": "quickstart"}, parse_assignments(["algorithm.group_size=4", "seed=7", "tasks.kinds=[click-test]"])
    )
    config = resolve(TrainConfig, values)
    assert (config.algorithm.group_size, config.seed, config.tasks.kinds) == (4, 7, ["click-test"])
    assert config.rollout.concurrency == load_preset("quickstart")["rollout"]["concurrency"]
    assert config.run_id == "quickstart-seed7"


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("algorithm.group_size=1", r"algorithm\.group_size: .*allowed: integer >= 2 and <= 64"),
        ("algorithm.name=ppo", r"algorithm\.name: .*grpo.*filtered_bc"),
        ("rollout.nonsense=1", r"rollout\.nonsense: no such key; rollout has: groups_per_iteration"),
        ("nonsense=1", r"nonsense: no such key; the top level has: run_id"),
        ("trainer.learning_rate=fast", r"trainer\.learning_rate: .*got 'fast'"),
        ("run_id=../escape", r"run_id: .*matching"),
        ("tasks=3", r"tasks: "),
    ],
)
def test_a_bad_value_is_refused_by_name(assignment, says):
    with pytest.raises(ConfigError, match=says):
        resolve(TrainConfig, parse_assignments([assignment]))


def test_all_bad_keys_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        resolve(TrainConfig, parse_assignments(["seed=-1", "iterations=0"]))
    assert "seed" in str(caught.value) and "iterations" in str(caught.value)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ConfigError, match="quickstart"):
        load_preset("quickstrat")


def test_an_assignment_needs_a_key_and_a_value():
    with pytest.raises(ConfigError, match="key"):
        parse_assignments(["seed"])


def test_an_evaluation_without_a_name_gets_one():
    assert resolve(EvaluateConfig, {}).run_id.startswith("evaluate-")


def test_a_resolved_configuration_resolves_to_itself():
    """What a deployment or a run's config.json holds is whole; its preset changes nothing in it."""
    config = resolve(TrainConfig, {"preset": "quickstart", "iterations": 3, "trainer": {"epochs": 5}})
    assert (
        config.trainer.epochs == 5
        and config.trainer.learning_rate == load_preset("quickstart")["trainer"]["learning_rate"]
    )
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("assignments", "names"),
    [
        (["tasks.kinds=[click-button"], r"--set 'tasks\.kinds=\[click-button': the value is no YAML"),
        (["rollout=1", "rollout.horizon=2"], "another --set gives rollout a value"),
    ],
)
def test_an_assignment_that_cannot_be_read_is_named(assignments: list[str], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        parse_assignments(assignments)
