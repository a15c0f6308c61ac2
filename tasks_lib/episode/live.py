"""Live status of a run's workers: one small file each, rewritten every second.

It is written while the worker rolls out. The data of a task monitor.

``run_dir/live/<worker>.json`` holds a `WorkerState`. It is no part of the run: nothing reads it back, and a file whose ``time`` stands still
is what a killed worker left.
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

EVERY_SECONDS = 1.0
"""Between two states of a worker."""

MAX_LAG = 2.0
"""Seconds that the worker's event loop may be late before a warning: deadlines of pages and turns are late as well then."""


class Doing(StrEnum):
    """What an episode waits for or does."""

    IDLE = "idle"
    """The slot has nothing more to do."""
    PAGE = "page"
    """Waits for a page, and for its reset."""
    TURN = "turn"
    """Its page is made a prompt and the policy answers; also in the queues before."""
    ACT = "act"
    """The action is carried out, and the page looked at."""


class SlotState(Record):
    """One slot of a worker."""

    episode_id: str
    """Empty when idle."""
    kind: str
    step: int
    horizon: int
    doing: Doing
    seconds: float
    """Since it began doing it."""


class WorkerState(Record):
    """One worker at one moment."""

    worker: str
    """Host and process."""
    time: float
    """Seconds since 1970."""
    phase: str
    """``i000012`` (rollouts of an iteration) or ``e000012`` (evaluation of a version)."""
    episodes: int
    """Of the shards that are being rolled out."""
    finished: dict[StopReason, int]
    """Episodes that ended, retried ones too, by how they ended."""
    slots: tuple[SlotState, ...]
    browsers: dict[str, Any]
    """Counters of the browser pool, and the state of each browser's connection."""
    rewards: dict[str, Any] = Field(default_factory=dict)
    """What the reward stage has done, and how many episodes wait for it."""
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
    """It may be used again."""

    def now(self, doing: Doing, step: int | None = None) -> None:
        """It does something else from now on."""
        self.doing, self.since = doing, time.monotonic()
        if step is not None:
            self.step = step

    def begin(self, episode_id: str, kind: str, horizon: int) -> None:
        """An episode begins."""
        self.episode_id, self.kind, self.horizon = episode_id, kind, horizon
        self.now(Doing.PAGE, 0)

    def rest(self) -> None:
        """There is nothing more to do."""
        self.episode_id = self.kind = ""
        self.horizon, self.free = 0, True
        self.now(Doing.IDLE, 0)

    def state(self) -> SlotState:
        """What it does at this moment."""
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
    """The slots of a worker while shards are rolled out on it, and what became of their episodes."""

    phase: str
    episodes: int
    browsers: Callable[[], dict[str, Any]]
    rewards: Callable[[], dict[str, Any]] = dict
    slots: list[SlotStatus] = field(default_factory=list)
    finished: Counter[StopReason] = field(default_factory=Counter)
    lag: float = 0.0

    def slot(self) -> SlotStatus:
        """A free slot."""
        for slot in self.slots:
            if slot.free:
                slot.free = False
                return slot
        self.slots.append(SlotStatus())
        return self.slots[-1]

    def ended(self, attempts: list[Trajectory]) -> None:
        """An episode ended; all of its attempts."""
        self.finished.update(trajectory.stop_reason for trajectory in attempts)

    def state(self) -> WorkerState:
        """All of it at this moment."""
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
    """Host and process."""
    return f"{socket.gethostname()}-{os.getpid()}"


class LiveFile:
    """A worker's file, shared by the shards that it rolls out at once. One event loop."""

    def __init__(self) -> None:
        self._open = 0
        self._state: LiveState | None = None
        self._writing = AsyncExitStack()

    @asynccontextmanager
    async def shard(self, live: LiveState, store: RunStore) -> AsyncIterator[LiveState]:
        """The state that a shard writes its slots into: its own, or that of a shard that is under way."""
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
                await writing.__aexit__(*sys.exc_info())  # what failed inside says more than a warning


@asynccontextmanager
async def update_live_file(live: LiveState, store: RunStore) -> AsyncIterator[None]:
    """Keep the worker's file up to date inside, and once more at the end."""
    path, over = store.live_path(worker_name()), asyncio.Event()
    reported, refused = False, None

    async def write() -> None:
        nonlocal reported, refused
        data = live.state().model_dump_json().encode()
        try:
            await asyncio.to_thread(atomic_write_bytes, path, data, sync=False)
        except DiskError as error:  # said only of a rollout that goes well: otherwise its own error says it
            refused = error
        except OSError as error:  # nothing depends on the file: the rollout goes on without
            if not reported:
                logger.warning("the task monitor cannot show this worker: %s cannot be written: %s", path, error)
            reported = True
        else:
            reported = False

    async def keep_writing() -> None:
        loop = asyncio.get_running_loop()
        while not over.is_set():
            await write()
            due = loop.time() + EVERY_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), EVERY_SECONDS)
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
