"""Synchronous `open_env` for notebooks and scripts, also inside a running event loop.

::

    with open_env_sync("miniwob/click-test", seed=7) as env:
        step = env.reset()
        step = env.step(Click(element=1))

`SyncEnvHost` opens many environments on one event loop and one pool of browsers, for frameworks
without ``await``.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from envs.env import WebEnv, open_env
from envs.host import EnvHost
from envs.step_result import AnyAction, StepResult
from envs.types import BrowserError, RewardBundle, Trajectory, WebTask

_inherited: list[Callable[[], None]] = []
"""Resources that a forked process may not close. They are kept, since freeing them would wait for
the thread too."""


class _Closed:
    """Closes what `closer` closes, at the end of a ``with`` block or before."""

    closer: weakref.finalize[..., Any]

    def close(self) -> None:
        """Give the browsers back and end the thread. Closing twice is one close."""
        self.closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class SyncWebEnv(_Closed):
    """A `WebEnv` whose event loop runs in a thread of its own; every call waits for it."""

    def __init__(self, env: WebEnv, host: SyncEnvHost | None = None) -> None:
        """
        Args:
            host: Host whose event loop runs it, and which closes it at its own end; an own loop if
                not given.
        """
        self._env = env
        self._host = host  # it lives as long as its environments
        with ExitStack() as stack:
            portal = host.portal if host is not None else _start_loop(stack)
            stack.enter_context(portal.wrap_async_context_manager(env))
            self._call = portal.call
            self.closer = weakref.finalize(self, of_this_process(stack.pop_all().close))
        if host is None:
            _finish_at_exit(self.closer)

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

    def _check_open(self) -> None:
        if not self.closer.alive:
            raise BrowserError("the environment is closed: open another one with open_env_sync(…)")


class SyncEnvHost(_Closed):
    """An `EnvHost` whose event loop runs in a thread of its own.

    It is closed in ``with``, by `close`, when it is forgotten, or when the interpreter ends.
    """

    def __init__(self, **pool_options: Any) -> None:
        """
        Args:
            pool_options: The same as of `EnvHost`.
        """
        self.host = EnvHost(**pool_options)
        self._envs: list[weakref.finalize[..., Any]] = []
        with ExitStack() as stack:
            self.portal = _start_loop(stack)
            """Calls into the event loop, where `host` lives."""
            stack.enter_context(self.portal.wrap_async_context_manager(self.host))
            stack.callback(_close_all, self._envs)
            self.closer = weakref.finalize(self, of_this_process(stack.pop_all().close))
        _finish_at_exit(self.closer)

    def open(self, task: str | WebTask, **options: Any) -> SyncWebEnv:
        """Open an environment on the shared browsers; use it in ``with``, or close it.

        Args:
            task: The same as of `open_env`.
            options: The same as of `EnvHost.open`.

        Raises:
            TaskError, ConfigError, BrowserError: The errors of `open_env`.
            CapacityError: All sessions are in use, and none became free in time.
        """
        if not self.closer.alive:
            raise BrowserError("the host is closed: make another SyncEnvHost")
        env = SyncWebEnv(self.host.open(task, **options), self)
        self.close_with(env.closer)
        return env

    def close_with(self, closer: weakref.finalize[..., Any]) -> None:
        """Call ``closer`` at the host's end, while its browsers still run, if it is alive then."""
        self._envs[:] = [*(other for other in self._envs if other.alive), closer]


def _start_loop(stack: ExitStack) -> BlockingPortal:
    """Start an event loop in a thread of its own, which ends with ``stack``."""
    return stack.enter_context(start_blocking_portal(name="rollwright-env"))


def of_this_process(close: Callable[[], None]) -> Callable[[], None]:
    """Return ``close``, which does nothing in a forked process, where the loop's thread is not."""
    pid = os.getpid()

    def closed() -> None:
        if os.getpid() == pid:
            close()
        else:
            _inherited.append(close)

    return closed


def _finish_at_exit(finish: weakref.finalize[..., Any]) -> None:
    """Have the interpreter's end call ``finish``, so that no browser is left behind."""
    # As concurrent.futures does: at `atexit`, closing could start no thread any more.
    threading._register_atexit(finish)  # type: ignore[attr-defined]


def _close_all(envs: list[weakref.finalize[..., Any]]) -> None:
    """Close the environments that are still open, also if one fails; raise what failed."""
    with ExitStack() as stack:
        for env in envs:
            stack.callback(env)


def open_env_sync(task: str | WebTask, **options: Any) -> SyncWebEnv:
    """`open_env` without ``await``.

    The environment is open at once; use it in ``with``, or `close` it.

    Args:
        task: The same as of `open_env`.
        options: The same as of `open_env`, without ``pool`` and ``page``, which belong to their own
            event loop.

    Raises:
        TaskError, ConfigError, BrowserError: The errors of `open_env`; the browser does not start.
    """
    if options.get("pool") is not None:
        raise BrowserError("a pool belongs to its own event loop: leave pool= out, or use open_env")
    if options.get("page") is not None:
        raise BrowserError("a page belongs to its own event loop: leave page= out, or use open_env")
    return SyncWebEnv(open_env(task, **options))
