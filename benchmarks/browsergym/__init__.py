"""BrowserGym 0.14.3 as a peer: its environment is made on demand, and its steps are measured in
processes of its own.

It is measured as its users run it: one process with one environment each (its Playwright is
synchronous), Gymnasium's ``step`` with a click, and the observation that comes with it (screenshot,
DOM, accessibility tree). Only the executable of Chromium is ours, and that no other host is
reached.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rates import Rate, measure

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-browsergym"
"""Ignored by git; ``make clean`` removes it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What BrowserGym waits for on purpose."""

    slow_mo: int
    """Milliseconds after each call of Playwright."""
    pre_observation_delay: float
    """Seconds before each observation."""


DEFAULTS = Waits(slow_mo=100, pre_observation_delay=0.5)
"""``slow_mo`` is that of its MiniWoB tasks, the smallest default among its benchmarks: of a task
that says nothing it is 1000."""
NO_WAITS = Waits(slow_mo=0, pre_observation_delay=0.0)


async def browsergym_rate(executable: Path, url: str, processes: int, seconds: float, waits: Waits = DEFAULTS) -> Rate:
    """Clicks with their observations, by this many processes at a time.

    Args:
        executable: Chromium.
        url: A page with buttons, and an ``<output>`` that counts their clicks
            (``benchmarks/pages/cards.html``).
        processes: Environments, each in a process with browsers of its own.
        seconds: How long it is measured, without the start.
        waits: Its waits.

    Raises:
        subprocess.CalledProcessError: the environment could not be made.
        RuntimeError: a process ended without its result.
    """
    python = await asyncio.to_thread(ensure_environment)
    command = [str(python), str(HERE / "measured.py"), str(executable), url, "--seconds", str(seconds)]
    command += ["--slow-mo", str(waits.slow_mo), "--delay", str(waits.pre_observation_delay)]
    return await measure([command] * processes, seconds)


def ensure_environment(environment: Path = ENVIRONMENT, requirements: Path = HERE / "requirements.txt") -> Path:
    """Return the Python of a peer's environment, which is made if it is not there or is of other
    requirements (a minute).

    Raises:
        subprocess.CalledProcessError: it could not be made.
    """
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp, python = environment / ".requirements", environment / "bin" / "python"
    if not stamp.is_file() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, "--requirement", str(requirements)], check=True, stdout=sys.stderr)
        stamp.write_text(wanted)
    return python
