"""Browser supply: episodes lent as DevTools addresses, so that anybody's agent can play them.

::

    async with EnvHost() as host, open_devtools(host, "miniwob/click-test", seed=7) as lease:
        browser = await playwright.chromium.connect_over_cdp(lease.cdp_url)
        await browser.contexts[0].pages[0].click("#subbtn")
    print(lease.result.reward)

An address shows one episode's browser context alone. A lease ends when it is closed, when its
browser is gone, or when no client has said anything for its seconds; the browser is then the
pool's again, and an episode that was not closed abstains.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

from envs.background import start_background
from envs.browser.devtools.server import DevToolsAddress, DevToolsServer
from envs.env import WebEnv
from envs.host import EnvHost
from envs.step_result import AnyAction, StepResult
from envs.types import BrowserError, ConfigError, TaskError, Terminate, WebTask

LEASE_SECONDS = 600.0
"""Seconds without a word of a client after which a lease ends."""
MAX_LEASE_SECONDS = 7200.0 / 2
"""A page's clock is ahead of ours for so long (`envs.settle.CONTEXT_SECONDS`)."""
LOOK_SECONDS = 1.0
"""Seconds between looks whether the browser lives."""


class DevToolsLease:
    """An episode that is lent at a DevTools address. Made by `DevToolsSupply`."""

    def __init__(self, env: WebEnv, seconds: float) -> None:
        self.lease_id = uuid.uuid4().hex
        self.env = env
        self.seconds = seconds
        """Seconds without a word of a client after which it ends."""
        self.cdp_url = ""
        """``ws://`` address, for ``connect_over_cdp`` and ``puppeteer.connect``."""
        self.http_url = ""
        """The same for clients that ask ``/json/version`` first."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when it is over."""
        self.result: StepResult | None = None
        """The page at the end: graded if the lease was closed, without a reward if it was not."""
        self._address: DevToolsAddress | None = None
        self._closing = asyncio.Event()
        self._action: AnyAction | None = None

    @property
    def idle(self) -> float:
        """Seconds since a client last said something."""
        return 0.0 if self._address is None else time.monotonic() - self._address.used_at

    def describe(self) -> dict[str, Any]:
        """Return what a client needs to know, as JSON."""
        return {
            "lease_id": self.lease_id,
            "cdp_url": self.cdp_url,
            "http_url": self.http_url,
            "lease_seconds": self.seconds,
            "task_id": self.env.task.task_id,
            "instruction": self.env.task.instruction,
        }


