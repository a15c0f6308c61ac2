"""Workers' live states from Dask's events, and their running episodes on demand.

::

    worker ── log_event, when an episode went on ──> scheduler ──> our client ──> newest state
    viewer ── /episode, /screenshot ──> our client ── run ──> worker

`problem` names a scheduler that restarts or does not answer, and a worker that dies. The monitor
connects again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import distributed
import orjson
from pydantic import ValidationError

from tasks_lib.monitor.live_source import find_slot
from tasks_lib.worker.live import LIVE_TOPIC, WorkerState
from tasks_lib.worker.live_view import view_episode, view_screenshot

T = TypeVar("T")
logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""Seconds between two looks at the scheduler and the list of its workers."""
GONE_SECONDS = 60.0
"""Seconds for which `SchedulerSource.problem` names a worker that is gone."""
LOOKS = 2
"""Times that earlier events are read after a subscription. The scheduler gets it a little after
the first look, and sends no events from in between."""
ANSWER_SECONDS = 5.0
"""Longest wait for an answer of the scheduler or a worker."""


@dataclass(frozen=True, slots=True)
class _WorkerEntry:
    """The newest state of one worker."""

    address: str
    state: WorkerState
    data: bytes


class SchedulerSource:
    """Follows the workers of the run in ``run_dir``, or of the first run that sends its states.

    Its methods are called in one thread at a time, but for `episode` and `screenshot`.
    """

    def __init__(self, address: str, run_dir: str = "") -> None:
        self.run_dir = run_dir
        """Folder of the run; empty until the first state arrives."""
        self.problem: str | None = None
        """Sentence that says what is wrong with the scheduler or a worker, if anything is."""
        self._address = address
        self._client: distributed.Client | None = None
        self._scheduler = ""
        self._workers: dict[str, _WorkerEntry] = {}
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        """Held for the two fields before, which Dask's thread writes."""
        self._looks_left = 0
        self._check_at = 0.0
        self._gone_until = 0.0
        self._asking = ThreadPoolExecutor(4, "ask-worker")

    def changes(self) -> list[tuple[str, bytes]]:
        """Return the newest state of each worker that changed or is gone since the last call."""
        gone = self._check() if time.monotonic() >= self._check_at else []
        with self._lock:
            changed, self._changed = self._changed, set()
            known = [(worker, self._workers[worker].data) for worker in sorted(changed) if worker in self._workers]
        return [*known, *((worker, orjson.dumps({"worker": worker, "gone": True})) for worker in gone)]

    def states(self) -> list[WorkerState]:
        """Return the newest states of the connected workers."""
        with self._lock:
            return [entry.state for _, entry in sorted(self._workers.items())]

    def episode(self, worker: str, slot: int) -> dict[str, Any] | None:
        """Return the running episode of a slot, as its worker sees it now."""
        return self._ask(worker, slot, view_episode)

    def screenshot(self, worker: str, slot: int) -> bytes | None:
        """Return the last screenshot of a slot's episode."""
        return self._ask(worker, slot, view_screenshot)

    def close(self) -> None:
        """End the connection. The source may be used no more."""
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._disconnect()

    def _ask(self, worker: str, slot: int, view: Callable[[int], T | None]) -> T | None:
        """Call ``view`` with a slot on its worker.

        Returns ``None`` if the slot plays nothing, or its worker is gone or does not answer.
        """
        with self._lock:
            entry, client = self._workers.get(worker), self._client
        if entry is None or client is None or find_slot([entry.state], worker, slot) is None:
            return None
        answers = self._asking.submit(client.run, view, slot, workers=[entry.address], on_error="return")
        try:
            answer = answers.result(ANSWER_SECONDS).get(entry.address)
        except (OSError, RuntimeError, TimeoutError, ValueError) as error:
            logger.info("worker %s did not answer: %s", worker, error)
            return None
        finally:
            answers.cancel()
        return None if isinstance(answer, BaseException) else answer

    def _check(self) -> list[str]:
        """Connect if that is needed, and return the workers that are gone."""
        try:
            client = self._client = self._client or self._connect()
            identity = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_SECONDS)
            if identity["id"] != self._scheduler:  # a restarted scheduler has no subscriptions
                self._scheduler = identity["id"]
                client.subscribe_topic(LIVE_TOPIC, self._take)
                self._looks_left = LOOKS
            if self._looks_left:
                self._looks_left -= 1
                for event in client.get_events(LIVE_TOPIC):
                    self._take(event)
        except (OSError, TimeoutError, asyncio.CancelledError, RuntimeError, ValueError) as error:
            logger.info("the scheduler at %s does not answer: %s", self._address, error)
            self.problem = f"The scheduler at {self._address} does not answer; it is tried again."
            self._disconnect()
            self._check_at = time.monotonic() + CHECK_SECONDS
            return self._forget(frozenset())
        gone, now = self._forget(frozenset(identity["workers"])), time.monotonic()
        if gone:
            self.problem, self._gone_until = f"A worker is gone: {', '.join(gone)}.", now + GONE_SECONDS
        elif now >= self._gone_until:
            self.problem = None
        self._check_at = now + CHECK_SECONDS
        return gone

    def _connect(self) -> distributed.Client:
        return distributed.Client(self._address, set_as_default=False, timeout=ANSWER_SECONDS, name="monitor")

    def _take(self, event: tuple[float, Any]) -> None:
        """Keep a worker's state if it is of our run and newer than the kept one."""
        message = event[1]
        try:
            run_dir, address, data = str(message["run"]), str(message["address"]), message["state"].encode()
            state = WorkerState.model_validate_json(data)
        except (AttributeError, KeyError, TypeError, ValidationError):  # another version's worker
            return
        with self._lock:
            self.run_dir = self.run_dir or run_dir
            known = self._workers.get(state.worker)
            if Path(run_dir) == Path(self.run_dir) and (known is None or known.state.time < state.time):
                self._workers[state.worker] = _WorkerEntry(address, state, data)
                self._changed.add(state.worker)

    def _forget(self, there: frozenset[str]) -> list[str]:
        """Forget the workers that are not among these addresses, and return their names."""
        with self._lock:
            gone = sorted(worker for worker, entry in self._workers.items() if entry.address not in there)
            for worker in gone:
                del self._workers[worker]
        return gone

    def _disconnect(self) -> None:
        client, self._client, self._scheduler = self._client, None, ""
        if client is not None:
            try:
                client.close(timeout=ANSWER_SECONDS)
            except (OSError, TimeoutError, RuntimeError) as error:
                logger.info("the connection to %s was not closed in order: %s", self._address, error)
