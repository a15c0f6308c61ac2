"""The inference engine that generates turns on vLLM servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from pathlib import Path

from envs.types import EngineError, PolicyError
from training.policy.adapters import is_adapter
from training.serving.engine import EngineStatistics, Generation, GenerationRequest
from training.serving.vllm.client import ServerClient
from training.serving.vllm.router import Router

ARRIVAL_SECONDS = 600.0
"""A version that another process publishes may take so long until the servers have it."""
LOOK_SECONDS = 0.2


class VllmEngine:
    """An `Engine` over the servers of ``clients``.

    The servers are looked after by one process (`Supervisor`), which also publishes; every process that generates turns has an engine of
    its own.

    Args:
        busy: Entered on the event loop while a turn is waited for: for those who account for time.
    """

    def __init__(
        self,
        clients: Sequence[ServerClient],
        *,
        busy: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._clients = tuple(clients)
        self._busy = busy
        self._router = Router(len(clients))
        self._statistics = EngineStatistics()
        self._running, self._since = 0, 0.0
        self._version: int | None = None
        self._adapter = False

    @property
    def statistics(self) -> EngineStatistics:
        """Turns, and the seconds in which at least one was waited for."""
        return replace(self._statistics)

    async def generate(self, request: GenerationRequest) -> Generation:
        """One turn, at the episode's server.

        Raises:
            EngineError: no server can be asked, or the one that was asked failed.
            PolicyError: nothing was published yet, or the request is wrong.
        """
        if self._version is None:
            raise PolicyError("the inference engine has no policy yet: call publish(version, folder) first")
        server = self._router.choose(request.episode, time.monotonic())
        if server is None:
            raise EngineError(f"no vLLM server can be asked: {', '.join(each.address for each in self._clients)}")
        self._router.begin(server)
        failed = False
        try:
            with self._busy(), self._counted():
                return await self._clients[server].generate(request, self._version, adapter=self._adapter)
        except EngineError:
            failed = True
            raise
        finally:
            self._router.end(server, time.monotonic(), failed=failed)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if not self._running:
            self._since = time.monotonic()
        self._running += 1
        try:
            yield
            self._statistics.turns += 1
        finally:
            self._running -= 1
            if not self._running:
                self._statistics.seconds += time.monotonic() - self._since

    async def publish(self, version: int, folder: Path) -> None:
        """Wait until the servers have ``version``, which the supervisor publishes, and ask for its turns from then on.

        Where they have only newer ones already, the newest is used.

        Raises:
            EngineError: the version does not arrive.
        """
        if version == self._version:
            return
        version = await self._arrival(version, adapter=is_adapter(folder))
        self._version, self._adapter = version, is_adapter(folder)

    async def _arrival(self, version: int, *, adapter: bool) -> int:
        """Wait until every server that answers has this version or a newer one, and at least one answers; which it is."""

        async def served_by(client: ServerClient) -> set[int | None]:
            return set(await client.adapters()) if adapter else {await client.weight_version()}

        until = time.monotonic() + ARRIVAL_SECONDS
        while True:
            answers = await asyncio.gather(*map(served_by, self._clients), return_exceptions=True)
            if unexpected := [
                each for each in answers if isinstance(each, BaseException) and not isinstance(each, EngineError)
            ]:
                raise unexpected[0]
            served = [each for each in answers if not isinstance(each, BaseException)]
            arrived = {each for each in set.intersection(*served) if each is not None} if served else set()
            if version in arrived:
                return version
            if max(arrived, default=-1) > version:
                return max(arrived)
            if time.monotonic() > until:
                raise EngineError(
                    f"the vLLM servers do not have v{version} after {ARRIVAL_SECONDS:.0f} s: they say {list(map(str, answers))}"
                )
            await asyncio.sleep(LOOK_SECONDS)

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """While it is open, the episode's turns go to one server."""
        return self._session(episode)

    @asynccontextmanager
    async def _session(self, episode: str) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._router.leave(episode)

    async def close(self) -> None:
        """Close the connections; the servers go on."""
        await asyncio.gather(*(client.close() for client in self._clients))
