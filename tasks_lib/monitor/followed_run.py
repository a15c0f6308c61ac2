"""A run that is followed through its Dask scheduler, and the monitor of it inside the run."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.types import ConfigError
from tasks_lib.monitor.browse import browser_of
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource
from tasks_lib.monitor.run_figures import RunFigures
from tasks_lib.monitor.scheduler_source import SchedulerSource
from tasks_lib.monitor.serving import PageServer
from tasks_lib.worker.live import WorkerState
from training.ledger.store import RunStore


@dataclass(slots=True)
class FollowedFigures:
    """Figures of the run that a source follows: of its folder too, where this machine has it."""

    source: SchedulerSource
    _figures: RunFigures | None = None

    def measure(self, states: Sequence[WorkerState]) -> dict[str, Any]:
        """Return the figures as JSON values. What is not known is missing."""
        folder = Path(self.source.run_dir)
        if self._figures is None and self.source.run_dir and (folder / "config.json").is_file():
            self._figures = RunFigures(RunStore(folder))
        if self._figures is not None:
            return self._figures.measure(states)
        slots = [slot for state in states for slot in state.slots]
        finished: Counter[str] = Counter()
        for state in states:
            finished.update({str(reason): count for reason, count in state.finished.items()})
        problem = f"The folder {folder} of the run is not on this machine: only its workers are shown."
        return {
            "run_id": folder.name,
            "title": folder.name,
            "state": "running" if states else "unknown",
            "problem": problem if self.source.run_dir else "No worker has reported a run yet.",
            "phase": states[0].phase if states else None,
            "versions": dict(Counter(str(slot.version) for slot in slots if slot.episode_id)),
            "finished": dict(finished),
            "cells": dict(Counter(str(slot.doing) for slot in slots)),
        }


@contextmanager
def open_monitor(store: RunStore | None, scheduler: str = "") -> Iterator[LiveMonitor]:
    """Open the monitor of a run: by its folder, by its Dask scheduler, or by both."""
    if not scheduler:
        assert store is not None, "a folder or a scheduler is needed"
        yield LiveMonitor(FolderSource(store), RunFigures(store))
        return
    source = SchedulerSource(scheduler, str(store.root) if store is not None else "")
    try:
        yield LiveMonitor(source, FollowedFigures(source))
    finally:
        source.close()


@contextmanager
def serve_monitor(store: RunStore, scheduler: str, server: PageServer) -> Iterator[str]:
    """Serve the monitor of a run inside, in a thread of its own, and yield its address.

    Raises:
        ConfigError: it cannot listen there.
    """
    with open_monitor(store, scheduler) as monitor, _served(store, monitor, server) as address:
        yield address


@contextmanager
def _served(store: RunStore, monitor: LiveMonitor, server: PageServer) -> Iterator[str]:
    """Serve inside, in a thread, and yield the address."""
    root = store.root.parent
    application = server.application([*monitor.routes(), *browser_of(root).routes()], monitor.polling, root)
    listens, ended = threading.Event(), asyncio.Event()
    address, failed = "", list[ConfigError]()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        nonlocal address
        async with server.serving(application, monitor.end) as address:
            listens.set()
            await ended.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except ConfigError as error:
            failed.append(error)
        finally:
            listens.set()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=run, name="monitor", daemon=True)
    thread.start()
    listens.wait()
    try:
        if failed:
            raise failed[0]
        yield address
    finally:
        if not failed:
            loop.call_soon_threadsafe(ended.set)
        thread.join()