class DevToolsSupply:
    """Lends episodes on the browsers of a host; used in ``async with`` in its event loop."""

    def __init__(self, host: EnvHost, /, *, lease_seconds: float = LEASE_SECONDS, **server_options: Any) -> None:
        """
        Args:
            lease_seconds: Seconds without a word of a client after which a lease ends.
            server_options: The same as of `DevToolsServer`: host, port and name of the listener.
        """
        self._host = host
        self._seconds = lease_seconds
        self._server = DevToolsServer(**server_options)
        self._leases: dict[str, DevToolsLease] = {}
        self._holding: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for lease in list(self._leases.values()):
            lease._closing.set()
        await asyncio.gather(*self._holding, return_exceptions=True)  # each has logged its error
        await self._server.__aexit__()

    @property
    def leases(self) -> dict[str, DevToolsLease]:
        """The leases that are not over, by id."""
        return dict(self._leases)

    async def open(
        self, task: str | WebTask, *, seed: int | None = None, lease_seconds: float | None = None, **options: Any
    ) -> DevToolsLease:
        """Begin an episode of a task and lend it.

        Args:
            task: The same as of `envs.open_env`; ``live/<host>`` for a browser without a task.
            options: The same as of `envs.EnvHost.open`.

        Raises:
            CapacityError: All sessions are in use, and none became free in time.
            TaskError, ConfigError, BrowserError: The errors of `envs.open_env` and ``reset``.
        """
        env = await self._host.open(task, seed=seed, **options)
        try:
            await env.reset()
            return await self._lend(env, lease_seconds, own=True)
        except BaseException:
            await env.close()
            raise

    async def offer(self, env: WebEnv, *, lease_seconds: float | None = None) -> DevToolsLease:
        """Lend the page of an environment whose episode is going on; `close` gives it back.

        The environment is left open at the lease's end.

        Raises:
            TaskError: No episode is going on, or it is lent already.
            BrowserError: The browser or the page failed.
        """
        return await self._lend(env, lease_seconds, own=False)

    async def close(self, lease_id: str, action: AnyAction | None = None) -> StepResult:
        """End a lease and return the graded end of its episode, or the page of an offered one.

        Args:
            action: Last action of the episode, such as an `Answer`, where the page has not declared
                the end; `Terminate` if not given. None is done for an environment that was offered.

        Raises:
            TaskError: There is no such lease, or it is over.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.ended.done():
            raise TaskError(f"no lease {lease_id!r}: there is none with this id, or it is over")
        lease._action = action
        lease._closing.set()
        why = await asyncio.shield(lease.ended)
        if lease.result is None:
            raise BrowserError(f"lease {lease_id!r} ended without a page: {why}")
        return lease.result

    async def _lend(self, env: WebEnv, seconds: float | None, *, own: bool) -> DevToolsLease:
        seconds = self._seconds if seconds is None else seconds
        if not 0 < seconds <= MAX_LEASE_SECONDS:
            raise ConfigError(f"lease_seconds: {seconds:g}; give more than 0 and at most {MAX_LEASE_SECONDS:g}")
        lease = DevToolsLease(env, seconds)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leases[lease.lease_id] = lease
        start_background(self._hold(lease, opened, own=own), self._holding, f"lease {lease.lease_id}")
        try:
            await asyncio.shield(opened)
        except asyncio.CancelledError:
            lease._closing.set()  # the caller never gets it
            raise
        return lease

    async def _hold(self, lease: DevToolsLease, opened: asyncio.Future[None], *, own: bool) -> None:
        """Lend until the lease is over; then keep the result, and close the environment if it is
        ours."""
        why = "it failed"
        try:
            try:
                async with lease.env.lend() as lent, self._server.offer(lent) as address:
                    lease.cdp_url, lease.http_url, lease._address = address.cdp_url, address.http_url, address
                    opened.set_result(None)
                    why = await _over(lease, address)
            except Exception as error:
                if not opened.done():
                    opened.set_exception(error)
                    return
                if not isinstance(error, BrowserError):
                    raise
                why = str(error)
            try:
                lease.result = await _result(lease, why, own=own)
            except TaskError:
                why = "its environment was closed"
        finally:
            del self._leases[lease.lease_id]
            try:
                if own and opened.done() and opened.exception() is None:
                    await lease.env.close()
            finally:
                lease.ended.set_result(why)


async def _over(lease: DevToolsLease, address: DevToolsAddress) -> str:
    """Wait until a lease is over; return why."""
    while True:
        left = address.used_at + lease.seconds - time.monotonic()
        if address.lent.context.lost:
            return "its browser or page is gone"
        if left <= 0:
            return f"no client said anything for {lease.seconds:g} s"
        try:
            async with asyncio.timeout(min(left, LOOK_SECONDS)):
                await lease._closing.wait()
                return "it was closed"
        except TimeoutError:
            continue


async def _result(lease: DevToolsLease, why: str, *, own: bool) -> StepResult:
    """Return the end of a lease's episode. One that was not closed has no reward."""
    step = await lease.env.observe()
    if step.done or not own:
        return step
    if lease._closing.is_set():
        return await lease.env.step(lease._action or Terminate())
    return replace(step, reward=None, done=True, abstained=f"the lease ended: {why}")


@asynccontextmanager
async def open_devtools(
    host: EnvHost, task: str | WebTask, *, server_options: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[DevToolsLease]:
    """Lend one episode: ``async with open_devtools(host, task, seed=7) as lease``.

    At the end `DevToolsLease.result` is the graded episode.

    Args:
        server_options: Options of `DevToolsServer`.
        options: Options of `DevToolsSupply.open`.

    Raises:
        CapacityError, TaskError, ConfigError, BrowserError: The errors of `DevToolsSupply.open`.
    """
    async with DevToolsSupply(host, **(server_options or {})) as supply:
        lease = await supply.open(task, **options)
        try:
            yield lease
        finally:
            if lease.lease_id in supply.leases:
                await supply.close(lease.lease_id)
