"""A process that never waits has to give way, one that waits runs as before. With real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from envs.browser.greed import LOOK_SECONDS, GreedWatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how often a thread waited")

SPIN = "while True: pass"
THREAD = "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()"
WORK = "import time\nwhile True:\n    sum(range(50_000)); time.sleep(0.001)"
SPIN_A_WHILE = f"import time\nend = time.time() + {8 * LOOK_SECONDS}\nwhile time.time() < end: pass\ntime.sleep(60)"


@contextmanager
def _process(code: str) -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield psutil.Process(child.pid)
    finally:
        child.kill()
        child.wait()


async def _never() -> dict[int, float]:
    raise AssertionError("look() is called by hand")


def _watched(process: psutil.Process, until: Callable[[], bool], looks: int) -> GreedWatch:
    watch = GreedWatch(_never)
    for _ in range(looks):
        times = process.cpu_times()
        watch.look({process.pid: times.user + times.system}, time.monotonic())
        if until():
            break
        time.sleep(LOOK_SECONDS)
    return watch


def _policies(process: psutil.Process) -> set[int]:
    return {os.sched_getscheduler(thread.id) for thread in process.threads()}


@pytest.mark.parametrize("code", [SPIN, THREAD], ids=["main thread", "other thread"])
def test_a_process_that_never_waits_is_slowed(code: str) -> None:
    with _process(code) as process:
        watch = _watched(process, lambda: _policies(process) == {os.SCHED_IDLE}, looks=40)
        assert watch.lowered == 1
        assert _policies(process) == {os.SCHED_IDLE}, "all of its threads"


def test_a_busy_process_that_waits_is_left_alone() -> None:
    with _process(WORK) as process:
        before = _policies(process)
        watch = _watched(process, lambda: False, looks=12)
        assert process.cpu_times().user > 0.3, "it was busy"
        assert watch.lowered == 0
        assert _policies(process) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take it back")
def test_a_process_that_rests_again_gets_its_priority_back() -> None:
    with _process(SPIN_A_WHILE) as process:
        slowed = _watched(process, lambda: _policies(process) == {os.SCHED_IDLE}, looks=40)
        assert slowed.lowered == 1
        for _ in range(40):
            times = process.cpu_times()
            slowed.look({process.pid: times.user + times.system}, time.monotonic())
            if _policies(process) == {os.SCHED_OTHER}:
                break
            time.sleep(LOOK_SECONDS)
        assert _policies(process) == {os.SCHED_OTHER}


def test_a_process_that_ended_is_forgotten() -> None:
    with _process(SPIN) as process:
        watch = _watched(process, lambda: False, looks=2)
    watch.look({process.pid: 99.0}, time.monotonic())  # the browser has not noticed yet
    watch.look({}, time.monotonic())
    assert watch.lowered == 0
