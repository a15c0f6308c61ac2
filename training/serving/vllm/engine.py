"""Inference engine that generates turns on vLLM servers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from pathlib import Path

from envs.types import ConfigError, EngineError, PolicyError
from training.policy.adapters import is_adapter
from training.serving.engine import EngineStatistics, Generation, GenerationRequest
from training.serving.vllm.client import ServerClient
from training.serving.vllm.router import Router

ARRIVAL_SECONDS = 600.0
"""Limit of the wait for a version that another process publishes to the servers."""
LOOK_SECONDS = 0.2
"""Pause between two checks for that version."""
FOLLOW_SECONDS = 1.0
"""Pause between two checks of servers that are left out."""

logger = logging.getLogger(__name__)

_Answer = set[int] | EngineError | ConfigError
"""Versions that a server has, or its fault."""


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
        self._adapter = self._or_newer = False
        self._following: asyncio.Task[None] | None = None
        """Checks of the servers that are left out."""

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
        request.began()
        failed = False
        try:
            with self._busy(), self._counted():
                return await self._turn(server, request, self._version)
        except EngineError:
            failed = True
            raise
        except ConfigError as error:
            if len(self._clients) == 1:
                raise
            failed = True  # other servers can be asked
            raise EngineError(str(error)) from error
        finally:
            self._router.end(server, time.monotonic(), failed=failed)

    async def _turn(self, server: int, request: GenerationRequest, version: int) -> Generation:
        """Generate a turn. A server whose tokens are of an older version is left out."""
        turn = await self._clients[server].generate(request, version, adapter=self._adapter)
        if (oldest := min((span.version for span in turn.version_spans), default=version)) < version:
            self._leave_out({*self._router.left_out, server})
            raise EngineError(f"{self._clients[server].address} has gone back to v{oldest}: v{version} was requested")
        return turn

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

    async def publish(self, version: int, folder: Path, *, or_newer: bool = False) -> None:
        """Wait until a server has ``version``, then request its turns.

        Servers without it get no turns until they have it.

        Args:
            or_newer: Be content with the servers' newest version if that is newer.

        Raises:
            EngineError: no server has the version in time.
            ConfigError: all servers refuse what they are asked, for a reason that lasts.
        """
        adapter, self._or_newer = is_adapter(folder), or_newer
        if version == self._version and adapter == self._adapter:
            return
        self._version, behind = await self._arrival(version, adapter)
        self._adapter = adapter
        self._leave_out(behind)

    async def _arrival(self, version: int, adapter: bool) -> tuple[int, set[int]]:
        """Wait until a server has this version, or a newer one in its place.

        Returns the version, and the servers that do not have it.
        """
        until = time.monotonic() + ARRIVAL_SECONDS
        while True:
            answers = await self._answers(range(len(self._clients)), adapter)
            if len(wrong := [answer for answer in answers.values() if isinstance(answer, ConfigError)]) == len(answers):
                raise wrong[0]
            held = {number for answer in answers.values() if isinstance(answer, set) for number in answer}
            if version in held or (self._or_newer and max(held, default=-1) > version):
                arrived = version if version in held else max(held)
                return arrived, {
                    server for server, answer in answers.items() if not self._has(answer, arrived, adapter)
                }
            if time.monotonic() > until:
                raise EngineError(
                    f"no vLLM server has v{version} after {ARRIVAL_SECONDS:.0f} s; their answers: "
                    f"{[str(answer) for answer in answers.values()]}"
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def _answers(self, servers: Iterable[int], adapter: bool) -> dict[int, _Answer]:
        """Return the versions that each server has, or its fault."""

        async def ask(server: int) -> _Answer:
            client = self._clients[server]
            try:
                held = await client.adapters() if adapter else [await client.weight_version()]
            except (EngineError, ConfigError) as error:
                return error
            return {number for number in held if number is not None}

        chosen = list(servers)
        return dict(zip(chosen, await asyncio.gather(*map(ask, chosen)), strict=True))

    def _has(self, answer: _Answer, version: int, adapter: bool) -> bool:
        """Return True if a server can generate turns of a version, by its answer."""
        if not isinstance(answer, set):
            return False
        # Weights that are newer take the place of older ones; an adapter is requested by its name.
        newer = self._or_newer and not adapter
        return version in answer or (newer and max(answer, default=-1) > version)

    def _leave_out(self, servers: set[int]) -> None:
        """Give these servers no turns until they have the current version."""
        for server in sorted(servers - self._router.left_out):
            address = self._clients[server].address
            logger.warning("%s does not have v%s: it gets no turns until it does", address, self._version)
        self._router.leave_out(servers)
        if servers and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Take servers back that were left out, each once it has the current version."""
        while self._router.left_out:
            await asyncio.sleep(FOLLOW_SECONDS)
            version, adapter = self._version, self._adapter
            answers = await self._answers(self._router.left_out, adapter)
            if version is None or version != self._version:
                continue  # another version was published meanwhile
            for server, answer in answers.items():
                if self._has(answer, version, adapter):
                    logger.warning("%s has v%d now, and gets turns again", self._clients[server].address, version)
                    self._router.leave_out(self._router.left_out - {server})

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
        if self._following is not None:
            self._following.cancel()
        await asyncio.gather(*(client.close() for client in self._clients))
