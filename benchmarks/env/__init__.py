"""The browser side: rates against bare loops and peers, what an environment costs, what a broken one costs the others.

Each module of this package has ``async def figures() -> list[Figure]``; the arms of a ratio take turns in one process on the same cores.
"""

from __future__ import annotations

import asyncio

from benchmarks import Figure
from benchmarks.env import episodes, observation, safety, sessions, settle, steps

PARTS = (steps, episodes, sessions, observation, settle, safety)


def run() -> list[Figure]:
    """Figures of all parts."""
    return asyncio.run(_run())


async def _run() -> list[Figure]:
    return [figure for part in PARTS for figure in await part.figures()]
