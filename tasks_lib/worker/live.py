"""Live status of a run's workers: one small file each, rewritten every second.

``run_dir/live/<worker>.json`` holds a `WorkerState`. Workers write it while they roll out, the
monitor shows it, and no run reads it back. A Dask scheduler, if there is one, gets what changed as
events (`LIVE_TOPIC`). A killed worker leaves a file whose ``time`` no longer changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, get_args

import psutil
from pydantic import Field

from envs.browser import PageWork
from envs.types import DiskError, Record, Step, StopReason, Trajectory
from training.ledger.store import RunStore, atomic_write_bytes

logger = logging.getLogger(__name__)

WRITE_SECONDS = 1.0
"""Seconds between two states of a worker."""

MAX_LAG = 2.0
"""Seconds that the event loop may be late before a warning; deadlines are late by as much."""


class Doing(StrEnum):
    """Operation that an episode waits for."""

    __hash__ = str.__hash__  # an enumeration's own is slow, and steps wait for it

    IDLE = "idle"
    """The slot has no episode."""
    RESET = "reset"
    """The episode waits for a page, or the page for its reset to the seed."""
    RESTART = "restart"
    """No browser runs, and one is started."""
    NAVIGATE = "navigate"
    """The page is loaded."""
    OBSERVE = "observe"
    """The page is read."""
    SCREENSHOT = "screenshot"
    """The page was read, and its picture is taken."""
    QUEUE = "queue"
    """The turn waits for the encoder or for its generation batch."""
    TURN = "turn"
    """The policy generates."""
    EXECUTE = "execute"
    """The action is carried out."""
    SETTLE = "settle"
    """The page comes to rest."""
    JUDGE = "judge"
    """The evidence for the grading is read."""


WAITS_FOR_TURN = (Doing.QUEUE, Doing.TURN)
"""Operations of an episode whose turn is with the encoder or the engine."""

MIN_TIMES, MAX_TIMES = 100, 2000
"""Operations of a kind before one of them can be slow, and times of a kind that are kept."""
KEPT = 8
"""One time of so many is kept once there are `MAX_TIMES`."""


class SlotState(Record):
    """One slot of a worker."""

    episode_id: str
    """Id of the episode; empty when idle."""
    kind: str
    step: int
    horizon: int
    doing: Doing
    seconds: float
    """Seconds since the operation began."""
    task_id: str = ""
    version: int | None = None
    """Version of the newest turn, before it that of the engine."""
    slow: bool = False
    """The operation takes longer than 99 % of the last ones of its kind in this worker."""
    screenshot: str = ""
    """Name of the blob of the last turn's screenshot; empty before the first."""


class PlayedEpisode(NamedTuple):
    """A running episode at one moment."""

    instruction: str
    steps: tuple[Step, ...]
    screenshot: bytes
    """JPEG of its page; empty before the first."""


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
    sites: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Instances of sites by state, launches and resets so far and bytes of memory, by recipe."""
    lag: float = 0.0
    """Seconds that the worker's event loop was late before this state."""
    cpu: float = 0.0
    """Share of its machine's cores in use since the state before."""
    memory: float = 0.0
    """Share of its machine's memory in use."""


