"""Lowers the CPU priority of renderers that spin, so that no page keeps a core.

A renderer with a thread that never waits runs only when no other process wants to, until it rests.

A script that never ends is stopped at the step's deadline; until then, at an equal priority, it
would have a core of the worker nearly to itself. Under Linux's idle policy it has what the other
pages leave, and whoever wakes up takes the core from it at once (a process that is only nice keeps
it for some milliseconds each time). Nothing is taken from a page that works hard alone.

The share of a core that a thread gets is no sign of a loop: among many busy pages it is little for
each. The time that it used without once giving the core up by itself is one, however many want the
core. Linux counts that for each thread; elsewhere nothing is done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from envs.types import BrowserError, FailureLog

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""Seconds between looks; one costs 0.4 ms with seven busy renderers."""

LISTING_LOOKS = 5
"""Looks after which the browser is asked again which renderers there are."""

SUSPECTS = 2
"""Renderers whose threads are looked at, those that used most since the last look: a loop is among
them, however many pages share the cores."""

SPUN_SECONDS = 0.1
"""Seconds of a core that a thread may use without a wait; then its process has to give way."""

FOR_GOOD = 10
"""Times as much where that cannot be taken back: loading a heavy page takes a moment of a whole
core too."""

RESTED_LOOKS = 6
"""Looks in a row with waits after which it runs as others do again."""

STARVED_SECONDS, STARVED_SHARE = 1.0, 0.05
"""A process that gave way and for so many seconds got less than this share of a core runs at normal
priority again, until it spins again: a page may be slow, not stuck."""

TICK = 1 / os.sysconf("SC_CLK_TCK")
"""Seconds of the unit in which Linux counts processor time."""


MAX_FILE = 2**16
"""Bytes that are read of a file of /proc: a status has 1,500, and lists every group of its user and
every core of the machine."""


class Unreadable(Exception):
    """A file of /proc cannot be parsed: another system's, or its process is ending."""


@dataclass
class _Renderer:
    cpu: float
    """Seconds that its threads have used, at the last look."""
    threads: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Waits in a thread's life, and the seconds that it had used when that number was first seen;
    by threads that ran or wanted to."""
    gives_way: bool = False
    rested: int = 0
    since: float = 0.0
    """Time since which it is looked whether it starves…"""
    cpu_since: float = 0.0
    """…and what it had used then."""


class CpuGuard:
    """Lowers the priority of one browser's renderers that spin. `run` it until cancelled."""

    def __init__(self, renderers: Callable[[], Awaitable[Collection[int]]]) -> None:
        """``renderers`` returns their process ids. If it raises `BrowserError`, those of before are
        looked at."""
        self._list = renderers
        self._renderers: dict[int, _Renderer] = {}
        self._limit = SPUN_SECONDS * (1 if _may_raise() else FOR_GOOD)
        self.lowered = 0
        """Times that a renderer was made to give way."""

    async def run(self) -> None:
        """Look again and again."""
        loop = asyncio.get_running_loop()
        pids: Collection[int] = ()
        looks = 0
        failures = FailureLog(logger, "a look at the renderers failed; a page in an endless loop may slow the others")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if looks % LISTING_LOOKS == 0:
                try:
                    pids = await self._list()
                except BrowserError as error:
                    logger.debug("the renderers could not be listed: %s", error)
            looks += 1
            try:
                self.look(pids, loop.time())
            except Exception as error:
                failures.note(error)

    def look(self, pids: Collection[int], now: float) -> None:
        """Take notice of what renderers have done until a time in seconds."""
        used = {}
        for pid in pids:
            with suppress(OSError, Unreadable):  # it has ended, or this is no Linux
                used[pid] = _stat(f"/proc/{pid}")[1]
        self._renderers = {pid: self._renderers.get(pid) or _Renderer(cpu) for pid, cpu in used.items()}
        spent = {pid: used[pid] - renderer.cpu for pid, renderer in self._renderers.items()}
        busy = [pid for pid, renderer in self._renderers.items() if spent[pid] > 0 and not renderer.gives_way]
        for pid in sorted(busy, key=spent.__getitem__)[-SUSPECTS:]:
            self._suspect(pid, self._renderers[pid], now)
        for pid, renderer in self._renderers.items():
            renderer.cpu = used[pid]
            if renderer.gives_way:
                self._watch(pid, renderer, now)

    def _suspect(self, pid: int, renderer: _Renderer, now: float) -> None:
        """Have a renderer give way if one of its threads has spun for long enough."""
        spun = 0.0
        before, renderer.threads = renderer.threads, {}
        for thread, waits, cpu in _runnable(pid):
            known = before.get(thread)
            first = known[1] if known is not None and known[0] == waits else cpu
            renderer.threads[thread] = waits, first
            spun = max(spun, cpu - first)
        if spun >= self._limit and _give_way(pid, True):
            renderer.gives_way, renderer.rested = True, 0
            renderer.since, renderer.cpu_since = now, renderer.cpu
            self.lowered += 1
            logger.info("renderer %d keeps a core to itself: it runs when no other process does", pid)

    def _watch(self, pid: int, renderer: _Renderer, now: float) -> None:
        """Restore the priority of a renderer that has rested or starves."""
        before = renderer.threads
        running = {thread: (waits, cpu) for thread, waits, cpu in _runnable(pid)}
        renderer.threads = running
        spins = any(before.get(thread, (-1, 0.0))[0] == waits for thread, (waits, _) in running.items())
        renderer.rested = 0 if spins else renderer.rested + 1
        starves = False
        if now - renderer.since >= STARVED_SECONDS:
            starves = renderer.cpu - renderer.cpu_since < STARVED_SHARE * (now - renderer.since)
            renderer.since, renderer.cpu_since = now, renderer.cpu
        if renderer.rested >= RESTED_LOOKS or starves:
            # Without the right to it stays as it is, until the page's context is closed.
            renderer.gives_way = not _give_way(pid, False)


