"""Keeps vLLM servers alive, with the current policy on each of them.

A server that ended, or does not answer, is stopped with its whole process group, started again with backoff, and gets the current version
before turns are sent to it; until then it has the weights that it was started with. Servers of somebody else are not started, but get the
current version in the same way when they come back without it. They may have served another run before: its adapters are unloaded, and the
first publication clears every cache, whose entries are named by version numbers that both runs have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from envs.types import EngineError, RollwrightError
from training.policy.adapters import base_of, is_adapter
from training.serving.vllm.adapters import publish_adapter
from training.serving.vllm.client import ServerClient
from training.serving.vllm.probe import Probe
from training.serving.vllm.process import START_SECONDS, ServerProcess
from training.serving.vllm.publishing import CONTROL_SECONDS, Publication, UpdateMode, prepare, publish

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at a server."""
ANSWER_SECONDS = 60.0
"""A server that is silent for so long is started again. Seconds of silence are no sign: its HTTP side starves on a busy machine."""
FIRST_BACKOFF = 1.0
MAX_BACKOFF = 60.0
"""Seconds before a start: after the first one that failed, and at most."""
SLEEP_LEVEL = 1
"""vLLM's: weights are kept in the machine's memory, so that adapters find their base model again."""
BASE_VERSION = 0
"""Of the whole model that a run's adapters belong to."""


@dataclass(slots=True)
class Replica:
    """One server, and how it is."""

    client: ServerClient
    process: ServerProcess | None = None
    """``None``: somebody else's."""
    ready: bool = False
    """It serves the current version."""
    starts: int = 0
    fault: str = ""
    """Why it was last given up."""
    watcher: asyncio.Task[None] | None = field(default=None, repr=False)


