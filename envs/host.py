"""A browser pool and started sites that many environments share, in one event loop.

::

    async with EnvHost(max_sessions=8) as host:
        async with host.open("miniwob/click-test", seed=7) as env:
            step = await env.reset()

The adapters to other frameworks and the environment server open all their environments on one.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Self
from weakref import WeakSet

from envs.browser import BrowserPool, PoolOptions
from envs.env import WebEnv, open_env
from envs.sites import SharedSites
from envs.types import ConfigError, WebTask
from envs.types.near import near

MAX_SESSIONS = 64
"""Sessions that a host lends at a time: one browser holds as many with 28 MB each."""

LEASE_DEADLINE = 60.0
"""Seconds that an opened environment waits for a free session."""


def make_pool(**options: Any) -> BrowserPool:
    """Browsers for several environments, to be used in ``async with``:
    ``make_pool(max_sessions=8)``.

    Args:
        options: Fields of `envs.PoolOptions`.

    Raises:
        ConfigError: there is no such option; with names that are near.
    """
    fields = PoolOptions.model_fields
    for name in options:
        if name not in fields:
            raise ConfigError(f"make_pool has no option {name!r}; {near(name, fields)}there are {', '.join(fields)}")
    return BrowserPool(**options)


class EnvHost:
    """Opens environments on browsers and sites that they share; used in ``async with``."""

    def __init__(self, **pool_options: Any) -> None:
        """
        Args:
            pool_options: Fields of `envs.PoolOptions`; ``max_sessions`` and ``lease_deadline`` have
                the host's defaults.

        Raises:
            ConfigError: There is no such option.
        """
        self.pool: BrowserPool = make_pool(
            **{"max_sessions": MAX_SESSIONS, "lease_deadline": LEASE_DEADLINE, **pool_options}
        )
        self.sites = SharedSites()
        self._opened: WeakSet[WebEnv] = WeakSet()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.sites.close)
            await stack.enter_async_context(self.pool)
            stack.push_async_callback(self._close_envs)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    def open(self, task: str | WebTask, **options: Any) -> WebEnv:
        """Make an environment on the shared browsers, used in ``async with``.

        Entering it raises `CapacityError` if no session becomes free in time.

        Args:
            task: The same as of `envs.open_env`.
            options: The same as of `envs.open_env`, without ``pool`` and ``sites``.

        Raises:
            TaskError, ConfigError: The errors of `envs.open_env`.
        """
        for name in ("pool", "sites"):
            if name in options:
                raise ConfigError(f"{name}: the host has its own; use envs.open_env for another one")
        env = open_env(task, pool=self.pool, sites=self.sites, **options)
        self._opened.add(env)
        return env

    async def _close_envs(self) -> None:
        """Close the environments that were left open."""
        for env in list(self._opened):
            await env.close()
