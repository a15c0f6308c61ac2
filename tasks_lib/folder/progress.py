"""Progress lines on the terminal, with elapsed time and an estimate of the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from tasks_lib.processes.prefect_run import log_to_flow_run

_CLOCK: ContextVar[float | None] = ContextVar("clock", default=None)
"""Start of the lines' clock (``time.perf_counter``): that of the command, or of an outer run."""


class RunProgress:
    """Prints lines to stderr, and writes them to the flow run's log.

    On a terminal a bar over the iterations stays below them.
    """

    def __init__(self, total: int, done: int = 0, unit: str = "iterations") -> None:
        self._console = Console(stderr=True, highlight=False)
        outer = _CLOCK.get()
        self._started = time.perf_counter() if outer is None else outer
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rest]}"),
            console=self._console,
            disable=not sys.stderr.isatty(),
        )
        self._iterations: TaskID = self._bar.add_task(unit, total=total, completed=done, rest="")
        self._first_done, self._total = done, total
        self._loop_started: float | None = None

    def log(self, message: str) -> None:
        """Print one line with the seconds since the start.

        It is the start of the outermost run, where one is inside another (`shared_clock`).
        """
        seconds = time.perf_counter() - self._started
        self._bar.console.print(f"[dim]{seconds:6.1f} s[/dim]  {message}", markup=True, soft_wrap=True)
        log_to_flow_run(Text.from_markup(message).plain)

    @contextmanager
    def shared_clock(self) -> Iterator[None]:
        """Let the lines of runs inside the block count from our start."""
        with clock_since(self._started):
            yield

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Announce a phase, and log its duration at its end."""
        self.log(f"{what} …")
        started = time.perf_counter()
        yield
        self.log(f"{what}: {time.perf_counter() - started:.1f} s")

    def iteration(self, done: int, message: str) -> None:
        """Log the end of an iteration, with an estimate of the remaining time."""
        now = time.perf_counter()
        if self._loop_started is None:
            self._loop_started, self._first_done = now, done
            rest = ""
        else:
            pace = (now - self._loop_started) / max(done - self._first_done, 1)
            rest = f"about {format_rough_duration(pace * (self._total - done))} to go" if done < self._total else ""
        self._bar.update(self._iterations, completed=done, rest=rest)
        self.log(f"{message}{f'   [dim]{rest}[/dim]' if rest else ''}")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


@contextmanager
def clock_since(started: float) -> Iterator[None]:
    """Let the seconds of all lines inside the block count from a moment (``time.perf_counter``)."""
    token = _CLOCK.set(started)
    try:
        yield
    finally:
        _CLOCK.reset(token)


def format_rough_duration(seconds: float) -> str:
    """Return seconds as text: ``40 s``, ``3 min``."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
