"""A seat: one environment's place on a host, whose task may change from episode to episode."""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from envs.env import WebEnv
from envs.step_result import AnyAction, StepResult
from envs.sync import SyncEnvHost, of_this_process
from envs.types import BrowserError, TaskError, WebTask

T = TypeVar("T")


class Seat:
    """Holds the environment of the present task; `call` enters the host's event loop."""

    def __init__(self, owner: object, host: SyncEnvHost, options: Mapping[str, Any]) -> None:
        """
        Args:
            owner: Object with whose end the seat is given back; the seat does not hold it.
            options: Arguments of `EnvHost.open` for all tasks.
        """
        self.env: WebEnv | None = None
        """The environment of the present task; ``None`` before the first reset."""
        self._host, self._options = host, dict(options)
        self._task: str | WebTask | None = None
        self._pid = os.getpid()
        self.closer = weakref.finalize(owner, of_this_process(self._close))
        """Gives the browser back; not alive any more after that, or after the host's end."""
        host.close_with(self.closer)

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine function in the host's event loop, from any other thread."""
        if not self.closer.alive:
            raise BrowserError("the environment is closed: call reset() for another episode")
        if self._pid != os.getpid():
            raise BrowserError("the environment was opened before this process was forked: make one in here")
        return self._host.portal.call(function, *args)

    async def reset(self, task: str | WebTask, seed: int) -> StepResult:
        """Begin an episode of a task, inside the event loop.

        Raises:
            BrowserError, CapacityError, TaskError: The errors of `EnvHost.open` and `WebEnv.reset`.
        """
        if self.env is None or task != self._task:
            await self.leave()
            self.env, self._task = await self._host.host.open(task, seed=seed, **self._options), task
        return await self.env.reset(seed)

    async def step(self, action: AnyAction) -> StepResult:
        """Carry out an action, inside the event loop.

        Raises:
            TaskError: No episode is going on.
        """
        if self.env is None:
            raise TaskError("no episode: call reset() first")
        return await self.env.step(action)

    async def leave(self) -> None:
        """Give the browser back, inside the event loop."""
        env, self.env = self.env, None
        if env is not None:
            await env.close()

    def _close(self) -> None:
        self._host.portal.call(self.leave)
