"""Environment servers on the workers of a Dask cluster, as the nodes of a master.

See the drawing in `tasks_lib.worker.environment_node`. A worker that joins later gets a server too.
When a worker dies, requests to its sessions are refused as closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import distributed

from envs.server import EnvServerOptions, Master
from envs.types import BrowserError, FailureLog, RollwrightError
from tasks_lib.processes.dask_clients import BROWSER_RESOURCE, run_on_workers
from tasks_lib.worker.environment_node import close_node, drain_node, node_address, serve_node

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two looks at the cluster's workers."""

START_SECONDS = 300.0
"""Seconds in which the first server must serve."""

RETRY_SECONDS = 30.0
"""Seconds after which a server that failed is started again."""

SESSIONS_OF_A_BROWSER = 16
"""Largest number of sessions that share a Chromium."""

CLOSE_SECONDS = 10.0
"""Seconds that servers get to close what is left after the drain."""


class EnvironmentNodes:
    """The servers on a cluster's workers; used in ``async with nodes.watched()``."""

    def __init__(self, client: distributed.Client, master: Master, options: EnvServerOptions) -> None:
        """
        Args:
            client: Client of the cluster.
            master: Gets the servers as nodes.
            options: Options of every server. Its number of sessions is another one: one for each
                unit of its worker's ``browser`` resource.
        """
        self._client, self._master, self._options = client, master, options
        self._tasks: dict[str, distributed.Future] = {}
        self._urls: dict[str, str] = {}
        self._failures: dict[str, tuple[float, RollwrightError]] = {}
        """Time at which a worker's server is tried again, and why it failed."""

    @property
    def draining(self) -> bool:
        """True once no session is opened any more."""
        return self._master.draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self._master.draining = value

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Start a server on every worker, and follow the workers until the block ends.

        The block is entered once one server is ready. All servers are stopped at its end.

        Raises:
            RollwrightError: None started.
        """
        try:
            await self._first()
            watching = asyncio.create_task(self._watch())
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.wait({watching})
        finally:
            await asyncio.to_thread(self._close)

    async def drain(self, seconds: float) -> int:
        """Have all servers drain, and wait for their ends.

        Args:
            seconds: Seconds that open sessions get.

        Returns:
            Number of sessions that are still open.
        """
        self.draining = True
        await asyncio.to_thread(self._tell, drain_node)
        end = time.monotonic() + seconds
        while any(not task.done() for task in self._tasks.values()) and time.monotonic() < end:
            await asyncio.sleep(0.1)
        return sum(node.sessions for node in self._master.nodes.values() if node.reachable)

    async def _first(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._urls:
            await self._look()
            failed = [error for _, error in self._failures.values()]
            if failed and not self._tasks:
                raise failed[0]
            if time.monotonic() > end:
                raise BrowserError(
                    f"no worker of {self._client.scheduler.address} began to serve within {START_SECONDS:g} s: "
                    f"rollouts may hold their {BROWSER_RESOURCE!r} places"
                )
            await asyncio.sleep(0.2)

    async def _watch(self) -> None:
        failures = FailureLog(logger, f"a look at the workers failed; the next one is in {LOOK_SECONDS:g} s")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
                failures.note(None)
            except (OSError, TimeoutError) as error:
                logger.warning("the Dask scheduler does not answer: %s", error)
            except Exception as error:  # the watch goes on: sessions are open
                failures.note(error)

    async def _look(self) -> None:
        """Follow the cluster's workers, and give the master what changed."""
        answered = await asyncio.to_thread(self._follow)
        for worker, url in list(self._urls.items()):
            if worker not in self._tasks or answered.get(worker, url) != url:
                logger.warning("the server of worker %s is gone, and so are its sessions: %s", worker, url)
                del self._urls[worker]
                self._master.remove_node(url)
        for worker, url in answered.items():
            if worker not in self._urls:
                logger.info("worker %s serves at %s", worker, url)
                self._urls[worker] = url
                self._master.add_node(url)

    def _follow(self) -> dict[str, str]:
        """Start servers where there are none, forget those that ended, and return the addresses of
        servers that the master does not reach, by worker. Waits for Dask."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        places = {
            address: int(worker["resources"].get(BROWSER_RESOURCE, 0))
            for address, worker in workers.items()
            if worker["status"] in ("running", "paused")
        }
        for worker, task in list(self._tasks.items()):
            if not places.get(worker):
                self._tasks.pop(worker).cancel()
            elif task.done() and not self.draining:
                self._forget(worker, task)
        for worker, number in places.items():
            due, _ = self._failures.get(worker, (0.0, None))
            if number and worker not in self._tasks and not self.draining and time.monotonic() >= due:
                self._tasks[worker] = self._submit(worker, number)
        reached = {worker for worker, url in self._urls.items() if self._master.nodes[url].reachable}
        asked = [worker for worker in self._tasks if worker not in reached]
        answers = run_on_workers(self._client, node_address, workers=asked)
        return {worker: url for worker, url in answers.items() if isinstance(url, str) and url}

    def _submit(self, worker: str, places: int) -> distributed.Future:
        browsers = math.ceil(places / SESSIONS_OF_A_BROWSER)
        options = replace(self._options, max_sessions=places, browsers=browsers)
        return self._client.submit(
            serve_node,
            options,
            workers=[worker],
            allow_other_workers=False,
            resources={BROWSER_RESOURCE: places},
            pure=False,
        )

    def _forget(self, worker: str, task: distributed.Future) -> None:
        """Forget a server that ended by itself; it is tried again later."""
        del self._tasks[worker]
        error = task.exception() if task.status == "error" else None
        if not isinstance(error, RollwrightError):
            error = BrowserError(f"the server of worker {worker} ended: {error or task.status}")
        logger.warning("worker %s does not serve: %s", worker, error)
        self._failures[worker] = time.monotonic() + RETRY_SECONDS, error

    def _tell(self, what: Any) -> None:
        if not self._tasks:
            return
        try:
            run_on_workers(self._client, what, workers=self._tasks)  # a dead one has ended
        except (OSError, TimeoutError) as error:
            logger.warning("the Dask scheduler does not answer, so the servers end by themselves: %s", error)

    def _close(self) -> None:
        """End all servers, and wait until they have."""
        self._tell(close_node)
        end = time.monotonic() + CLOSE_SECONDS
        while any(not task.done() for task in self._tasks.values()) and time.monotonic() < end:
            time.sleep(0.1)
        for task in self._tasks.values():
            task.cancel()
