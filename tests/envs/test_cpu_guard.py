"""A process that never waits has to give way, one that waits runs as before. With real
processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from envs.browser.process import cpu_guard
from envs.browser.process.cpu_guard import LOOK_SECONDS, SPUN_SECONDS, STARVED_SECONDS, CpuGuard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how often a thread waited")

SPIN = "while True: pass"
THREAD = "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()"
WORK = "import time\nwhile True:\n    sum(range(50_000)); time.sleep(0.001)"
SPIN_A_WHILE = f"import time\nwhile time.process_time() < {10 * SPUN_SECONDS}: pass\ntime.sleep(60)"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may take it back")


@contextmanager
def _process(code: str) -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield psutil.Process(child.pid)
    finally:
        child.kill()
        child.wait()


async def _never() -> list[int]:
    raise AssertionError("look() is called by hand")


def _looks(watch: CpuGuard, process: psutil.Process, until: Callable[[], bool], looks: int) -> CpuGuard:
    for _ in range(looks):
        watch.look([process.pid], time.monotonic())
        if until():
            break
        time.sleep(LOOK_SECONDS)
    return watch


def _watched(process: psutil.Process, until: Callable[[], bool], looks: int) -> CpuGuard:
    return _looks(CpuGuard(_never), process, until, looks)


def _policies(process: psutil.Process) -> set[int]:
    return {os.sched_getscheduler(thread.id) for thread in process.threads()}


def _gives_way(process: psutil.Process) -> bool:
    return _policies(process) == {os.SCHED_IDLE}


@pytest.mark.parametrize("code", [SPIN, THREAD], ids=["main thread", "other thread"])
def test_a_process_that_never_waits_is_slowed(code: str) -> None:
    with _process(code) as process:
        watch = _watched(process, lambda: _gives_way(process), looks=200)
        assert watch.lowered == 1
        assert _gives_way(process), "all of its threads"


def test_a_busy_process_that_waits_is_left_alone() -> None:
    with _process(WORK) as process:
        before = _policies(process)
        watch = _watched(process, lambda: process.cpu_times().user > 10 * SPUN_SECONDS, looks=400)
        assert process.cpu_times().user > 10 * SPUN_SECONDS, "it was busy"
        assert watch.lowered == 0
        assert _policies(process) == before


@as_root
def test_a_process_that_rests_again_gets_its_priority_back() -> None:
    with _process(SPIN_A_WHILE) as process:
        watch = _watched(process, lambda: _gives_way(process), looks=200)
        assert watch.lowered == 1
        _looks(watch, process, lambda: not _gives_way(process), looks=400)
        assert _policies(process) == {os.SCHED_OTHER}


@as_root
def test_a_starved_process_gets_normal_priority_for_a_moment() -> None:
    with _process(SPIN) as process, _process(SPIN) as other:
        core = min(os.sched_getaffinity(0))
        for each in (process, other):
            os.sched_setaffinity(each.pid, {core})
        watch = _watched(process, lambda: _gives_way(process), looks=400)
        slowed = time.monotonic()
        _looks(watch, process, lambda: not _gives_way(process), looks=400)
        assert not _gives_way(process)
        assert time.monotonic() - slowed >= STARVED_SECONDS
        _looks(watch, process, lambda: _gives_way(process), looks=400)
        assert watch.lowered == 2, "and has to give way again"


def test_a_process_that_ended_is_forgotten() -> None:
    with _process(SPIN) as process:
        watch = _watched(process, lambda: False, looks=2)
    watch.look([process.pid], time.monotonic())  # the browser has not noticed yet
    watch.look([], time.monotonic())
    assert watch.lowered == 0


@pytest.mark.parametrize(
    ("stat", "status"),
    [
        (b"7 (a) R " + b"1 " * 40, b"Name:\ta\n"),
        (b"7 (a) R " + b"1 " * 40, b"Name:\ta\nvoluntary_ctxt_switches:\n"),
        (b"7 (a) R " + b"1 " * 40, b"Name:\ta\nvoluntary_ctxt_switches:\tmany\n"),
        (b"7 (a) R " + b"1 " * 40, b""),
        (b"7 (a) R 1", b"\nvoluntary_ctxt_switches:\t1\n"),
        (b"7 (a) R " + b"x " * 40, b"\nvoluntary_ctxt_switches:\t1\n"),
        (b"", b""),
    ],
    ids=["no field", "empty field", "no number", "empty file", "short stat", "words in stat", "nothing"],
)
def test_a_system_that_tells_less_ends_no_look(monkeypatch: pytest.MonkeyPatch, stat: bytes, status: bytes) -> None:
    monkeypatch.setattr("envs.browser.process.cpu_guard._read", lambda path: stat if path.endswith("stat") else status)
    monkeypatch.setattr("envs.browser.process.cpu_guard._threads", lambda _: [7])
    watch = CpuGuard(lambda: asyncio.sleep(0, [7]))
    for now in range(3):
        watch.look([7], float(now))
    assert watch.lowered == 0


def test_a_long_status_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "status").write_bytes(b"Groups:\t" + b"1000 " * 2000 + b"\nvoluntary_ctxt_switches:\t12\n")
    assert cpu_guard._waits(str(tmp_path / "status")) == 12


async def test_a_look_that_fails_is_logged_once_and_the_watch_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu_guard, "LOOK_SECONDS", 0.001)
    watch, looks = CpuGuard(lambda: asyncio.sleep(0, [7])), list[float]()

    def look(_: object, now: float) -> None:
        looks.append(now)
        raise ZeroDivisionError

    monkeypatch.setattr(watch, "look", look)
    running = asyncio.create_task(watch.run())
    while len(looks) < 3:
        assert not running.done()
        await asyncio.sleep(0.001)
    running.cancel()
    assert [record.message.startswith("a look at the renderers failed") for record in caplog.records] == [True]
