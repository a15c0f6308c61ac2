"""What is said of a run before it begins, and that nothing is written by looking."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.tasks import TaskIndex, load_tasks, save_tasks
from envs.types import (
    BrowserError,
    ConfigError,
    PolicyError,
    RollwrightError,
    SeedRange,
    Split,
    StorageError,
    TaskError,
)
from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.building.shards import open_build
from tasks_lib.config import PRESETS, EvaluateConfig, TrainConfig, WarmStartConfig, resolve
from tasks_lib.folder.checkpoints import check_unchanged, evaluated_version
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.values import freeze_config
from tasks_lib.loops.run import open_run
from tasks_lib.preflight.flows import (
    check_build,
    check_evaluation,
    check_sweep,
    check_training,
    check_warm_start,
)
from tasks_lib.rollouts.evaluation import fit_default
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.sweeping import open_sweep
from tasks_lib.warm_start.stages import open_warm_start
from training.ledger.store import RunStore, write_json

READER = "datasets/policies/reader"
OF_PRESETS: dict[str, tuple[Any, Callable[[Any], list[str]]]] = {
    "quickstart": (TrainConfig, check_training),
    "reader": (WarmStartConfig, check_warm_start),
    "quickstart-seeds": (SweepConfig, check_sweep),
    "bundled-tasks": (BuildTasksConfig, check_build),
}
"""Model and look of each preset's flow."""


def training(root: Path, **changes: Any) -> TrainConfig:
    config: TrainConfig = resolve(TrainConfig, {"preset": "quickstart", "root": str(root), "run_id": "r", **changes})
    return config


def evaluation(root: Path, **changes: Any) -> EvaluateConfig:
    values = {"policy": {"checkpoint": READER}, "tasks": {"kinds": ["click-test"]}, "root": str(root), "run_id": "e"}
    config: EvaluateConfig = resolve(EvaluateConfig, {**values, **changes})
    return config


def files(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"policy": {"checkpoint": "nix"}}, PolicyError, r"policy\.checkpoint: .*nix is no Hugging Face checkpoint"),
        (
            {"tasks": {"file": "nix.jsonl"}},
            TaskError,
            r"^tasks\.file: .*nix\.jsonl: cannot be read: No such file or directory$",
        ),
        ({"tasks": {"kinds": ["click-tset"]}}, TaskError, r"tasks\.kinds: no task of kind click-tset .*click-test"),
        ({"tasks": {"logins": {"nix": "/nix"}}}, ConfigError, r"tasks\.logins\.nix: no task is on a site of that name"),
        (
            {"evaluation": {"episodes": 99_999}},
            ConfigError,
            r"evaluation\.episodes: 99999 held_out episodes are wanted, .* 8 tasks there are 80000 held_out seeds",
        ),
    ],
)
def test_what_a_run_names_is_looked_at_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[RollwrightError], says: str
) -> None:
    with pytest.raises(error, match=says):
        check_training(training(tmp_path, **changes))
    if "evaluation" not in changes:
        with pytest.raises(error, match=says):
            check_evaluation(evaluation(tmp_path, **changes))
    assert not files(tmp_path)


def test_the_default_number_of_episodes_fits_a_small_set(tmp_path: Path) -> None:
    tasks = [
        task.model_copy(update={"seeds": {Split.HELD_OUT: SeedRange(start=0, stop=1)}})
        for task in list(load_tasks(Path("datasets/tasks/miniwob.jsonl")))[:3]
    ]
    save_tasks(tmp_path / "small.jsonl", tasks)
    small = {"tasks": {"file": str(tmp_path / "small.jsonl")}}
    assert check_evaluation(evaluation(tmp_path, **small))[1] == "3 episodes: the tasks have no more held_out seeds"
    assert [fit_default(number, TaskIndex.build(tasks), Split.HELD_OUT) for number in (2, 3, 200)] == [2, 3, 3]
    assert len(check_evaluation(evaluation(tmp_path, **small, episodes=3))) == 1
    with pytest.raises(ConfigError, match=r"^episodes: 4 held_out .* lower the number of episodes to 3"):
        check_evaluation(evaluation(tmp_path, **small, episodes=4))


