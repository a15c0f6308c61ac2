"""Configuration errors name the key and what is allowed; presets are valid; precedence is left to
right."""

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
from tasks_lib.folder.values import add_new_defaults
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.worker.requests import pool_options
from training.settings import warn_of_old_name


def test_a_relative_judge_cache_lies_in_the_project_for_every_worker(tmp_path, monkeypatch):
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
    models = {
        "reader": WarmStartConfig,
        "smollm2-135m-clone": WarmStartConfig,
        "bundled-tasks": BuildTasksConfig,
        "quickstart-seeds": SweepConfig,
    }
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


@pytest.mark.parametrize(
    ("assignments", "says"),
    [
        ([], r"weight_transfer=broadcast does not go with serving\.engine: the local engine"),
        (["serving.engine=vllm", "serving.sleep=true"], r"does not go with serving\.sleep"),
        (["serving.engine=vllm", "serving.one_at_a_time=true"], r"does not go with serving\.one_at_a_time"),
        (["serving.engine=vllm", "trainer.finetuning_type=lora"], r"serving\.weight_transfer: LoRA adapters are read"),
    ],
)
def test_a_broadcast_that_cannot_be_is_refused(assignments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(TrainConfig, parse_assignments(["serving.weight_transfer=broadcast", *assignments]))


def test_a_trainer_learns_which_way_its_servers_are() -> None:
    given = ["serving.engine=vllm", "trainer.finetuning_type=lora", "trainer.lora_export=merged"]
    assert resolve(TrainConfig, parse_assignments(given)).serving.broadcast_host == ""
    given += ["serving.weight_transfer=broadcast"]
    assert resolve(TrainConfig, parse_assignments(given)).serving.broadcast_host == "127.0.0.1"
    given += ["serving.address=[http://10.0.0.5:8000]"]
    assert resolve(TrainConfig, parse_assignments(given)).serving.broadcast_host == "10.0.0.5"


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


@pytest.mark.parametrize(
    "text",
    ["0123", "1.10", "2024-05-17", "yes", "no", "on", "off", "true", "#", "# x", "null", "~", "1e3", "0x10", "1_000", "a: b", "1:30", "[a", "{a}",
     "*x", "&x", "!x", "@x", "%", "a #b", "- a", "", " a ", "it's", 'say "x"', "C:\\runs"],
)  # fmt: skip
def test_a_key_that_takes_a_text_gets_it_as_written(text: str) -> None:
    given = parse_assignments([f"policy.checkpoint={text}"], TrainConfig)
    assert given == {"policy": {"checkpoint": text}}
    nullable = parse_assignments([f"rollout.judge.api_key_env={text}"], TrainConfig)["rollout"]["judge"]["api_key_env"]
    assert nullable == (None if text in ("", "~", "null") else text)


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("policy.checkpoint='0123'", "0123"),
        ('policy.checkpoint="a\\tb"', "a\tb"),
        ("tasks.kinds=[0123, yes, 1.10, 2024-05-17, 'on', null]", ["0123", "yes", "1.10", "2024-05-17", "on", "null"]),
        ("policy={checkpoint: 0123, temperature: 1e0}", {"checkpoint": "0123", "temperature": 1.0}),
        ("rollout.judge.models={default: 1.10, keyframe: null}", {"default": "1.10", "keyframe": None}),
        ("iterations=0123", 123),
        ("iterations=1_000", 1000),
        ("iterations=1e3", 1000.0),
        ("iterations=0x10", 16),
        ("iterations=yes", "yes"),
        ("iterations=true", "true"),
        ("iterations=1:30", "1:30"),
        ("iterations=2024-05-17", "2024-05-17"),
        ("trainer.learning_rate=1e-5", 1e-5),
        ("trainer.learning_rate=.5", 0.5),
        ("rollout.judge.json_mode=yes", "yes"),
        ("rollout.judge.seed=null", None),
        ("rollout.judge.seed=", None),
        ("no.such.key=0123", 123),
    ],
)
def test_other_values_are_yaml_in_which_numbers_mean_what_they_say(assignment: str, value: object) -> None:
    tree: object = parse_assignments([assignment], TrainConfig)
    for key in assignment.partition("=")[0].split("."):
        assert isinstance(tree, dict)
        tree = tree[key]
    assert tree == value and type(tree) is type(value)


@pytest.mark.parametrize(
    ("said", "meant"), [("yes", True), ("no", False), ("on", True), ("off", False), ("true", True)]
)
def test_a_key_that_is_true_or_false_takes_yes_and_no(said: str, meant: bool) -> None:
    values = parse_assignments([f"rollout.dom_diffs={said}"], TrainConfig)
    assert resolve(TrainConfig, {"preset": "quickstart", **values}).rollout.dom_diffs is meant


@pytest.mark.parametrize("given", ["seed=yes", "seed=true", "seed=1:30", "seed=2024-05-17", "seed=1.5"])
def test_a_number_is_not_made_of_what_is_none(given: str) -> None:
    with pytest.raises(ConfigError, match=r"seed: got .*; allowed: integer"):
        resolve(TrainConfig, parse_assignments([given], TrainConfig))


def test_a_value_that_holds_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="has itself in it"):
        parse_assignments(["tasks.kinds=&a [*a]"], TrainConfig)


def test_a_renamed_key_is_read_under_its_old_name_with_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_old_name.cache_clear()
    old = {"run_id": "r", "rollout": {"spare": 2, "wave_deadline": 7.0}}
    new = {"run_id": "r", "rollout": {"over_sampling": 2, "batch_deadline": 7.0}}
    for _ in range(3):
        assert resolve(TrainConfig, old) == resolve(TrainConfig, new)
    notices = [record.getMessage() for record in caplog.records]
    assert len(notices) == 2
    assert any("spare is called over_sampling now" in notice for notice in notices)
    over_preset = merge(load_preset("quickstart"), parse_assignments(["rollout.wave_deadline=9"], TrainConfig))
    assert resolve(TrainConfig, over_preset).rollout.batch_deadline == 9, "a person wrote it, and not the preset"
    frozen = resolve(TrainConfig, new).model_dump(mode="json")
    frozen["rollout"]["spare"] = frozen["rollout"].pop("over_sampling")
    assert add_new_defaults(TrainConfig, frozen) == resolve(TrainConfig, new).model_dump(mode="json"), "an older run"


def test_the_keys_of_browsers_reach_the_pool_under_their_names() -> None:
    keys = {
        "step_deadline": 7.0,
        "browsers": 3,
        "browser_address": "ws://h:1",
        "device": {"width": 390, "height": 844, "scale": 2.0, "mobile": True, "user_agent": "telephone/1"},
        "page_seed": 5,
        "page_date": "2024-05-01",
        "signals": True,
        "prewarm": 4,
    }
    given = resolve(TrainConfig, {"rollout": {**keys, "concurrency": 6}})
    options = pool_options(given.rollout, given.policy).model_dump()
    assert {key: options[key] for key in keys} == keys and options["max_sessions"] == 6
    alone = resolve(TrainConfig, {"rollout": {"browser_per_episode": True}})
    assert pool_options(alone.rollout, alone.policy).browser_per_episode
