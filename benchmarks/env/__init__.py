"""The browser side: rates against bare loops and peers, what an environment costs, what a broken
one costs the others.

Each module of this package has ``async def figures() -> list[Figure]``; the arms of a ratio take
turns in one process on the same cores.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import Figure

PARTS = (
    "steps",
    "text_only",
    "episodes",
    "sessions",
    "neighbour",
    "observation",
    "settle",
    "safety",
    "unused_playwright",
)
"""Modules of this package with figures, imported when they are asked for."""


def run(parts: Iterable[str] = PARTS) -> list[Figure]:
    """Figures of these parts."""
    return asyncio.run(_run(parts))


def compare(checkout: Path) -> list[Figure]:
    """Figures of steps and looks against those of another checkout of the project."""
    from benchmarks.env import against

    return asyncio.run(against.figures(checkout))


async def _run(parts: Iterable[str]) -> list[Figure]:
    return [figure for part in parts for figure in await _module(part).figures()]


def _module(name: str) -> Any:
    """Return a module. One part has a process that must not load what other parts import."""
    return importlib.import_module(f"{__name__}.{name}")
