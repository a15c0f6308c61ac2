"""Steps per second of web environments that run in processes of their own, and the CPU that a step
takes.

A *measured process* speaks a small protocol: it opens its page and prints ``{"ready": true}``; on a
line on its stdin it steps for the seconds that it was told and prints ``{"steps": …, "failed": …,
"seconds": …, "cpu_seconds": …}``, where the CPU is its own and that of all processes below it
(Chromium, a driver). So several processes start at the same moment, and nothing but steps is
measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

START_SECONDS = 120.0
"""For a process to be ready: eight BrowserGym processes start sixteen browsers (half a minute on
two loaded cores)."""

STEP_SECONDS = 60.0
"""For the last step of a process to end, after its time is up."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a number of environments did together."""

    steps_per_second: float
    cpu_ms_per_step: float
    failed: float = 0.0
    """Share of the steps whose action the environment gave up. They count as steps: it went on to
    observe."""


async def measure(commands: Sequence[Sequence[str]], seconds: float) -> Rate:
    """Start these processes, let them step at the same time, and add up what they say. They print
    their errors on stderr.

    Raises:
        RuntimeError: one of them ended without its result.
    """
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(_process(command)) for command in commands]
        async with asyncio.timeout(START_SECONDS):
            for process in processes:
                await _answer(process)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
        async with asyncio.timeout(seconds + STEP_SECONDS):
            results = [await _answer(process) for process in processes]
    steps = sum(result["steps"] for result in results)
    return Rate(
        steps_per_second=sum(result["steps"] / result["seconds"] for result in results),
        cpu_ms_per_step=1000 * sum(result["cpu_seconds"] for result in results) / steps,
        failed=sum(result["failed"] for result in results) / steps,
    )


@asynccontextmanager
async def _process(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    except BaseException:
        if process.returncode is None:
            process.terminate()  # its browser ends with the pipe to it
        raise
    finally:
        await process.wait()


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a measured process ended with {await process.wait()} before its result; see above")
    answer: dict[str, Any] = json.loads(line)
    return answer


async def interleave(arms: Mapping[str, Callable[[], Awaitable[Rate]]], rounds: int) -> dict[str, Rate]:
    """Medians of each arm over rounds in which every arm has its turn, so that a change of the
    machine's load meets all of them."""
    seen: dict[str, list[Rate]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, arm in arms.items():
            rate = await arm()
            seen[name].append(rate)
            print(
                f"round {number + 1}  {name:32s} {rate.steps_per_second:7.2f} steps/s {rate.cpu_ms_per_step:7.1f} CPU ms/step"
                f"  {rate.failed:.0%} failed  load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
                flush=True,
            )
    return {
        name: Rate(
            statistics.median(rate.steps_per_second for rate in rates),
            statistics.median(rate.cpu_ms_per_step for rate in rates),
            statistics.median(rate.failed for rate in rates),
        )
        for name, rates in seen.items()
    }


def cpu_seconds() -> float:
    """User and system seconds of this process and everything below it that lives."""
    process = psutil.Process()
    seconds = 0.0
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it ended while we looked
            times = member.cpu_times()
            seconds += times.user + times.system
    return seconds