@dataclass(slots=True)
class _KindTimes:
    """Times of operations of one kind."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_TIMES))
    """Seconds of the operations that ended."""
    count: int = 0
    """Number of operations that ended."""
    counted: int = 0
    """Count at which the percentile was taken."""
    limit: float = 0.0
    """99th percentile then."""


class OperationTimes:
    """Times of a worker's last operations by kind, and the 99th percentile of each kind."""

    def __init__(self) -> None:
        self.kinds = {doing: _KindTimes() for doing in Doing}
        """Times by kind, to which `SlotStatus.set_doing` adds."""

    def is_slow(self, doing: Doing, seconds: float) -> bool:
        """Return whether an operation that has lasted so long is slow."""
        kind = self.kinds[doing]
        if doing is Doing.IDLE or kind.count < MIN_TIMES:
            return False
        if kind.count >= 2 * kind.counted or kind.count - kind.counted >= KEPT * MAX_TIMES // 2:
            times = sorted(kind.seconds)
            kind.counted, kind.limit = kind.count, times[len(times) * 99 // 100]
        return seconds > kind.limit


@dataclass(slots=True)
class SlotStatus:
    """The live state of one slot; written by its episodes, read once a second."""

    times: OperationTimes = field(default_factory=OperationTimes)
    episode_id: str = ""
    task_id: str = ""
    kind: str = ""
    version: int | None = None
    step: int = 0
    horizon: int = 0
    screenshot: str = ""
    doing: Doing = Doing.IDLE
    since: float = field(default_factory=time.monotonic)
    free: bool = False
    """True if another episode may use the slot."""
    view: Callable[[], PlayedEpisode] | None = None
    """Returns the running episode; ``None`` when idle."""

    def set_doing(self, doing: Doing, step: int | None = None) -> None:
        """Begin another operation, at ``step`` if that changes too."""
        now = time.monotonic()
        if doing is not self.doing:
            ended = self.times.kinds[self.doing]  # here, as a call costs as much as all the rest
            ended.count = count = ended.count + 1
            if count <= MAX_TIMES or not count % KEPT:
                ended.seconds.append(now - self.since)
        self.doing, self.since = doing, now
        if step is not None:
            self.step = step

    def tell(self, work: PageWork) -> None:
        """Begin an operation of the session (`WebSession.tell`)."""
        self.set_doing(PAGE_WORK[work])

    def begin(
        self,
        episode_id: str,
        kind: str,
        horizon: int,
        task_id: str = "",
        version: int | None = None,
        view: Callable[[], PlayedEpisode] | None = None,
    ) -> None:
        """Begin an episode."""
        self.episode_id, self.kind, self.horizon = episode_id, kind, horizon
        self.task_id, self.version, self.view, self.screenshot = task_id, version, view, ""
        self.set_doing(Doing.RESET, 0)

    def set_free(self) -> None:
        """Mark the slot as idle and free."""
        self.episode_id = self.kind = self.task_id = self.screenshot = ""
        self.version, self.view, self.horizon, self.free = None, None, 0, True
        self.set_doing(Doing.IDLE, 0)

    def state(self) -> SlotState:
        """Return the record of the slot at this moment."""
        doing, seconds = self.doing, time.monotonic() - self.since
        return SlotState(
            episode_id=self.episode_id,
            kind=self.kind,
            step=self.step,
            horizon=self.horizon,
            doing=doing,
            seconds=seconds,
            task_id=self.task_id,
            version=self.version,
            slow=self.times.is_slow(doing, seconds),
            screenshot=self.screenshot,
        )


PAGE_WORK: dict[str, Doing] = {work: Doing(work) for work in get_args(PageWork)}
"""Operations of a session by its names."""


Send = Callable[[str, str], None]
"""Sends a state as JSON, with the folder of its run, to whom it may concern."""


def what_changes(state: WorkerState) -> tuple[Any, ...]:
    """Return what is worth a message when it changes: not seconds, load or counters alone."""
    slots = tuple((slot.episode_id, slot.doing, slot.step, slot.slow, slot.version) for slot in state.slots)
    return state.phase, state.episodes, tuple(sorted(state.finished.items())), slots


@dataclass(slots=True)
class LiveState:
    """Slots of a worker while it rolls out shards, and how their episodes ended."""

    phase: str
    episodes: int
    browsers: Callable[[], dict[str, Any]]
    rewards: Callable[[], dict[str, Any]] = dict
    sites: Callable[[], dict[str, dict[str, int]]] = dict
    slots: list[SlotStatus] = field(default_factory=list)
    finished: Counter[StopReason] = field(default_factory=Counter)
    lag: float = 0.0
    times: OperationTimes = field(default_factory=OperationTimes)

    def take_slot(self) -> SlotStatus:
        """Return a free slot, a new one if there is none, and mark it as used."""
        for slot in self.slots:
            if slot.free:
                slot.free = False
                return slot
        self.slots.append(SlotStatus(self.times))
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
            sites=self.sites(),
            lag=self.lag,
            cpu=psutil.cpu_percent() / 100,
            memory=psutil.virtual_memory().percent / 100,
        )


def worker_name() -> str:
    """Return the name of this process: host and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


LIVE_TOPIC = "rollwright-live"
"""Topic of Dask events under which workers send their states."""


class LiveFile:
    """Live file of a worker, shared by its concurrent shards. Used from one event loop."""

    def __init__(self, send: Send = lambda run_dir, state: None) -> None:
        """``send`` is called with the run's folder and each state in which something changed."""
        self._send = send
        self._open = 0
        self._state: LiveState | None = None
        self._times = OperationTimes()
        self._writing = AsyncExitStack()

    def view(self, slot: int) -> tuple[SlotStatus, PlayedEpisode] | None:
        """Return the slot of this number and the episode that it plays; ``None`` if it plays none.

        May be called in any thread.
        """
        live = self._state
        status = live.slots[slot] if live is not None and 0 <= slot < len(live.slots) else None
        view = status.view if status is not None else None
        return None if status is None or view is None else (status, view())

    @asynccontextmanager
    async def shard(self, live: LiveState, store: RunStore) -> AsyncIterator[LiveState]:
        """Yield the state that a shard writes its slots into, and write the file meanwhile.

        All shards of a worker share the state of the first one.
        """
        if self._state is None:
            self._state = live
            live.times = self._times
            await self._writing.enter_async_context(update_live_file(live, store, self._send))
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
async def update_live_file(
    live: LiveState, store: RunStore, send: Send = lambda run_dir, state: None
) -> AsyncIterator[None]:
    """Write the worker's file every second inside, and once more at the end."""
    path, over = store.live_path(worker_name()), asyncio.Event()
    reported, refused = False, None
    sent: tuple[Any, ...] = ()

    async def write() -> None:
        nonlocal reported, refused, sent
        state = live.state()
        data = state.model_dump_json()
        if (changing := what_changes(state)) != sent:
            sent = changing
            send(str(store.root), data)
        try:
            await asyncio.to_thread(atomic_write_bytes, path, data.encode(), sync=False)
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
