"""The examples of README, CONTRIBUTING and docs/: Python is run, commands are checked as
`--dry-run` checks them."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from envs.bundled.generate.__main__ import main as generate
from envs.sites import StaticServer
from tasks_lib.commands.arguments import FLOWS, model_of
from tasks_lib.commands.command_line import run_command
from tasks_lib.commands.task_check import check_command
from tasks_lib.config import TrainConfig, merge, parse_assignments, resolve
from tasks_lib.folder.values import freeze_config
from tasks_lib.preflight import flows as checks
from tasks_lib.preflight.batch import check_batch
from tasks_lib.simulation.compare import compare, describe_row, rows_of
from tasks_lib.simulation.config import SimulateConfig
from training.ledger.store import RunStore

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHECKS = {
    "flows.train": checks.check_training,
    "flows.evaluate": checks.check_evaluation,
    "flows.warm_start": checks.check_warm_start,
    "flows.build_tasks": checks.check_build,
    "flows.regrade": checks.check_regrading,
    "flows.promote": checks.check_promotion,
    "flows.sweep": checks.check_sweep,
    "flows.simulate": checks.check_simulation,
    "flows.batch": check_batch,
}
READERS_OWN = re.compile(
    r"…|(?<![\w/.])(?:/?(?:mine|models|runs|secrets|tasks)/|[\w.-]+\.jsonl?\b)|serving\.engine=vllm|--preset (?:qwen3-vl|smollm2)-"
)
"""What the reader has: a checkpoint, a run's folder, a task file outside `datasets/`, the
environment of `make vllm`."""


def examples(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page in these languages."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_page(page: Path) -> dict[str, Any]:
    """Run the Python blocks of a page in order, in one namespace, which is returned. A block may
    await."""
    names: dict[str, Any] = {"__name__": "example"}
    for number, block in enumerate(examples(page, "python"), 1):
        where = f"{name(page)}, Python block {number}"
        code = compile(block, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        else:
            exec(code, names)
    return names


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each `python -m MODULE …` of the pages, once: its module and arguments."""
    found = set[tuple[str, ...]]()
    for page in PAGES:
        for block in examples(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(re.split(r" [|>] ", line)[0], comments=True)
                if words[:2] in (["python", "-m"], [".venv/bin/python", "-m"]) and words[2] != "pytest":
                    found.add(tuple(words[2:]))
    for module, *arguments in sorted(found):
        yield module, arguments


COMMANDS = list(commands())
OF_FLOWS = [(module, arguments) for module, arguments in COMMANDS if module in FLOWS and "--check" not in arguments]
ENVIRONMENTS = ROOT / "docs/environments.md"
OWN_TASKS = ROOT / "docs/own-tasks.md"
SERVER = ROOT / "docs/environment-server.md"
"""Run by `tests/envs/server/test_command.py`, with a server."""
FRAMEWORKS = ROOT / "docs/frameworks.md"
"""Run by `tests/envs/adapters`, each example with its framework."""


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if examples(page, "python") and page not in (ENVIRONMENTS, OWN_TASKS, SERVER, FRAMEWORKS)],
    ids=name,
)
def test_the_python_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run_page(page)


