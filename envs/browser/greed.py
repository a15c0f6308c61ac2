"""No page keeps a core from the others: a renderer with a thread that never waits runs only when nobody else wants to, until it rests.

A script that never ends is stopped at the step's deadline; until then, at an equal priority, it would have a core of the worker nearly to
itself. Under Linux's idle policy it has what the other pages leave, and whoever wakes up takes the core from it at once (a process that is only
nice keeps it for some milliseconds each time). Nothing is taken from a page that works hard alone.

How much of a core a thread gets does not tell a loop from a page that is busy: among many it is little for both. That it never gave the
core up by itself since the last look does. Linux tells that for each thread; elsewhere nothing is done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from envs.types import BrowserError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.15
"""Between looks; a look costs about 1 ms."""

SUSPECTS = 2
"""Renderers whose threads are looked at, those that used most since the last look: a loop is among them, however many pages share the cores."""

BUSY_SHARE = 0.1
"""Of a core, used since the last look: below it, nobody is kept from anything."""

SPUN_LOOKS = 2
"""Times in a row that there was no wait between two looks, after which it has to give way."""

FOR_GOOD = 6
"""Times as many where that cannot be taken back: loading a heavy page takes a moment of a whole core too."""

RESTED_LOOKS = 6
"""Looks in a row with waits after which it runs as others do again."""


@dataclass
class _Renderer:
    cpu: float
    waits: dict[int, int] = field(default_factory=dict)
    """By thread that ran or wanted to: times that it has waited in its life."""
    spun: int = 0
    rested: int = 0
    gives_way: bool = False


class GreedWatch:
    """Looks at the renderers of one browser. `run` until cancelled."""

    def __init__(self, read: Callable[[], Awaitable[Mapping[int, float]]]) -> None:
        """``read`` tells the processor seconds that each renderer has used so far, by process id. If it raises `BrowserError`, nothing is
        seen."""
        self._read = read
        self._renderers: dict[int, _Renderer] = {}
        self._looked = 0.0
        self._spun_looks = SPUN_LOOKS if _may_raise() else FOR_GOOD * SPUN_LOOKS
        self.lowered = 0
        """Times that a renderer was made to give way."""

    async def run(self) -> None:
        """Look again and again."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                used = await self._read()
            except BrowserError as error:
                logger.debug("the renderers could not be looked at: %s", error)
                continue
            self.look(used, loop.time())

    def look(self, used: Mapping[int, float], now: float) -> None:
        """Take notice of the processor seconds that each renderer has used at a time in seconds."""
        least, self._looked = BUSY_SHARE * (now - self._looked), now
        self._renderers = {pid: self._renderers.get(pid) or _Renderer(cpu) for pid, cpu in used.items()}
        spent = {pid: used[pid] - renderer.cpu for pid, renderer in self._renderers.items()}
        busy = sorted(
            (pid for pid in spent if spent[pid] >= least and not self._renderers[pid].gives_way), key=spent.__getitem__
        )
        for pid, renderer in self._renderers.items():
            renderer.cpu = used[pid]
            before, renderer.waits = (
                renderer.waits,
                _waits(pid) if renderer.gives_way or pid in busy[-SUSPECTS:] else {},
            )
            spins = any(before.get(thread) == waits for thread, waits in renderer.waits.items())
            renderer.spun, renderer.rested = (renderer.spun + 1, 0) if spins else (0, renderer.rested + 1)
            if not renderer.gives_way and renderer.spun >= self._spun_looks:
                renderer.gives_way = _give_way(pid, True)
                self.lowered += renderer.gives_way
                logger.info("renderer %d keeps a core to itself: it runs when nobody else does", pid)
            elif renderer.gives_way and renderer.rested >= RESTED_LOOKS:
                # Without the right to it stays as it is, until the page's context is closed.
                renderer.gives_way = not _give_way(pid, False)


def _may_raise() -> bool:
    """Whether this process may take the idle policy back: root may, and who may take niceness back."""
    allowed = resource.getrlimit(resource.RLIMIT_NICE)[0] if hasattr(resource, "RLIMIT_NICE") else 0
    return os.geteuid() == 0 or allowed >= 20 - os.getpriority(os.PRIO_PROCESS, 0)


def _give_way(pid: int, way: bool) -> bool:
    """Have all threads of a process run when nobody else wants to (``way``), or as others do again: each has a policy of its own. Whether it
    could be set."""
    done = False
    for thread in _threads(pid):
        with suppress(ProcessLookupError, PermissionError):  # it ended while we looked, or it may not be taken back
            os.sched_setscheduler(thread, os.SCHED_IDLE if way else os.SCHED_OTHER, os.sched_param(0))
            done = True
    return done


def _waits(pid: int) -> dict[int, int]:
    """The threads of a process that run or wait for a core, and how often each has given it up by itself."""
    found = {}
    for thread in _threads(pid):
        with suppress(OSError):  # it ended while we looked
            said = Path(f"/proc/{pid}/task/{thread}/status").read_text()
            if "State:\tR" in said:
                found[thread] = int(said.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        return []  # it ended, or this is no Linux
