"""The benchmarks' measured processes: their protocol, their ends, and the bare loop on its page."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.bare_playwright import bare_rate
from benchmarks.peers import PAGE, PAGES
from benchmarks.rates import Rate, interleave, measure
from envs.browser import find_chromium
from envs.sites.static_server import StaticServer

SPEAKS = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
assert sys.stdin.readline() == "go\\n"
print(json.dumps({"steps": %d, "failed": %d, "seconds": %f, "cpu_seconds": %f}), flush=True)
"""


def speaking(steps: int, failed: int, seconds: float, cpu_seconds: float) -> list[str]:
    """A process that says this."""
    return [sys.executable, "-c", SPEAKS % (steps, failed, seconds, cpu_seconds)]


async def test_rates_add_up_and_the_cpu_is_shared_by_all_steps() -> None:
    rate = await measure([speaking(10, 4, 2.0, 1.0), speaking(30, 0, 3.0, 2.0)], seconds=1)
    assert rate == Rate(steps_per_second=15.0, cpu_ms_per_step=75.0, failed=0.1)


@pytest.mark.parametrize("at", ["ready", "result"])
async def test_a_process_that_ends_early_is_an_error_and_the_others_are_stopped(at: str) -> None:
    dies = "raise SystemExit(3)" if at == "ready" else 'print("{}", flush=True); input(); raise SystemExit(3)'
    hangs = [sys.executable, "-c", 'print("{}", flush=True); input(); input()']
    with pytest.raises(RuntimeError, match="ended with 3 before its result"):
        await measure([[sys.executable, "-c", dies], hangs], seconds=1)
    assert not [child for child in psutil.Process().children() if child.cmdline() == hangs]


async def test_arms_take_turns_and_give_their_medians() -> None:
    order = []

    def arm(name: str, rates: list[float]):  # type: ignore[no-untyped-def]
        async def run() -> Rate:
            order.append(name)
            return Rate(rates.pop(0), 1.0)

        return run

    medians = await interleave({"a": arm("a", [1, 9, 2]), "b": arm("b", [5, 5, 6])}, rounds=3)
    assert order == ["a", "b"] * 3
    assert medians == {"a": Rate(2, 1.0), "b": Rate(5, 1.0)}


async def test_the_bare_loop_meets_its_buttons() -> None:
    server = StaticServer(Path(PAGES))
    await server.start()
    try:
        rate = await bare_rate(
            find_chromium(), f"{server.origin}/{PAGE}", sessions=2, seconds=1.0
        )  # counts the clicks too
    finally:
        await server.close()
    assert rate.steps_per_second > 0 and rate.cpu_ms_per_step > 0