def test_the_environments_page_prints_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page(ENVIRONMENTS)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Click the button. (Element(") and printed[1].startswith("1.0 True")
    assert printed[-2:] == ["1.0", str([1.0] * 8)]
    (tmp_path / "next.html").write_text("<title>Next</title>")
    (tmp_path / "link.html").write_text("<a href='next.html'>Next</a>")
    server = StaticServer(tmp_path)
    with start_blocking_portal() as portal:
        portal.call(server.start)
        try:
            assert names["play"](f"{server.origin}/link.html") == 1.0
        finally:
            portal.call(server.close)


def test_the_page_of_own_tasks_works_from_its_file_to_the_start_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder of its own: the site is written, its first task is played, and no command is
    refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    run_page(OWN_TASKS)
    assert capsys.readouterr().out.splitlines()[-1].startswith("1.0 at http://127.0.0.1:")
    assert (tmp_path / "mine/menu.jpg").read_bytes().startswith(b"\xff\xd8")
    shown = "\n".join(examples(OWN_TASKS, "bash")).replace("\\\n", " ").replace("mine/", f"{tmp_path}/mine/")
    commands = [shlex.split(line)[2:] for line in shown.splitlines() if line.startswith("python -m")]
    assert len(commands) == 4
    for module, *arguments in commands:
        if "--check" in arguments:
            assert check_command(arguments[1]) == 0
        else:
            flow = getattr(importlib.import_module(module), module.removeprefix("flows."))
            given = [*arguments, "--set", f"root={tmp_path}", "--dry-run"]
            assert run_command(flow, model_of(module), CHECKS[module], given) == 0, capsys.readouterr().err


def test_the_simulation_page_shows_what_is_printed() -> None:
    """The first command's rows; the seconds before them are of the machine."""
    page = ROOT / "docs/simulation.md"
    given = shlex.split(examples(page, "bash")[0])[4:]
    rows = rows_of(list(compare(resolve(SimulateConfig, parse_assignments(given)))))
    shown = [line.partition(" s  ")[2] for line in examples(page, "text")[0].splitlines()]
    assert shown == [describe_row(row) for row in rows]


@pytest.mark.parametrize(
    ("module", "arguments"), OF_FLOWS, ids=[f"{module} {shlex.join(each)}"[6:70] for module, each in OF_FLOWS]
)
def test_a_command_is_accepted(
    module: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the checks of its flow, or without where it names files that the reader has; not beside
    the reader's own runs, one of which may be at work."""
    monkeypatch.chdir(ROOT)
    check = (lambda _config: []) if READERS_OWN.search(" ".join(arguments)) else CHECKS[module]
    flow = getattr(importlib.import_module(module), module.removeprefix("flows."))
    own = (
        []
        if "root=" in str(arguments) or "root" not in model_of(module).model_fields
        else ["--set", f"root={tmp_path}"]
    )
    status = run_command(flow, model_of(module), check, [*arguments, *own, "--dry-run"])
    assert status == 0, capsys.readouterr().err


def test_examples_of_training_can_be_run_one_after_the_other(tmp_path: Path) -> None:
    """After `make quickstart`, in any order: no example is refused because its folder holds a run
    with other values."""
    shown = [arguments for module, arguments in OF_FLOWS if module == "flows.train" and "qwen3" not in str(arguments)]
    assert len(shown) > 15
    for arguments in (["--preset", "quickstart"], *shown, *reversed(shown)):
        given = [value for key, value in pairwise(arguments) if key == "--set"]
        preset = [value for key, value in pairwise(arguments) if key == "--preset"]
        values = merge(parse_assignments(given), {"root": str(tmp_path)} | ({"preset": preset[0]} if preset else {}))
        if "…" in str(values):
            continue
        config = resolve(TrainConfig, values)
        freeze_config(config, RunStore(config.run_dir))


def test_every_command_is_of_a_module_that_is_there() -> None:
    modules = {module for module, _ in COMMANDS}
    others = {
        "envs.adapters.mcp",
        "envs.adapters.openenv",
        "envs.bundled.generate",
        "envs.repl",
        "envs.server",
        "envs.server.master",
        "flows.doctor",
        "flows.monitor",
        "flows.replay",
        "flows.serve",
        "flows.serve_environments",
        "flows.sites",
        "flows.view",
        "training.proxy",
        "training.proxy.join",
        "training.smollm2",
        "training.warm_start.pretrain",
    }
    assert modules - set(FLOWS) <= others
    assert modules >= set(FLOWS)


def test_settings_that_are_shown_alone_are_accepted() -> None:
    shown = [
        line
        for page in PAGES
        for block in examples(page, "bash", "text")
        for line in block.splitlines()
        if line.startswith("--set")
    ]
    assert len(shown) > 5
    for line in shown:
        given = [word for word in shlex.split(line, comments=True) if word != "--set"]
        resolve(TrainConfig, {"preset": "quickstart", **parse_assignments(given)})


def test_commands_of_the_task_generator_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [arguments for module, arguments in COMMANDS if module == "envs.bundled.generate"]
    assert found
    monkeypatch.chdir(tmp_path)
    for output, *arguments in found:
        counted = [*arguments, "--count", "2", *(["--check", "0"] if "--check" in arguments else [])]
        assert generate([Path(output).name, *counted]) == 0
