"""Steps of each adapter, timed twice: as its framework sees them, and inside, in `WebEnv.step`.

The difference is what the adapter adds; frames and settling of pages are in both. After each step
some make the same step of their framework without an environment (`floors`): that part is not ours.
An adapter is measured in a process of its own, with the Python of the environment that has its
framework (`scripts/setup_frameworks`). Servers run in another process and are reached over
loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import Figure

ROOT = Path(__file__).parents[2]
ROUNDS = 40
"""Episodes of each adapter: 120 steps without the ends, which are graded."""
NAMES = {
    "Gymnasium": "",
    "BrowserGym's shape": "",
    "OpenEnv": "",
    "SkyRL": "",
    "Tinker": "",
    "verl": "verl",
    "TRL": "",
    "MCP": "",
    "verifiers": "verifiers",
    "NeMo-Gym": "nemo_gym",
    "CUBE": "cube",
    "environment server": "",
    "TRL's rollouts": "",
    "verl's agent loop": "verl",
    "verifiers 0.4": "verifiers_v1",
}
"""Environment in `.venv-frameworks` by adapter; empty: ours."""


async def figures(names: Sequence[str] = tuple(NAMES)) -> list[Figure]:
    """Measure adapters, one after the other.

    Raises:
        RuntimeError: One failed; its errors are on stderr.
    """
    found, inside = list[Figure](), list[float]()
    for name in names:
        if (child := _child(name)) is None:
            print(f"{name} is left out: scripts/setup_frameworks {NAMES[name]} makes its environment", file=sys.stderr)
            continue
        command, paths = child
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "PYTHONPATH": paths}, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{name} ended with {process.returncode}")
        steps = json.loads(output.splitlines()[-1])
        inside += steps["inside"]
        pairs = [*zip(steps["outside"], steps["inside"], strict=True)]
        added = 1000 * statistics.median(outer - inner for outer, inner in pairs)
        ratio = statistics.median(outer / inner for outer, inner in pairs)
        targets = ("<= 1.03", "") if name == "Gymnasium" else ("", "<= 3")
        found.append(Figure(f"step of {name} / open_env", ratio, "ratio", targets[0]))
        found.append(Figure(f"added by {name}", added, "ms", targets[1]))
        if floor := steps.get("floor"):
            found.append(Figure(f"of it not ours, {name}", 1000 * statistics.median(floor), "ms", ""))
    return [Figure("step of open_env", 1000 * statistics.median(inside), "ms", ""), *found] if found else []


def _child(name: str) -> tuple[list[str], str] | None:
    """Return the command that measures an adapter, and where it looks for modules; ``None`` where
    its framework has no environment."""
    folder = ROOT / ".venv-frameworks" / NAMES[name]
    if NAMES[name] and not (folder / ".ready").is_file():
        return None
    own, python, paths = folder / "bin" / "python", sys.executable, str(ROOT)
    if NAMES[name] and own.exists():
        python = str(own)
    elif NAMES[name]:  # laid over our packages
        paths = os.pathsep.join([str(folder), str(ROOT)])
    return [python, "-m", "benchmarks.adapter_steps", name, str(ROUNDS)], paths
