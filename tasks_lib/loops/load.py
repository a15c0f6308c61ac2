"""Adapts the number of groups under way to the load of an asynchronous run's machines.

Workers write the CPU and the memory of their machine, and what their episodes do, once a second
(`tasks_lib.worker.live`).
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import ValidationError

from tasks_lib.worker.live import WAITS_FOR_TURN, WorkerState
from training.ledger.store import RunStore
from training.pacing import concurrency
from training.pacing.concurrency import Bounds, Load
from training.serving.config import ServingConfig

MEASURE_SECONDS = 10.0
"""Seconds between two measurements."""


class AdaptiveConcurrency:
    """Moves the limit of groups under way between an eighth of ``max_groups`` and all. Begins at
    half."""

    def __init__(self, store: RunStore, serving: ServingConfig, max_groups: int) -> None:
        self._turns = serving.max_turns * serving.servers if serving.engine == "vllm" else 0
        self._bounds = Bounds(floor=max(1, max_groups // 8), ceiling=max_groups, step=max(1, max_groups // 16))
        self._state = concurrency.start(self._bounds, max(1, max_groups // 2))
        self._next = time.monotonic()
        self._look = LoadLook(store)

    @property
    def limit(self) -> int:
        """Maximum number of groups under way."""
        return self._state.limit

    def measure(self, running: int) -> int:
        """Return the limit, after a new measurement if one is due.

        Args:
            running: Groups under way.
        """
        if (now := time.monotonic()) >= self._next:
            self._next = now + MEASURE_SECONDS
            load = self._look.measure(self._turns, running)
            if load is not None:
                self._state = concurrency.adjust(self._bounds, self._state, load)
        return self.limit


class LoadLook:
    """Looks at the files of all workers. One that is as before was left by a worker that ended.

    So the clocks of other machines do not matter.
    """

    def __init__(self, store: RunStore) -> None:
        self._folder = store.root / "live"
        self._seen = self._read()

    def measure(self, turns: int, running: int) -> Load | None:
        """Return the load of all workers. ``None`` where none has written since the last look.

        Args:
            turns: Turns that the engines generate at once; requests beyond them queue. 0: engines
                of the workers, whose load is that of the workers' machines.
            running: Groups under way.
        """
        before, self._seen = self._seen, self._read()
        states = [state for path, state in self._seen.items() if path not in before or state.time != before[path].time]
        if not states:
            return None
        requested = sum(slot.doing in WAITS_FOR_TURN for state in states for slot in state.slots)
        queue = max(0, requested - turns) / turns if turns else 0.0
        return Load(time.monotonic(), queue, max(max(state.cpu, state.memory) for state in states), running)

    def _read(self) -> dict[Path, WorkerState]:
        return {path: state for path in self._folder.glob("*.json") if (state := _read(path))}


def _read(path: Path) -> WorkerState | None:
    """Read a worker's file; ``None`` if another version wrote it, or it is being replaced."""
    try:
        return WorkerState.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
