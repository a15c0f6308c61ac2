"""The layout that imports depend on, and what a checkout may not hold."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = ("datasets", "docker", "deployments")
"""Folders with the name of somebody's package, or with data that would be taken for one."""
PACKAGES = ("envs", "flows", "tasks_lib", "training")
MAX_LINES = 500
MAX_PRODUCT_LINES = 400
"""Maximum number of lines of a file in `PACKAGES`."""
MACHINE_PATH = re.compile(r"(?<![\w.$<}/-])/(?:work|tmp|home|root|Users)/[\w.-]+")
"""An absolute path that holds on one machine only."""
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
NAMED = re.compile(
    r"(?<![\w./-])(?:benchmarks|datasets|deployments|docs|envs|flows|scripts|tasks_lib|tests|training)/[\w./{},*[\]-]*[\w}*]"
)
"""A file or folder of the repository, such as ``envs/browser/{tab,session}.py``."""
SOURCE = re.compile(r"(?<![\w./*<>{},-])\w+\.py\b")
"""A source file that is named without its folder."""
PLACEHOLDER = re.compile(r"\bNAME\b|\[")
"""Of a pattern, or of a file of the reader's own."""
DOORS = {
    "envs",
    "envs.actions",
    "envs.browser",
    "envs.chat",
    "envs.ends",
    "envs.episodes",
    "envs.garbage",
    "envs.memory",
    "envs.prompts",
    "envs.bundled.oracles",
    "envs.replay",
    "envs.rewards",
    "envs.rewards.judge",
    "envs.rewards.webarena",
    "envs.server",
    "envs.sites",
    "envs.tasks",
    "envs.tasks.assembly",
    "envs.bundled.generate",
    "envs.tasks.samplers",
    "envs.types",
}
"""The packages of `envs` that the rest of the project imports from. What else is in `envs` may
change without it."""
BINARY = {".safetensors", ".png", ".jpg", ".sqlite"}


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks or would track, with these endings."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in found.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_data_folders_hold_no_python() -> None:
    found = [path for folder in DATA for path in (ROOT / folder).rglob("*.py*") if path.suffix != ".pyc"]
    assert found == [], "see datasets/README.md"


def test_shell_scripts_are_read_by_bash() -> None:
    scripts = [
        path for path in tracked("scripts/*", ".ci/*") if path.read_bytes()[:32].startswith(b"#!/usr/bin/env bash")
    ]
    done = [subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False) for path in scripts]
    assert scripts and [one.stderr for one in done if one.returncode] == []


@pytest.mark.parametrize("package", ["datasets", "docker"])
def test_the_real_package_is_imported_from_the_project_folder(package: str) -> None:
    code = f"import importlib.util as u; spec = u.find_spec({package!r}); print(spec and spec.origin)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    origin = Path(done.stdout.strip())
    assert origin.name == "__init__.py"
    assert origin.parent.parent != ROOT


def imported(path: Path) -> set[str]:
    """Modules that a source file names in its imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return found | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


def test_the_web_side_is_entered_through_its_doors() -> None:
    used = {
        module: path
        for package in ("flows", "tasks_lib", "training")
        for path in (ROOT / package).rglob("*.py")
        for module in imported(path)
        if module.split(".")[0] == "envs"
    }
    assert {module: path for module, path in used.items() if module not in DOORS} == {}
    assert used.keys() == DOORS


def test_what_a_door_offers_is_there() -> None:
    missing = {
        f"{door}.{name}"
        for door in DOORS
        for name in importlib.import_module(door).__all__
        if not hasattr(importlib.import_module(door), name)
    }
    assert missing == set()


def test_no_python_file_is_too_long() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in tracked("*.py")}
    bounds = {path: MAX_PRODUCT_LINES if path.parts[0] in PACKAGES else MAX_LINES for path in lengths}
    assert {path: lines for path, lines in lengths.items() if lines > bounds[path]} == {}


def test_no_path_of_one_machine() -> None:
    found = {}
    for path in tracked():
        if path.relative_to(ROOT).parts[0] == "tests" or path.suffix in BINARY:
            continue
        if names := MACHINE_PATH.findall(path.read_text(encoding="utf-8")):
            found[str(path.relative_to(ROOT))] = names
    assert found == {}


def test_no_merge_is_half_done() -> None:
    found = subprocess.run(["git", "grep", "-lE", "^(<<<<<<<|>>>>>>>) "], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.split() == []


def test_packages_are_typed() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "__init__.py").is_file()
        assert (ROOT / package / "py.typed").is_file(), f"{package} has no py.typed"
    assert {path.parent.name for path in ROOT.glob("*/py.typed")} == set(PACKAGES)


def test_the_tables_of_the_configuration_page_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "scripts/config_docs", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run scripts/config_docs\n{done.stderr}"


def test_every_benchmark_says_what_it_measures() -> None:
    from benchmarks import MODULES, NAMES
    from benchmarks.record import README, read, with_table

    page = README.read_text()
    assert with_table(page) == page, "the table is not made from benchmarks/results"
    for name in NAMES:
        spec = importlib.util.find_spec(f"benchmarks.{MODULES.get(name, name)}")
        assert spec and spec.origin
        first = Path(spec.origin).read_text().splitlines()[0]
        assert first.startswith('"""') and len(first) > 20, name
        result = read(name)
        assert f"| `{name}` |" in page and result.benchmark == name and result.notes
        assert {figure.name for figure in result.figures} >= set(result.headline) != set()


IMPORTED_FIRST = """
import importlib, os, sys, traceback
import httpx, numpy, orjson, PIL.Image, pydantic, websockets  # what is not ours, once for all
for module in sys.argv[1:]:
    if not os.fork():
        try:
            importlib.import_module(module)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.wait()[1]:
        print(module)
"""


def test_each_package_of_the_web_side_can_be_imported_first() -> None:
    packages = ["actions", "browser", "egress", "ends", "observation", "settle", "signals", "sites"]
    command = [sys.executable, "-c", IMPORTED_FIRST, *(f"envs.{name}" for name in packages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def alternatives(name: str) -> list[str]:
    """``a/{b,c}.py`` written out."""
    if found := re.search(r"{([^{}]*)}", name):
        return [
            whole for part in found[1].split(",") for whole in alternatives(name.replace(found[0], part.strip(), 1))
        ]
    return [name]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of its headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    }


def lost(page: Path, sources: set[str]) -> list[str]:
    """What a page links to or names and is not there."""
    text, found = page.read_text(), list[str]()
    for target, anchor in LINK.findall(text):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor[1:] not in anchors(file)):
            found.append(target + anchor)
    for name in {whole for named in NAMED.findall(text) for whole in alternatives(named)}:
        if not PLACEHOLDER.search(name) and not any(ROOT.glob(name)):
            found.append(name)
    own = {name for name in SOURCE.findall(text) if f'"{name}").write_text(' in text}  # an example makes it
    return found + [name for name in SOURCE.findall(text) if name not in sources | own]


def test_what_pages_link_to_and_name_is_there() -> None:
    sources = {path.name for path in tracked("*.py")}
    assert {str(page.relative_to(ROOT)): gone for page in tracked("*.md") if (gone := lost(page, sources))} == {}
