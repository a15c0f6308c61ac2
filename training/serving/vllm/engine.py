"""Inference engine that generates turns on vLLM servers."""

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
"""Limit of the wait for a version that another process publishes to the servers."""
LOOK_SECONDS = 0.2
"""Pause between two checks for that version."""


class VllmEngine:
    """`Engine` over the servers of ``clients``.

    One process supervises the servers and publishes to them (`Supervisor`); every process that
    generates turns has its own engine.

    Args:
        busy: Context that is entered on the event loop during a request, for time accounting.
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
        """Number of turns, and seconds with at least one running request."""
        return replace(self._statistics)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one turn on the episode's server.

        Raises:
            EngineError: no server is available, or the chosen one failed.
            PolicyError: no version was published yet, or the request is wrong.
        """
        if self._version is None:
            raise PolicyError("the inference engine has no policy yet: call publish(version, folder) first")
        server = self._router.choose(request.episode, time.monotonic())
        if server is None:
            raise EngineError(f"no vLLM server can be asked: {', '.join(client.address for client in self._clients)}")
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
        """Wait until the supervisor has published ``version``, then request its turns.

        If the servers have only newer versions, use the newest.

        Raises:
            EngineError: the version does not arrive in time.
        """
        if version == self._version:
            return
        version = await self._arrival(version, adapter=is_adapter(folder))
        self._version, self._adapter = version, is_adapter(folder)

    async def _arrival(self, version: int, *, adapter: bool) -> int:
        """Wait until all servers that answer have this version or a newer one.

        At least one must answer. Returns the version that they have.
        """

        async def served_by(client: ServerClient) -> set[int | None]:
            return set(await client.adapters()) if adapter else {await client.weight_version()}

        until = time.monotonic() + ARRIVAL_SECONDS
        while True:
            answers = await asyncio.gather(*map(served_by, self._clients), return_exceptions=True)
            if unexpected := [
                answer
                for answer in answers
                if isinstance(answer, BaseException) and not isinstance(answer, EngineError)
            ]:
                raise unexpected[0]
            served = [versions for versions in answers if not isinstance(versions, BaseException)]
            arrived = {number for number in set.intersection(*served) if number is not None} if served else set()
            if version in arrived:
                return version
            if max(arrived, default=-1) > version:
                return max(arrived)
            if time.monotonic() > until:
                raise EngineError(
                    f"the vLLM servers do not have v{version} after {ARRIVAL_SECONDS:.0f} s; "
                    f"their answers: {list(map(str, answers))}"
                )
            await asyncio.sleep(LOOK_SECONDS)

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Keep the episode's turns on one server; forget the episode at the end."""
        return self._session(episode)

    @asynccontextmanager
    async def _session(self, episode: str) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._router.leave(episode)

    async def close(self) -> None:
        """Close the connections; the servers keep running."""
        await asyncio.gather(*(client.close() for client in self._clients))
