"""``python -m flows.<name>``: what it prints and returns when a flow ends otherwise than well, or
does not begin."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from prefect.logging.handlers import PrefectConsoleHandler

from envs.types import ConfigError, DiskError, JudgeError, TaskError
from tasks_lib.commands.command_line import hide_own_errors, run_command
from tasks_lib.commands.startup import begin_command
from tasks_lib.config import PROJECT, EvaluateConfig, TrainConfig, WarmStartConfig, resolve
from tasks_lib.config.parameters import takes_groups
from tasks_lib.preflight.flows import check_once
from tasks_lib.regrading.config import RegradeConfig
from tasks_lib.sweeps.config import SweepConfig

ARGUMENTS = ["--set", "run_id=mine"]


def looked(_config: Any) -> list[str]:
    return ["2 tasks"]


def never(_config: Any) -> None:
    raise AssertionError("nothing may begin")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted: what is whole is kept; start the same command again to go on\n"),
        (ConfigError("run_id: taken"), 2, "error: run_id: taken\n"),
        (JudgeError("no episode has a reward"), 1, "error: no episode has a reward\n"),
    ],
)
def test_an_end_is_told_in_one_line(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.commands.command_line.api_url", lambda: "http://127.0.0.1:9/api")

    @takes_groups(EvaluateConfig)
    def evaluate(_config: Any) -> None:
        raise error

    assert run_command(evaluate, EvaluateConfig, looked, ARGUMENTS) == status
    *before, last = capsys.readouterr().err.splitlines(keepends=True)
    assert last == said and all("starting a Prefect server" in line for line in before)


def test_an_interrupted_look_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def check(_config: Any) -> list[str]:
        raise KeyboardInterrupt

    assert run_command(never, EvaluateConfig, check, ARGUMENTS) == 130
    assert capsys.readouterr().err == "interrupted: nothing has begun\n"


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_is_refused_is_refused_before_a_server_starts(
    dry: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.commands.command_line.api_url", lambda: never(None))

    def refuse(_config: Any) -> list[str]:
        raise TaskError("tasks.file: not there")

    assert run_command(never, EvaluateConfig, refuse, [*ARGUMENTS, *dry]) == 2
    assert capsys.readouterr().err == "error: tasks.file: not there\n"


@pytest.mark.parametrize(
    "flow", ["train", "evaluate", "sweep", "warm_start", "build_tasks", "regrade", "simulate", "batch"]
)
def test_help_needs_neither_prefect_nor_torch(flow: str) -> None:
    begin = (
        "import sys; from tasks_lib.commands.startup import begin_command\n"
        "try: begin_command(['python', '-m', sys.argv[1], '--help'])\n"
        "finally: print('heavy:', sorted({'prefect', 'torch', 'dask'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin, f"flows.{flow}"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith(f"usage: python -m flows.{flow} [-h]") and done.stdout.endswith("heavy: []\n")


def test_a_flow_and_its_checks_import_no_torch() -> None:
    look = "import sys, flows.train, flows.evaluate, flows.sweep; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_a_command_says_what_it_does_before_its_imports(capsys: pytest.CaptureFixture[str]) -> None:
    begin_command(["python", "-X", "dev", "-m", "flows.evaluate", "--set", "episodes=8"])
    assert capsys.readouterr().err == "flows.evaluate: Evaluate a policy on a task set.\n"
    begin_command(["python", "-m", "flows.evaluate", "--dry-run"])
    begin_command(["python", "-m", "pytest"])
    assert capsys.readouterr().err == ""


def test_presets_are_offered_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    for model, offered in ((EvaluateConfig, False), (TrainConfig, True)):
        with pytest.raises(SystemExit):
            run_command(never, model, looked, ["--help"])
        assert ("--preset" in capsys.readouterr().out) is offered
    assert run_command(never, TrainConfig, looked, ["--preset", "quickstart", "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        (
            EvaluateConfig,
            ["--preset", "quickstart"],
            "preset: quickstart is a preset of flows.train, not of flows.evaluate, which has none; give its values with --set",
        ),
        (
            TrainConfig,
            ["--preset", "reader"],
            "preset: reader is a preset of flows.warm_start, not of flows.train, whose presets are: "
            "quickstart, qwen3-vl-2b-1gpu, qwen3-vl-4b-openwebrl, qwen3-vl-8b-8gpu, smollm2-135m",
        ),
        (
            WarmStartConfig,
            ["--set", "preset=bundled-tasks"],
            "preset: bundled-tasks is a preset of flows.build_tasks, not of flows.warm_start, whose presets are: reader, smollm2-135m-clone",
        ),
        (
            SweepConfig,
            ["--set", "base.preset=reader", "--set", "grid.seed=[0]"],
            "the configuration is not valid:\n  arm sweep-reader-seed0 (seed=0): preset: reader is a preset of flows.warm_start, not of "
            "flows.train, whose presets are: quickstart, qwen3-vl-2b-1gpu, qwen3-vl-4b-openwebrl, qwen3-vl-8b-8gpu, smollm2-135m",
        ),
        (
            EvaluateConfig,
            ["--preset", "nix"],
            "there is no preset 'nix'; the presets are: bundled-tasks, quickstart, quickstart-seeds, "
            "qwen3-vl-2b-1gpu, qwen3-vl-4b-openwebrl, qwen3-vl-8b-8gpu, reader, smollm2-135m, smollm2-135m-clone",
        ),
    ],
)
def test_a_preset_of_another_flow_is_called_that(
    model: type[TrainConfig], given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(never, model, looked, given) == 2
    assert capsys.readouterr().err == f"error: {says}\n"


def test_a_key_of_a_preset_that_no_flow_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.config.reading.PRESETS", tmp_path)
    (tmp_path / "mine.yaml").write_text("iterations: 3\nitertions: 4\n")
    with pytest.raises(ConfigError, match=r"itertions: no such key; did you mean iterations\?"):
        resolve(TrainConfig, {"preset": "mine"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\n", r"mine\.yaml is no YAML: "),
        ("- a\n", r"mine\.yaml is no preset: a block of keys is expected, got \['a'\]"),
    ],
)
def test_a_preset_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.setattr("tasks_lib.config.reading.PRESETS", tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        resolve(TrainConfig, {"preset": "mine"})


def test_a_dry_run_says_what_was_found_and_a_refused_one_only_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(never, EvaluateConfig, looked, [*ARGUMENTS, "--dry-run"]) == 0
    would, tasks, *values = capsys.readouterr().out.splitlines()
    assert would.startswith("# would evaluate") and would.endswith("/mine") and tasks == "# 2 tasks"
    assert values[0] == "# 1 value other than the defaults; --dry-run full prints them all"
    assert len(values) == 2 and values[1].startswith("run_id: mine  # evaluate-")
    assert run_command(never, EvaluateConfig, looked, [*ARGUMENTS, "--dry-run", "full"]) == 0
    shown = capsys.readouterr().out
    assert resolve(EvaluateConfig, yaml.safe_load(shown[shown.index("\n\n") :])).run_id == "mine"

    def refuse(_config: Any) -> list[str]:
        raise TaskError("tasks.file: not there")

    assert run_command(never, EvaluateConfig, refuse, [*ARGUMENTS, "--dry-run"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("run_id", ["0123", "off", "1e3", "null", "plain"])
def test_a_dry_run_prints_values_as_yaml_reads_them(run_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--set", f'run_id="{run_id}"', "--set", 'tasks.kinds=["it\'s", "no"]', "--dry-run"]
    assert run_command(never, EvaluateConfig, looked, given) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == {"run_id": run_id, "tasks.kinds": ["it's", "no"]}


def test_a_dry_run_of_a_flow_with_required_keys_prints_only_what_was_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", f"run={tmp_path}", "--set", "rewards.length=0.5", "--dry-run"]
    assert run_command(never, RegradeConfig, looked, given) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("# ")]
    assert lines[-1] == f"run: {tmp_path}  # no default" and lines[0].startswith('rewards: {"') and len(lines) == 2


@pytest.mark.parametrize("flow", ["train", "evaluate", "sweep", "warm_start", "build_tasks", "regrade", "batch"])
def test_help_keeps_paragraphs_and_commands(
    flow: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    module = importlib.import_module(f"flows.{flow}")
    with pytest.raises(SystemExit):
        run_command(getattr(module, flow), _model_of(module), looked, ["--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m flows.{flow} [-h]")
    written = (module.__doc__ or "").strip().split("\n\n")
    commands = [line for each in written for line in each.splitlines() if line.startswith("    python -m flows.")]
    assert len(written) > 1 and commands and all(line in shown.splitlines() for line in commands)
    paragraphs = [" ".join(each.split()) for each in shown.split("\n\n")]
    assert paragraphs[1 : 1 + len(written)] == [" ".join(each.split()) for each in written]
    assert all(len(line) <= 70 for line in shown.splitlines() if line not in commands)


def _model_of(module: ModuleType) -> Any:
    models = [each for each in vars(module).values() if getattr(each, "flow", None) == module.__name__]
    assert len(models) == 1
    return models[0]


def test_a_flow_does_not_look_again_at_what_its_command_has_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.commands.command_line.api_url", lambda: "http://127.0.0.1:9/api")
    seen: list[str] = []
    told: list[list[str]] = []

    def check(config: Any) -> list[str]:
        seen.append(config.run_id)
        return [f"looked {len(seen)} times"]

    @takes_groups(EvaluateConfig)
    def evaluate(config: EvaluateConfig) -> None:
        same = EvaluateConfig.model_validate(config.model_dump(mode="json"))  # as Prefect may hand it on
        told.extend([check_once(check, same), check_once(check, config.model_copy(update={"run_id": "other"}))])

    assert run_command(evaluate, EvaluateConfig, check, ARGUMENTS) == 0
    assert seen == ["mine", "other"] and told == [["looked 1 times"], ["looked 2 times"]]
    assert check_once(check, resolve(EvaluateConfig, {"run_id": "mine"})) == ["looked 3 times"], (
        "a later one in this process looks"
    )


def test_an_error_of_ours_is_left_out_of_the_console_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    console = PrefectConsoleHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [console, logging.NullHandler()])

    monkeypatch.setattr("tasks_lib.commands.command_line.RUN_HERE", {"serve"})

    def shown(error: Exception, logger: str = "prefect.flow_runs", task: str = "roll-out") -> bool:
        record = logging.LogRecord(logger, 40, "", 1, "", None, (type(error), error, None))
        record.task_name = task
        return bool(console.filter(record))

    with hide_own_errors():
        assert not shown(ConfigError("ours"))
        assert shown(ConfigError("ours"), "prefect.task_runs")  # one that is tried again is told nowhere else
        assert not shown(DiskError("full"), "prefect.task_runs")
        assert not shown(ConfigError("ours"), "prefect.task_runs", "serve")  # the flow ends with it
        assert shown(ValueError("a mistake"), "prefect.task_runs", "serve")
        assert shown(ValueError("a mistake"))
    assert shown(ConfigError("ours"))


@pytest.mark.parametrize(
    ("flow", "presets"),
    [
        ("train", "quickstart"),
        ("sweep", "quickstart-seeds"),
        ("warm_start", "reader"),
        ("build_tasks", "bundled-tasks"),
        ("regrade", ""),
        ("batch", ""),
    ],
)
def test_without_arguments_help_and_presets_are_shown(
    flow: str, presets: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.commands.command_line.api_url", lambda: never(None))
    module = importlib.import_module(f"flows.{flow}")
    assert run_command(getattr(module, flow), _model_of(module), never, []) == 2  # type: ignore[arg-type]
    shown = capsys.readouterr()
    assert shown.out.startswith(f"usage: python -m flows.{flow} ")
    assert ("there are: " + presets in " ".join(shown.out.split())) is bool(presets)
    given = f"--preset {presets}" if presets else "--set KEY=VALUE"
    assert shown.err == f"error: nothing is given; begin with: python -m flows.{flow} {given}\n"


def test_an_evaluation_without_arguments_measures_the_shipped_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks_lib.commands.command_line.api_url", lambda: "http://127.0.0.1:9/api")
    begun: list[Any] = []

    @takes_groups(EvaluateConfig)
    def evaluate(config: Any) -> None:
        begun.append(config)

    assert run_command(evaluate, EvaluateConfig, looked, []) == 0 and len(begun) == 1


ROLLWRIGHT = "import sys; from tasks_lib.commands.rollwright import main; sys.exit(main())"


def rollwright(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """What the installed command does: `rollwright ARGUMENTS`."""
    command = [sys.executable, "-c", before + ROLLWRIGHT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_alone_lists_what_can_be_run_and_imports_none_of_it() -> None:
    heavy = "import atexit, sys; atexit.register(lambda: print(sorted({*sys.modules} & {'prefect', 'pydantic', 'torch'})))\n"
    done = rollwright(before=heavy)
    *lines, imported = done.stdout.splitlines()
    assert done.returncode == 0 and imported == "[]"
    purposes = {parts[0]: parts[1] for line in lines if len(parts := line.strip().split(maxsplit=1)) == 2}
    for path in (PROJECT / "flows").glob("[!_]*.py"):
        assert purposes[path.stem] == path.read_text().splitlines()[0].strip('"')


def test_the_command_runs_a_flow_by_its_short_name() -> None:
    for name in ("simulate", "flows.simulate"):
        done = rollwright(name, "--help")
        assert done.returncode == 0 and done.stdout.startswith("usage: python -m flows.simulate [-h]")
    assert rollwright("simulate", "--set", "nothing=1").returncode == 2


def test_the_command_refuses_other_names_with_what_is_near() -> None:
    done = rollwright("trian", "--preset", "quickstart")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: there is no 'trian'; did you mean train? rollwright lists them: batch, ")