def test_a_corrected_run_may_have_the_name_of_the_refused_one(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        check_training(training(tmp_path, policy={"checkpoint": "nix"}))
    assert check_training(training(tmp_path)) == ["8 tasks of 8 kinds on 1 site"]
    with open_run(training(tmp_path)):
        pass


def test_a_run_is_no_checkpoint_and_its_newest_policy_is_named(tmp_path: Path) -> None:
    with open_run(training(tmp_path)) as run:
        run.store.publish_policy(3, Path(READER), {"parent": None, "source": "reader"})
    wrong = evaluation(tmp_path, policy={"checkpoint": str(tmp_path / "r")})
    with pytest.raises(
        PolicyError, match=r"^policy\.checkpoint: .*r is a run; give one of its policies, as .*r/policies/v000003$"
    ):
        check_evaluation(wrong)
    bare = tmp_path / "bare"
    shutil.copytree(READER, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(
        PolicyError, match=r"policy\.checkpoint: .*bare is no .* \(it has no tokenizer \(tokenizer\.json or"
    ):
        check_evaluation(evaluation(tmp_path, policy={"checkpoint": str(bare)}))


def test_the_folder_of_something_else_is_called_that(tmp_path: Path) -> None:
    with open_run(training(tmp_path)):
        pass
    for check, model in (
        (check_evaluation, EvaluateConfig),
        (check_warm_start, WarmStartConfig),
        (check_build, BuildTasksConfig),
        (check_sweep, SweepConfig),
    ):
        more: dict[str, Any] = {}
        if model is BuildTasksConfig:
            more = {"sources": [{"kind": "files", "name": "own", "paths": ["datasets/tasks/miniwob.jsonl"]}]}
        if model is SweepConfig:
            more = {"base": {"preset": "quickstart"}, "grid": {"seed": [0]}}
        with pytest.raises(ConfigError, match=r"r is the folder of a training run, not of an? .*; use another run_id"):
            check(resolve(model, {"root": str(tmp_path), "run_id": "r", **more}))  # type: ignore[operator]


def test_it_is_said_where_a_run_goes_on_and_when_it_is_finished(tmp_path: Path) -> None:
    config = training(tmp_path, iterations=2)
    with open_run(config) as run:
        run.store.publish_policy(0, Path(READER), {"parent": None, "source": "reader"})
    before = files(tmp_path)
    gone = config.model_copy(update={"iterations": 5})  # may change
    assert check_training(gone)[-1] == f"{tmp_path / 'r'} is there, and goes on after version 0 of 5"
    with pytest.raises(ConfigError, match=r"started with other values of: seed .*\n  seed: 0 then, 3 now"):
        check_training(training(tmp_path, iterations=2, seed=3))
    assert files(tmp_path) == before
    for version in (1, 2):
        run.store.publish_policy(version, Path(READER), {"parent": version - 1, "source": "reader"})
    assert check_training(config)[-1].endswith("goes on after version 2 of 2"), "its last evaluation may be missing"
    write_json(run.store.result_path, {"updates": 1})  # of before it was made longer
    assert check_training(config)[-1].endswith("goes on after version 2 of 2")
    write_json(run.store.result_path, {"updates": 2})
    assert check_training(config) == [f"{tmp_path / 'r'} is finished: only its result is read"]


TYPOS: list[tuple[dict[str, Any], str]] = [
    ({"policy": {"checkpoint": "nix"}}, r"policy\.checkpoint: .*nix is no"),
    ({"policy": {"template": "qwen2vl"}}, r"policy\.template: got 'qwen2vl'; did you mean qwen2_vl"),
    (
        {"tasks": {"kinds": ["click-tset"]}},
        r"tasks\.kinds: no task of kind click-tset.*did you mean click-test.*\?; tasks\.kinds=\[\] takes",
    ),
    (
        {"tasks": {"addresses": {"miniwbo": "http://127.0.0.1:1"}}},
        r"tasks\.addresses\.miniwbo: .*did you mean miniwob\?",
    ),
    ({"tasks": {"file": "nix.jsonl"}}, r"tasks\.file: .*nix\.jsonl: cannot be read"),
    ({"tasks": {"logins": {"miniwbo": "/nix"}}}, r"tasks\.logins\.miniwbo: no task is on a site of that name"),
]


@pytest.mark.parametrize(("changes", "says"), TYPOS, ids=lambda each: "" if isinstance(each, dict) else each[:24])
def test_a_slip_is_named_before_that_a_name_is_taken(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """Whatever flow it is, also where the run is finished: what is wrong with the values comes
    first."""
    kept = {"policy": {"checkpoint": READER}, "tasks": {"kinds": ["click-test"]}}
    with open_run(training(tmp_path, **kept)) as run:
        run.store.publish_policy(0, Path(READER), {"parent": None, "source": "reader"})
        write_json(run.store.result_path, {"updates": 1000})
    with pytest.raises(RollwrightError, match=says):
        check_training(training(tmp_path, **{**kept, **changes}))
    config = evaluation(tmp_path)
    freeze_config(config, RunStore(config.run_dir))
    write_json(RunStore(config.run_dir).evaluation_path(0), {})
    with pytest.raises(RollwrightError, match=says):
        check_evaluation(evaluation(tmp_path, **{**kept, **changes}))
    arms = {"root": str(tmp_path), "run_id": "s", "grid": {"seed": [0]}}
    swept: SweepConfig = resolve(SweepConfig, {**arms, "base": {"preset": "quickstart", **kept}})
    with open_sweep(swept), open_run(swept.all_arms()[0].config):
        pass
    with pytest.raises(ConfigError, match=rf"(?s)^arm s-seed0: .*{says}"):
        check_sweep(resolve(SweepConfig, {**arms, "base": {"preset": "quickstart", **kept, **changes}}))


def test_a_name_that_is_taken_comes_with_one_that_is_free(tmp_path: Path) -> None:
    """For each flow; the advice is followed."""
    (tmp_path / "r-2").mkdir()
    with open_run(training(tmp_path)):
        pass
    with pytest.raises(ConfigError, match=r"another run_id, such as run_id=r-3\n  seed: 0 then, 3 now$"):
        check_training(training(tmp_path, seed=3))
    assert check_training(training(tmp_path, seed=3, run_id="r-3"))
    with pytest.raises(ConfigError, match=r"r is the folder of a training run, not of .*, such as run_id=r-3$"):
        check_evaluation(evaluation(tmp_path, run_id="r"))
    config = evaluation(tmp_path)
    freeze_config(config, RunStore(config.run_dir))
    with pytest.raises(ConfigError, match=r"such as run_id=e-2\n  greedy: true then, false now"):
        check_evaluation(evaluation(tmp_path, greedy=False))
    warm: WarmStartConfig = resolve(WarmStartConfig, {"root": str(tmp_path), "run_id": "w"})
    with open_warm_start(warm):
        pass
    with pytest.raises(ConfigError, match=r"such as run_id=w-2\n  seed"):
        check_warm_start(warm.model_copy(update={"seed": 4}))
    with pytest.raises(PolicyError, match=r"base: .*nix is no"):
        check_warm_start(warm.model_copy(update={"base": "nix"}))
    sources = [{"kind": "files", "name": "own", "paths": ["datasets/tasks/miniwob.jsonl"]}]
    built: BuildTasksConfig = resolve(BuildTasksConfig, {"sources": sources, "root": str(tmp_path), "run_id": "b"})
    with open_build(built):
        pass
    with pytest.raises(ConfigError, match=r"such as run_id=b-2$"):
        check_build(built.model_copy(update={"seed": 4}))
    arms = {"base": {"preset": "quickstart"}, "root": str(tmp_path), "run_id": "s", "grid": {"seed": [0]}}
    swept: SweepConfig = resolve(SweepConfig, arms)
    with open_sweep(swept), open_run(swept.all_arms()[0].config):
        pass
    other = {**arms, "base": {"preset": "quickstart", "algorithm": {"group_size": 3}}}
    with pytest.raises(
        ConfigError, match=r"^sweep s has begun s-seed0 .*, such as run_id=s-2\n  algorithm\.group_size"
    ):
        check_sweep(resolve(SweepConfig, other))


def test_a_run_that_another_process_works_on_is_left_alone(tmp_path: Path) -> None:
    config = training(tmp_path)
    with run_lock(config.run_dir), pytest.raises(StorageError, match="another process is working on"):
        check_training(config)
    assert check_training(config)


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"r cannot be used: .*file is no folder; choose another root"):
        check_training(training(tmp_path / "file"))


@pytest.mark.parametrize(
    ("root", "why"),
    [
        ("/proc/x", "No such file or directory"),
        ("/proc/x/y", "No such file or directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_a_root_that_cannot_be_made_is_refused_and_nothing_is_left(tmp_path: Path, root: str, why: str) -> None:
    for check, config in (
        (check_training, training(tmp_path / root)),
        (check_evaluation, evaluation(tmp_path / root)),
        (check_warm_start, resolve(WarmStartConfig, {"root": str(tmp_path / root)})),
    ):
        with pytest.raises(StorageError) as refused:
            check(config)  # type: ignore[operator]
        assert str(refused.value) == f"{config.run_dir} cannot be made: {why}; choose another root or run_id"
    assert not files(tmp_path)
    if root.startswith("/proc"):
        with pytest.raises(StorageError, match=rf"^{root} cannot be made: {why}; choose another output$"):
            check_warm_start(resolve(WarmStartConfig, {"root": str(tmp_path), "output": f"{root}/reader"}))


def test_an_unknown_chat_template_is_refused_with_those_that_are_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"checkpoint": READER, "template": "qwen2vl"}
    says = r"^policy\.template: got 'qwen2vl'; did you mean qwen2_vl.*\? allowed: one of LLaMA-Factory's \d+ chat templates \(in .*\)$"
    arms = {"base": {"preset": "quickstart", "policy": policy}, "root": str(tmp_path), "grid": {"seed": [0]}}
    configs = (
        (check_training, training(tmp_path, policy=policy)),
        (check_evaluation, evaluation(tmp_path, policy=policy)),
        (check_warm_start, resolve(WarmStartConfig, {"root": str(tmp_path), "policy": policy})),
        (check_sweep, resolve(SweepConfig, arms)),
    )
    for check, config in configs:
        with pytest.raises(ConfigError, match=says.replace("^", "^arm .*: " if check is check_sweep else "^")):
            check(config)  # type: ignore[operator]
    far = training(tmp_path, policy={"template": "zzz"})
    with pytest.raises(ConfigError, match=r"^policy\.template: got 'zzz'; allowed: one of LLaMA-Factory's"):
        check_training(far)
    cluster = {"cluster": {"address": "tcp://h:1"}}
    with pytest.raises(ConfigError, match=says):
        check_training(training(tmp_path, policy=policy, **cluster))  # the trainer is here
    assert check_evaluation(evaluation(tmp_path, policy=policy, **cluster)) == ["1 task of 1 kind on 1 site"]
    assert check_sweep(resolve(SweepConfig, {**arms, "deployment": "train/quickstart"})) == []
    monkeypatch.setattr("tasks_lib.preflight.flows.template_names", frozenset)
    assert check_training(far) == ["8 tasks of 8 kinds on 1 site"]
    assert not files(tmp_path)


@pytest.mark.parametrize("preset", ["quickstart", "reader", "quickstart-seeds", "bundled-tasks"])
def test_every_preset_passes(tmp_path: Path, preset: str) -> None:
    elsewhere = {  # whose checkpoints are not here: test_estimate.py
        path.stem for pattern in ("qwen3-vl-*.yaml", "smollm2-*.yaml") for path in PRESETS.glob(pattern)
    }
    assert {path.stem for path in PRESETS.glob("*.yaml")} == OF_PRESETS.keys() | elsewhere
    model, check = OF_PRESETS[preset]
    check(resolve(model, {"preset": preset, "root": str(tmp_path)}))
    assert not files(tmp_path)


def test_a_browser_that_is_none_is_refused_where_one_would_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLWRIGHT_CHROMIUM", str(tmp_path / "nix"))
    arms = {"base": {"preset": "quickstart"}, "root": str(tmp_path), "grid": {"seed": [0]}}
    for check, config in (
        (check_training, training(tmp_path)),
        (check_evaluation, evaluation(tmp_path)),
        (check_warm_start, resolve(WarmStartConfig, {"root": str(tmp_path)})),
    ):
        with pytest.raises(BrowserError, match=r"^ROLLWRIGHT_CHROMIUM=.*nix is no executable file; name a Chromium"):
            check(config)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"^arm .*: ROLLWRIGHT_CHROMIUM=.*nix is no executable file"):
        check_sweep(resolve(SweepConfig, arms))
    assert not check_sweep(resolve(SweepConfig, {**arms, "deployment": "train/quickstart"}))
    assert check_training(training(tmp_path, cluster={"address": "tcp://h:1"}))
    assert check_evaluation(evaluation(tmp_path, rollout={"browser_address": "http://h:9222"}))
    assert not files(tmp_path)


def test_a_finished_evaluation_is_only_read(tmp_path: Path) -> None:
    config = evaluation(tmp_path)
    assert check_evaluation(config) == ["1 task of 1 kind on 1 site"]
    write_json(config.run_dir / "evaluations" / "v000000.json", {})
    assert check_evaluation(config)[-1] == f"{tmp_path / 'e'} is finished: only its result is read"


@pytest.mark.parametrize(
    ("folder", "version"),
    [("run/policies/v000010", 10), ("run/policies/v000000", 0), ("plain/v000010", 0), ("run/policies/best", 0)],
)
def test_a_runs_policy_is_evaluated_under_its_number(tmp_path: Path, folder: str, version: int) -> None:
    checkpoint = tmp_path / folder
    shutil.copytree(READER, checkpoint)
    (checkpoint / "manifest.json").write_text("{}")
    (tmp_path / "link").symlink_to(checkpoint)
    store = RunStore(tmp_path / "e")
    assert evaluated_version(store, checkpoint) == version
    (checkpoint / "manifest.json").unlink()
    assert evaluated_version(store, checkpoint) == 0, "a version that was never published"
    config = evaluation(tmp_path, policy={"checkpoint": str(tmp_path / "link")})
    (checkpoint / "manifest.json").write_text("{}")
    write_json(store.evaluation_path(version), {})
    assert check_evaluation(config)[-1].endswith("is finished: only its result is read"), "through a link too"


def test_an_evaluation_of_before_goes_on_as_version_0(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "e")
    store.publish_policy(0, Path(READER), {"parent": None, "source": "v000010"})
    checkpoint = tmp_path / "run" / "policies" / "v000010"
    shutil.copytree(READER, checkpoint)
    write_json(checkpoint / "manifest.json", {})
    assert evaluated_version(store, checkpoint) == 0
    check_unchanged(store, 0, checkpoint)
    (checkpoint / "config.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"v000010 is not what e evaluated: config\.json changed since"):
        check_unchanged(store, 0, checkpoint)
    shutil.rmtree(checkpoint)
    check_unchanged(store, 0, checkpoint)  # what was evaluated was copied


def test_the_arms_of_a_sweep_are_looked_at(tmp_path: Path) -> None:
    def check(**changes: Any) -> list[str]:
        values = {"base": {"preset": "quickstart", "iterations": 2}, "root": str(tmp_path), "run_id": "s", **changes}
        return check_sweep(resolve(SweepConfig, values))

    seeds = {"seed": [0, 1]}
    assert check(grid=seeds) == [] and not files(tmp_path)
    with pytest.raises(ConfigError, match=r"^arm s-kinds\S*-seed0: tasks\.kinds: no task of kind nix .*"):
        check(grid={**seeds, "tasks.kinds": [["nix"], []]})
    assert not files(tmp_path)
    one, two = resolve(
        SweepConfig, {"base": {"preset": "quickstart"}, "root": str(tmp_path), "run_id": "s", "grid": seeds}
    ).all_arms()
    with open_run(one.config.model_copy(update={"iterations": 2})) as run:
        run.store.publish_policy(0, Path(READER), {"parent": None, "source": "reader"})
        assert check(grid=seeds) == [f"{one.config.run_dir} is there, and goes on after version 0 of 2"], (
            "under way elsewhere"
        )
    assert not two.config.run_dir.exists()
    with run_lock(tmp_path / "s"), pytest.raises(StorageError, match="another process is working on"):
        check(grid=seeds)


def test_a_warm_start_is_looked_at(tmp_path: Path) -> None:
    def check(**changes: Any) -> list[str]:
        return check_warm_start(resolve(WarmStartConfig, {"root": str(tmp_path), "run_id": "w", **changes}))

    assert check() == ["78 tasks of 78 kinds on 1 site"]
    with pytest.raises(PolicyError, match=r"base: .*nix is no Hugging Face checkpoint"):
        check(base="nix")
    with pytest.raises(ConfigError, match=r"output: .* is there and not of this run"):
        check(output=READER)
    assert not files(tmp_path)


def test_a_set_that_is_built_is_looked_at(tmp_path: Path) -> None:
    def check(path: str, **changes: Any) -> list[str]:
        sources = [{"kind": "files", "name": "own", "paths": [path]}]
        return check_build(
            resolve(BuildTasksConfig, {"sources": sources, "root": str(tmp_path), "run_id": "b", **changes})
        )

    assert check("datasets/tasks/miniwob.jsonl") == []
    with pytest.raises(ConfigError, match=r"source own: .*nix"):
        check("nix.jsonl")
    assert not files(tmp_path)
    (tmp_path / "b" / "groups").mkdir(parents=True)
    with pytest.raises(StorageError, match="holds groups and is no task set"):
        check("datasets/tasks/miniwob.jsonl")