def _may_raise() -> bool:
    """True if this process may take the idle policy back.

    Root may, and users who may lower niceness.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NICE)[0] if hasattr(resource, "RLIMIT_NICE") else 0
    return os.geteuid() == 0 or allowed >= 20 - os.getpriority(os.PRIO_PROCESS, 0)


def _give_way(pid: int, way: bool) -> bool:
    """Lower (``way``) or restore the priority of all threads of a process.

    Each thread has a policy of its own. Returns whether it could be set.
    """
    done = False
    for thread in _threads(pid):
        with suppress(OSError):  # it ended while we looked, it may not be taken back, or the system has no such policy
            os.sched_setscheduler(thread, os.SCHED_IDLE if way else os.SCHED_OTHER, os.sched_param(0))
            done = True
    return done


def _runnable(pid: int) -> list[tuple[int, int, float]]:
    """List the threads of a process that run or wait for a core.

    Each with its number of voluntary switches and the CPU seconds that it has used.
    """
    threads = []
    for thread in _threads(pid):
        folder = f"/proc/{pid}/task/{thread}"
        with suppress(OSError, Unreadable):  # it ended while we looked, or this system does not count it
            state, cpu = _stat(folder)
            if state == b"R":
                threads.append((thread, _waits(f"{folder}/status"), cpu))
    return threads


def _waits(path: str) -> int:
    """Return how often a thread has given its core up by itself."""
    match = re.search(rb"^voluntary_ctxt_switches:\s*(\d+)\s*$", _read(path), re.MULTILINE)
    if match is None:
        raise Unreadable(path)
    return int(match[1])


def _stat(folder: str) -> tuple[bytes, float]:
    """State of a process or thread, and the processor seconds that it has used."""
    # The name, which may hold anything, ends with the last bracket; then come the third field and
    # on, of them the 14th and 15th are times.
    fields = _read(f"{folder}/stat").rpartition(b")")[2].split()
    try:
        return fields[0], (int(fields[11]) + int(fields[12])) * TICK
    except (IndexError, ValueError) as error:
        raise Unreadable(f"{folder}/stat") from error


def _read(path: str) -> bytes:
    """Read a small file of /proc, four times faster than ``open``."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, MAX_FILE)
    finally:
        os.close(file)


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task") if name.isdecimal()]
    except OSError:
        return []  # it ended, is hidden from us, or this is no Linux
