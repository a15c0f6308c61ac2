"""Runs a module of the tests with a framework that `scripts/setup_frameworks` laid over ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run_with_overlay(framework: str, module: str, *args: str) -> Any:
    """Run a module of this folder in a process that imports the framework; the JSON of its last
    line.

    Its package is ``adapters`` there: verl's wheel has a package ``tests`` of its own.
    """
    folder = ROOT / ".venv-frameworks" / framework
    if not (folder / ".ready").is_file():
        pytest.skip(f"no {folder.relative_to(ROOT)}: scripts/setup_frameworks {framework}")
    done = subprocess.run(
        [sys.executable, "-m", f"adapters.{module}", *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'tests/envs'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def snippet(heading: str) -> str:
    """The Python block of a section of docs/frameworks.md that needs a framework which is not ours.

    Its language is ``py``: `tests/test_docs.py` runs those of ``python`` in our environment.
    """
    page = (ROOT / "docs/frameworks.md").read_text()
    (block,) = re.findall(rf"^## {heading}\n(?:(?!^## ).)*?^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(block.splitlines()) <= 12
    return str(block)
