"""Live status of a run's workers: one small file each, rewritten every second.

The files are written while workers roll out, and shown by the task monitor.

``run_dir/live/<worker>.json`` holds a `WorkerState`. It is no part of the run, and no run reads it
back. A killed worker leaves a file whose ``time`` no longer changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import psutil
from pydantic import Field

from envs.types import DiskError, Record, StopReason, Trajectory
from training.ledger.store import RunStore, atomic_write_bytes

logger = logging.getLogger(__name__)

WRITE_SECONDS = 1.0
"""Seconds between two states of a worker."""

MAX_LAG = 2.0
"""Seconds that the worker's event loop may be late before a warning.

Deadlines of pages and turns are then late by as much.
"""


class Doing(StrEnum):
    """Activity of an episode."""

    IDLE = "idle"
    """The slot has no episode."""
    PAGE = "page"
    """The episode waits for a page and its reset."""
    TURN = "turn"
    """The prompt is made and the policy answers; the waits in the queues before count too."""
    ACT = "act"
    """The action is carried out, and the page is observed."""


class SlotState(Record):
    """One slot of a worker."""

    episode_id: str
    """Id of the episode; empty when idle."""
    kind: str
    step: int
    horizon: int
    doing: Doing
    seconds: float
    """Seconds since the activity began."""


class WorkerState(Record):
    """One worker at one moment."""

    worker: str
    """Host and process id."""
    time: float
    """Time of the state, in seconds since 1970."""
    phase: str
    """``i000012`` (rollouts of an iteration) or ``e000012`` (evaluation of a version)."""
    episodes: int
    """Number of episodes of the shards that are being rolled out."""
    finished: dict[StopReason, int]
    """Number of ended attempts by stop reason, with attempts that were retried."""
    slots: tuple[SlotState, ...]
    browsers: dict[str, Any]
    """Counters of the browser pool, and the state of each browser's connection."""
    rewards: dict[str, Any] = Field(default_factory=dict)
    """Counters of the reward stage, and the number of episodes that wait for it."""
    lag: float = 0.0
    """Seconds that the worker's event loop was late before this state."""
    cpu: float = 0.0
    """Share of its machine's cores in use since the state before."""
    memory: float = 0.0
    """Share of its machine's memory in use."""


@dataclass(slots=True)
class SlotStatus:
    """The live state of one slot; written by its episodes, read once a second."""

    episode_id: str = ""
    kind: str = ""
    step: int = 0
    horizon: int = 0
    doing: Doing = Doing.IDLE
    since: float = field(default_factory=time.monotonic)
    free: bool = False
    """True if another episode may use the slot."""

    def set_doing(self, doing: Doing, step: int | None = None) -> None:
        """Begin another activity, at ``step`` if that changes too."""
        self.doing, self.since = doing, time.monotonic()
        if step is not None:
            self.step = step

    def begin(self, episode_id: str, kind: str, horizon: int) -> None:
        """Begin an episode."""
        self.episode_id, self.kind, self.horizon = episode_id, kind, horizon
        self.set_doing(Doing.PAGE, 0)

    def set_free(self) -> None:
        """Mark the slot as idle and free."""
        self.episode_id = self.kind = ""
        self.horizon, self.free = 0, True
        self.set_doing(Doing.IDLE, 0)

    def state(self) -> SlotState:
        """Return the record of the slot at this moment."""
        seconds = time.monotonic() - self.since
        return SlotState(
            episode_id=self.episode_id,
            kind=self.kind,
            step=self.step,
            horizon=self.horizon,
            doing=self.doing,
            seconds=seconds,
        )


@dataclass(slots=True)
class LiveState:
    """Slots of a worker while it rolls out shards, and how their episodes ended."""

    phase: str
    episodes: int
    browsers: Callable[[], dict[str, Any]]
    rewards: Callable[[], dict[str, Any]] = dict
    slots: list[SlotStatus] = field(default_factory=list)
    finished: Counter[StopReason] = field(default_factory=Counter)
    lag: float = 0.0

    def take_slot(self) -> SlotStatus:
        """Return a free slot, a new one if there is none, and mark it as used."""
        for slot in self.slots:
            if slot.free:
                slot.free = False
                return slot
        self.slots.append(SlotStatus())
        return self.slots[-1]

    def record_end(self, attempts: list[Trajectory]) -> None:
        """Count an ended episode, by all of its attempts."""
        self.finished.update(trajectory.stop_reason for trajectory in attempts)

    def state(self) -> WorkerState:
        """Return the record of the worker at this moment."""
        return WorkerState(
            worker=worker_name(),
            time=time.time(),
            phase=self.phase,
            episodes=self.episodes,
            finished=dict(self.finished),
            slots=tuple(slot.state() for slot in self.slots),
            browsers=self.browsers(),
            rewards=self.rewards(),
            lag=self.lag,
            cpu=psutil.cpu_percent() / 100,
            memory=psutil.virtual_memory().percent / 100,
        )


def worker_name() -> str:
    """Return the name of this process: host and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


class LiveFile:
    """Live file of a worker, shared by its concurrent shards. Used from one event loop."""

    def __init__(self) -> None:
        self._open = 0
        self._state: LiveState | None = None
        self._writing = AsyncExitStack()

    @asynccontextmanager
    async def shard(self, live: LiveState, store: RunStore) -> AsyncIterator[LiveState]:
        """Yield the state that a shard writes its slots into, and write the file meanwhile.

        All shards of a worker share the state of the first one.
        """
        if self._state is None:
            self._state = live
            await self._writing.enter_async_context(update_live_file(live, store))
        else:
            self._state.phase = live.phase
            self._state.episodes += live.episodes
        self._open += 1
        try:
            yield self._state
        finally:
            self._open -= 1
            if not self._open:
                self._state, writing = None, self._writing.pop_all()
                # With the error inside, if any, which says more than a warning.
                await writing.__aexit__(*sys.exc_info())


@asynccontextmanager
async def update_live_file(live: LiveState, store: RunStore) -> AsyncIterator[None]:
    """Write the worker's file every second inside, and once more at the end."""
    path, over = store.live_path(worker_name()), asyncio.Event()
    reported, refused = False, None

    async def write() -> None:
        nonlocal reported, refused
        data = live.state().model_dump_json().encode()
        try:
            await asyncio.to_thread(atomic_write_bytes, path, data, sync=False)
        except DiskError as error:  # reported if the rollout ends well, else its own error does
            refused = error
        except OSError as error:  # nothing depends on the file: the rollout goes on
            if not reported:
                logger.warning("the task monitor cannot show this worker: %s cannot be written: %s", path, error)
            reported = True
        else:
            reported = False

    async def keep_writing() -> None:
        loop = asyncio.get_running_loop()
        while not over.is_set():
            await write()
            due = loop.time() + WRITE_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), WRITE_SECONDS)
            live.lag = max(0.0, loop.time() - due)
            if live.lag > MAX_LAG:
                logger.warning(
                    "the event loop of this worker was %.1f s late: too many episodes for its cores", live.lag
                )

    writing = asyncio.create_task(keep_writing(), name="live")
    try:
        yield
    finally:
        over.set()
        await writing
        await write()
    if refused is not None:
        logger.warning("the task monitor could not show this worker: %s", refused)