class Supervisor:
    """Servers as one service: started, published to, watched and stopped together.

    Args:
        weights_root: Policies are published from folders below it.
        update, together: as `publish`.
        probe: Run after every publication; ``None``: nobody checks what is served.
        answer_seconds: A server that is silent for so long is started again.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        weights_root: Path,
        *,
        update: UpdateMode = "exact",
        together: bool = True,
        probe: Probe | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.replicas = tuple(replicas)
        self._root = weights_root
        self._update: UpdateMode = update
        self._together = together
        self._probe = probe
        self._answer_seconds = answer_seconds
        self._start_seconds = start_seconds
        self._served: tuple[int, Path] | None = None
        self._held: tuple[int, Path] | None = None
        """A version that is kept beside the one that is served, and its folder."""
        self._changing = asyncio.Lock()
        self.asleep = False
        """The servers have given their GPUs' memory away."""

    @property
    def served(self) -> tuple[int, Path] | None:
        """The version that is served and its folder; ``None`` before the first."""
        return self._served

    async def start(self, version: int, folder: Path) -> None:
        """Start every server that does not run, publish a policy to all of them, and watch them from then on.

        Raises:
            EngineError: a server does not start; the others are stopped.
            ConfigError, PolicyError: a server cannot serve this policy; all are stopped.
        """
        try:
            await self._start_all()
            await self.publish(version, folder)
        except BaseException:
            await self.close()
            raise
        for replica in self.replicas:
            replica.watcher = asyncio.create_task(self._watch(replica))

    async def _start_all(self) -> None:
        """All at once; the first fault ends the others' starts."""
        starts = [asyncio.create_task(self._start(replica)) for replica in self.replicas]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    async def _start(self, replica: Replica) -> None:
        replica.starts += 1
        if replica.process is not None:
            if not replica.process.alive:
                replica.process.start()
            await replica.process.wait_until_healthy(self._start_seconds)
        await prepare(replica.client, self._root)
        if replica.starts == 1:
            for version in await replica.client.adapters():
                await replica.client.unload_adapter(version, CONTROL_SECONDS)

    async def publish(self, version: int, folder: Path) -> Publication:
        """Serve a checkpoint folder as ``version`` on all servers that live; the others get it when they are back.

        Raises:
            PolicyError: a server refuses the folder, or its log-probs are not the checkpoint's; the last good version is served.
            StorageError: the folder's manifest is damaged; the same.
            EngineError: no server lives.
        """
        async with self._changing:
            if self.asleep:  # before: weights that are loaded into a sleeping server end it
                await self._wake()
            first = self._served is None
            replicas = [replica for replica in self.replicas if first or replica.ready]
            if not replicas:
                raise EngineError(f"v{version} cannot be published: {self.faults()}")
            try:
                clients = [replica.client for replica in replicas]
                publication = await self._give(clients, version, folder, used=first and not_ours(replicas))
            except EngineError as error:  # none of them answers: they are started again
                for replica in replicas:
                    replica.ready, replica.fault = False, str(error)
                raise
            except RollwrightError:
                await self._go_back(replicas)
                raise
            self._served = version, folder
            for replica in replicas:
                replica.ready = replica.client.address not in publication.failed
            return publication

    async def hold(self, version: int, folder: Path) -> None:
        """Keep the adapter of a version on all servers beside the one that is served, until another one is held.

        The base model of a run's adapters is always there.

        Raises:
            PolicyError: a server refuses it.
            EngineError: no server lives.
        """
        async with self._changing:
            self._held = version, folder
            clients = [replica.client for replica in self.replicas if replica.ready]
            if not clients:
                raise EngineError(f"v{version} cannot be loaded: {self.faults()}")
            if is_adapter(folder):  # on one that dies of it its watcher loads it again
                await publish_adapter(clients, version, folder)

    async def sleep(self) -> None:
        """Give the GPUs' memory away until the next publication: weights go to the machine's memory, what is cached is lost.

        Nobody may ask for a turn meanwhile; a server that dies is started again afterwards.

        Raises:
            PolicyError: a server refuses; it was started without ``--enable-sleep-mode``.
            EngineError: a server does not answer.
        """
        async with self._changing:
            self.asleep = True
            for replica in self.replicas:
                if replica.ready:
                    await replica.client.post("/sleep", CONTROL_SECONDS, params={"level": SLEEP_LEVEL})

    async def _wake(self) -> None:
        """One that does not is started again by its watcher."""
        for replica in self.replicas:
            if replica.ready:
                try:
                    await replica.client.post("/wake_up", CONTROL_SECONDS)
                except RollwrightError as error:
                    replica.ready, replica.fault = False, f"it does not wake up: {error}"
        self.asleep = False

    async def _give(self, clients: Sequence[ServerClient], version: int, folder: Path, *, used: bool) -> Publication:
        """Publish and probe; ``used``: they may have the weights and caches of another run."""
        publication = await self._publish(clients, version, folder, used=used)
        if self._probe is not None:
            alive = [client for client in clients if client.address not in publication.failed]
            result = await self._probe.check(alive, version, folder)
            logger.info(
                "v%d is served: log-probs differ by %.1e in the mean, %.1e at most",
                version,
                result.mean,
                result.maximum,
            )
            return replace(publication, failed={**publication.failed, **result.failed})
        return publication

    async def _publish(
        self, clients: Sequence[ServerClient], version: int, folder: Path, *, used: bool = False
    ) -> Publication:
        update: UpdateMode = "exact" if used else self._update
        if not is_adapter(folder):
            return await publish(clients, version, folder, update=update, together=self._together)
        base = base_of(folder)
        if used and base.is_relative_to(self._root.resolve()):
            await publish(clients, BASE_VERSION, base, update=update, together=self._together)
        return await publish_adapter(clients, version, folder, keep={self._held[0]} if self._held else ())

    async def _go_back(self, replicas: Sequence[Replica]) -> None:
        """Serve the last good version again; a server that cannot is started again by its watcher."""
        if self._served is None:
            return
        for replica in replicas:
            try:
                await self._publish([replica.client], *self._served)
            except RollwrightError as error:
                replica.ready, replica.fault = False, f"it does not go back to v{self._served[0]}: {error}"

    def faults(self) -> str:
        """Why servers are down, in one line."""
        said = [f"{each.client.address}: {each.fault or 'starting'}" for each in self.replicas if not each.ready]
        return "; ".join(said) or "no server is down"

    async def _watch(self, replica: Replica) -> None:
        """Look at one server for ever; start it again when it failed."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.asleep:
                continue
            if fault := await self._fault(replica):
                replica.ready, replica.fault = False, fault
                logger.warning("%s: %s; it is started again", replica.client.address, fault)
                await self._bring_back(replica)

    async def _fault(self, replica: Replica) -> str:
        """What is wrong with a server; empty: nothing."""
        if replica.process is not None and not replica.process.alive:
            return f"it ended ({replica.process.reason()})"
        if self._changing.locked():
            return ""  # loading weights takes as long as it takes
        if not replica.ready:
            return replica.fault or "it failed at a publication"
        try:
            await replica.client.check_alive(self._answer_seconds)
            serves = self._served is None or await self._serves(replica.client, *self._served)
        except RollwrightError as error:
            return "" if self._changing.locked() else str(error)
        if not serves and not self._changing.locked():
            return f"it does not serve v{self._served[0] if self._served else None}: it was restarted, or another one published to it"
        return ""

    async def _serves(self, client: ServerClient, version: int, folder: Path) -> bool:
        return version in await client.adapters() if is_adapter(folder) else version == await client.weight_version()

    async def _bring_back(self, replica: Replica) -> None:
        """Stop, start, and give the current version; until it works."""
        backoff = FIRST_BACKOFF
        while not replica.ready:
            try:
                if replica.process is not None:
                    await replica.process.stop()
                await self._start(replica)
                async with self._changing:
                    assert self._served is not None
                    if self._held is not None and is_adapter(self._held[1]):  # first: one that has the other is asked
                        await publish_adapter([replica.client], *self._held)
                    await self._give([replica.client], *self._served, used=not_ours([replica]))
                    replica.ready = True
            except RollwrightError as error:
                replica.fault = str(error)
                logger.warning("%s: %s; the next try is in %.0f s", replica.client.address, error, backoff)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF)

    async def close(self) -> None:
        """Stop watching, stop every server of ours with all its processes, close the connections."""
        watchers = [replica.watcher for replica in self.replicas if replica.watcher is not None]
        for watcher in watchers:
            watcher.cancel()
        for watcher in watchers:
            with suppress(asyncio.CancelledError):
                await watcher
        await asyncio.gather(*(replica.process.stop() for replica in self.replicas if replica.process is not None))
        await asyncio.gather(*(replica.client.close() for replica in self.replicas))
        for replica in self.replicas:
            replica.ready = False


def not_ours(replicas: Sequence[Replica]) -> bool:
    """They are servers of somebody else."""
    return any(replica.process is None for replica in replicas)
