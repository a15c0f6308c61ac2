"""Runs code in the environment that `scripts/setup_frameworks` makes for a framework."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def framework_python(name: str) -> Path:
    """The Python of a framework's environment; skips the test if there is none."""
    python = ROOT / ".venv-frameworks" / name / "bin" / "python"
    if not python.with_name("python").exists() or not (python.parents[1] / ".ready").exists():
        pytest.skip(f"no environment of {name}: run scripts/setup_frameworks {name}")
    return python


def framework_variables() -> dict[str, str]:
    """Environment variables with which a framework's Python finds `envs`."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_in(name: str, code: str, *arguments: str, timeout: float = 300, **variables: str) -> Any:
    """Run code in a framework's environment, with further environment variables; return its last
    line of output, read as JSON."""
    command = [str(framework_python(name)), "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**framework_variables(), **variables}, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{done.stderr[:3000]} … {done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])
