"""The browser side: rates against bare loops and peers, what an environment costs, what a broken
one costs the others.

Each module of this package has ``async def figures() -> list[Figure]``; the arms of a ratio take
turns in one process on the same cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from benchmarks import Figure, unused_playwright
from benchmarks.env import (
    against,
    episodes,
    neighbour,
    observation,
    safety,
    sessions,
    settle,
    steps,
    text_only,
)

PARTS = {
    "steps": steps,
    "text_only": text_only,
    "episodes": episodes,
    "sessions": sessions,
    "neighbour": neighbour,
    "observation": observation,
    "settle": settle,
    "safety": safety,
    "unused_playwright": unused_playwright,
}


def run(parts: Iterable[str] = tuple(PARTS)) -> list[Figure]:
    """Figures of these parts."""
    return asyncio.run(_run(parts))


def compare(checkout: Path) -> list[Figure]:
    """Figures of steps and looks against those of another checkout of the project."""
    return asyncio.run(against.figures(checkout))


async def _run(parts: Iterable[str]) -> list[Figure]:
    return [figure for part in parts for figure in await PARTS[part].figures()]
