"""The layout that imports depend on, and what a checkout may not hold."""

from __future__ import annotations

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
MOST_LINES = 500
MACHINE_PATH = re.compile(r"(?<![\w.$<}/-])/(?:work|tmp|home|root|Users)/[\w.-]+")
"""An absolute path that holds on one machine only."""
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


@pytest.mark.parametrize("package", ["datasets", "docker"])
def test_the_real_package_is_imported_from_the_project_folder(package: str) -> None:
    code = f"import importlib.util as u; spec = u.find_spec({package!r}); print(spec and spec.origin)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    origin = Path(done.stdout.strip())
    assert origin.name == "__init__.py"
    assert origin.parent.parent != ROOT


def test_no_python_file_is_too_long() -> None:
    long = {path: lines for path in tracked("*.py") if (lines := len(path.read_text().splitlines())) > MOST_LINES}
    assert long == {}


def test_no_path_of_one_machine() -> None:
    found = {}
    for path in tracked():
        if path.relative_to(ROOT).parts[0] == "tests" or path.suffix in BINARY:
            continue
        if names := MACHINE_PATH.findall(path.read_text(encoding="utf-8")):
            found[str(path.relative_to(ROOT))] = names
    assert found == {}


def test_packages_are_typed() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "__init__.py").is_file()
        assert (ROOT / package / "py.typed").is_file(), f"{package} has no py.typed"
    assert {path.parent.name for path in ROOT.glob("*/py.typed")} == set(PACKAGES)


def test_the_tables_of_the_configuration_page_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "scripts/config_docs", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run scripts/config_docs\n{done.stderr}"


def test_every_benchmark_says_what_it_measures() -> None:
    from benchmarks import NAMES

    page = (ROOT / "benchmarks" / "README.md").read_text()
    for name in NAMES:
        spec = importlib.util.find_spec(f"benchmarks.{name}")
        assert spec and spec.origin
        first = Path(spec.origin).read_text().splitlines()[0]
        assert first.startswith('"""') and len(first) > 20, name
        assert f"| `{name}` |" in page and f"| {name} |" in page


@pytest.mark.parametrize(
    "module", ["actions", "browser", "egress", "ends", "observation", "settle", "signals", "sites"]
)
def test_each_package_of_the_web_side_can_be_imported_first(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import envs.{module}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
