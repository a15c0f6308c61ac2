"""The part of `benchmarks.tasks` about generated tasks: 100,000 of them, and how many of a sample
their solutions solve."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from itertools import islice

from benchmarks import Figure
from envs.bundled.generate import GeneratorSpec, generate
from envs.bundled.generate.check import checker
from envs.types import WebTask

COUNT = 100_000
SAMPLE = 500


def figures() -> list[Figure]:
    """Each way of generating in a process of its own, imports included; then the sample."""
    found = []
    for processes, words in ((1, "one process"), (2, "two processes")):
        started = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.generated_tasks", str(processes)]
        got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        seconds = time.perf_counter() - started
        assert got["different"] == got["tasks"] == COUNT, f"{got} of {COUNT} tasks"
        found.append(Figure(f"generate 100,000 distinct tasks, {words}", seconds, "s", "<= 60"))
        found.append(Figure(f"CPU of that, {words}", got["cpu_s"], "s", ""))
    sample = list(islice(generate(GeneratorSpec(count=COUNT)), 0, None, COUNT // SAMPLE))
    started = time.perf_counter()
    solved = asyncio.run(_solved(sample))
    seconds = time.perf_counter() - started
    found.append(Figure(f"of {len(sample)} of them, solved on their sites without a browser", solved, "share", ">= 1"))
    found.append(Figure("solved a second", len(sample) / seconds, "1/s", ""))
    return found


async def _solved(tasks: list[WebTask]) -> float:
    async with checker() as check:
        return sum([(await check.solve(task)).passed for task in tasks]) / len(tasks)


if __name__ == "__main__":
    ids = [task.task_id for task in generate(GeneratorSpec(count=COUNT), processes=int(sys.argv[1]))]
    used = sum(os.times()[:4])  # its children's too
    print(json.dumps({"tasks": len(ids), "different": len(set(ids)), "cpu_s": used}))
