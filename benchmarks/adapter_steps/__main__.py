"""Measures one adapter: ``python -m benchmarks.adapter_steps NAME ROUNDS``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from benchmarks.adapter_steps.arms import ARMS
from benchmarks.adapter_steps.floors import FLOORS, Idle
from benchmarks.adapter_steps.inner_clock import InnerClock
from benchmarks.adapter_steps.turns import MOVES
from envs.adapters import close_hosts


async def measure(name: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each step, ``outside`` and ``inside``, and of what is not ours of it,
    ``floor``, where that is measured."""
    outside, floor, rewards = list[float](), list[float](), list[float | None]()
    with NamedTemporaryFile("r") as file:
        clock = InnerClock(Path(file.name))
        clock.start()
        async with ARMS[name](clock) as begin, FLOORS.get(name, _nothing)() as idle:
            for _ in range(rounds + 1):
                step = await begin()
                for move in MOVES:
                    started = time.perf_counter()
                    reward = await step(move)
                    outside.append(time.perf_counter() - started)
                    started = time.perf_counter()
                    await idle()
                    floor.append(time.perf_counter() - started)
                rewards.append(reward)
        inside = [float(line) for line in file]
    assert rewards == [1.0] * len(rewards), f"{name}: the rewards are {rewards}"
    assert len(inside) == len(outside), f"{name}: {len(inside)} steps inside, {len(outside)} outside"
    # Without the first round, which opens pages, and without the ends.
    kept = [number for number in range(len(MOVES), len(outside)) if (number + 1) % len(MOVES)]
    seconds = {"outside": outside, "inside": inside, **({"floor": floor} if name in FLOORS else {})}
    steps = {of: [times[number] for number in kept] for of, times in seconds.items()}
    if clock.chromium:
        # Each episode has one of its reset and of each step; at the end no page is read.
        rounds_played, moves = len(rewards), len(MOVES)
        assert (len(clock.chromium), len(clock.pictures)) == (rounds_played * moves, rounds_played * (moves + 1))
        waits = [one for place, one in enumerate(clock.chromium) if place % moves]
        pictures = [one for place, one in enumerate(clock.pictures) if 0 < place % (moves + 1) < moves]
        steps["floor"] = [sum(pair) for pair in zip(waits, pictures, strict=True)][moves - 1 :]
    return steps


@asynccontextmanager
async def _nothing() -> AsyncIterator[Idle]:
    async def idle() -> None:
        """Nothing."""

    yield idle


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
    close_hosts()
