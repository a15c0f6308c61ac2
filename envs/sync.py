"""Synchronous `open_env` for notebooks and scripts, also inside a running event loop.

::

    with open_env_sync("miniwob/click-test", seed=7) as env:
        step = env.reset()
        step = env.step(Click(element=1))
"""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from anyio.from_thread import start_blocking_portal

from envs.env import AnyAction, StepResult, WebEnv, open_env
from envs.types import BrowserError, RewardBundle, Trajectory, WebTask


class SyncWebEnv:
    """A `WebEnv` whose event loop runs in a thread of its own; every call waits for it."""

    def __init__(self, env: WebEnv) -> None:
        self._env = env
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(name="rollwright-env"))
            stack.enter_context(portal.wrap_async_context_manager(env))
            self._call = portal.call
            # Also when it is forgotten, or the interpreter ends: no browser is left behind.
            self._finish = weakref.finalize(self, stack.pop_all().close)
            # As concurrent.futures does: at `atexit`, closing could start no thread any more.
            threading._register_atexit(self._finish)  # type: ignore[attr-defined]

    @property
    def task(self) -> WebTask:
        """The task that is attempted."""
        return self._env.task

    @property
    def trajectory(self) -> Trajectory | None:
        """The same as `WebEnv.trajectory`."""
        return self._env.trajectory

    @property
    def reward(self) -> RewardBundle | None:
        """The same as `WebEnv.reward`."""
        return self._env.reward

    def reset(self, seed: int | None = None) -> StepResult:
        """The same as `WebEnv.reset`."""
        self._check_open()
        return self._call(self._env.reset, seed)

    def step(self, action: AnyAction) -> StepResult:
        """The same as `WebEnv.step`."""
        self._check_open()
        return self._call(self._env.step, action)

    def close(self) -> None:
        """Give the browser back and end the thread. Closing twice is one close."""
        self._finish()

    def _check_open(self) -> None:
        if not self._finish.alive:
            raise BrowserError("the environment is closed: open another one with open_env_sync(…)")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_env_sync(task: str | WebTask, **options: Any) -> SyncWebEnv:
    """`open_env` without ``await``.

    The environment is open at once; use it in ``with``, or `close` it.

    Args:
        task: The same as of `open_env`.
        options: The same as of `open_env`, without ``pool``: a pool belongs to its own event loop.

    Raises:
        TaskError, ConfigError, BrowserError: The errors of `open_env`; the browser does not start.
    """
    if options.get("pool") is not None:
        raise BrowserError("a pool belongs to its own event loop: leave pool= out, or use open_env")
    return SyncWebEnv(open_env(task, **options))
