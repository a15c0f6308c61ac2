"""Keeps vLLM servers alive, with the current policy on each of them.

A server that ended or does not answer is stopped with its whole process group and started again
with backoff. It gets the current version before it gets turns, because it starts with other
weights. Servers of somebody else are not started, but they get the current version in the same way
when they come back without it. They may have served another run before, whose version numbers also
name their cache entries. So their adapters are unloaded first, and the first publication clears
every cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from envs.types import EngineError, PolicyError, RollwrightError
from training.policy.adapters import base_of, is_adapter, whole_model_of
from training.serving.vllm.adapters import publish_adapter
from training.serving.vllm.checksums import compare_adapter, compare_weights
from training.serving.vllm.client import ServerClient
from training.serving.vllm.probe import Probe
from training.serving.vllm.process import START_SECONDS, ServerProcess
from training.serving.vllm.publishing import CONTROL_SECONDS, Publication, UpdateMode, prepare, publish

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between two checks of a server."""
ANSWER_SECONDS = 60.0
"""Silence after which a server is restarted. Shorter silences are normal on a busy machine."""
FIRST_BACKOFF = 1.0
"""Seconds before the second start of a server whose start failed."""
MAX_BACKOFF = 60.0
"""Longest pause in seconds between two starts."""
SLEEP_LEVEL = 1
"""Sleep level of vLLM that keeps weights in the machine's memory. After it adapters find their base
model again."""
BASE_VERSION = 0
"""Version of the whole model that a run's adapters belong to."""


@dataclass(slots=True)
class Replica:
    """One server and its state."""

    client: ServerClient
    process: ServerProcess | None = None
    """Process of our own server; ``None`` for a foreign server."""
    ready: bool = False
    """True if it serves the current version."""
    start_count: int = 0
    fault: str = ""
    """Reason of its last failure."""
    watcher: asyncio.Task[None] | None = field(default=None, repr=False)


class Supervisor:
    """Starts, updates, watches and stops a run's servers together.

    Args:
        weights_root: Folder below which all published policies lie.
        update, together, limit: see `publish`.
        probe: Check of log-probs after every publication; ``None``: no check.
        checksums: Compare the servers' weights with the checkpoint after every publication.
        answer_seconds: Silence after which a server is restarted.
        start_seconds: Limit of a server's start.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        weights_root: Path,
        *,
        update: UpdateMode = "exact",
        together: bool = True,
        limit: float = 0.0,
        probe: Probe | None = None,
        checksums: bool = False,
        answer_seconds: float = ANSWER_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.replicas = tuple(replicas)
        self._root = weights_root
        self._update: UpdateMode = update
        self._together, self._limit = together, limit
        self._probe, self._checksums = probe, checksums
        self._answer_seconds, self._start_seconds = answer_seconds, start_seconds
        self._served: tuple[int, Path] | None = None
        self._before: tuple[int, Path] | None = None
        """Version (and its folder) that was served before the served one."""
        self._held: tuple[int, Path] | None = None
        """Version (and its folder) that is kept beside the served one."""
        self._changing = asyncio.Lock()
        self.asleep = False
        """True while the servers have released their GPUs' memory."""

    @property
    def served(self) -> tuple[int, Path] | None:
        """Served version and its folder; ``None`` before the first publication."""
        return self._served

    async def start(self, version: int, folder: Path) -> None:
        """Start the servers, publish a policy to all of them and begin to watch them.

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
        """Start all servers at once; the first fault cancels the other starts."""
        start_tasks = [asyncio.create_task(self._start(replica)) for replica in self.replicas]
        try:
            await asyncio.gather(*start_tasks)
        finally:
            for task in start_tasks:
                task.cancel()
            await asyncio.gather(*start_tasks, return_exceptions=True)

    async def _start(self, replica: Replica) -> None:
        replica.start_count += 1
        if replica.process is not None:
            if not replica.process.alive:
                replica.process.start()
            await replica.process.wait_until_healthy(self._start_seconds)
        await prepare(replica.client, self._root)
        if replica.start_count == 1:
            for version in await replica.client.adapters():
                await replica.client.unload_adapter(version, CONTROL_SECONDS)

    async def publish(self, version: int, folder: Path) -> Publication:
        """Serve a checkpoint folder as ``version`` on all live servers.

        The others get it after their restart, and so do servers that hold other weights
        afterwards.

        Raises:
            PolicyError: every server refuses the folder, or none gives the checkpoint's log-probs;
                the last good version is served again.
            StorageError: the folder's manifest is damaged; the last good version is served again.
            EngineError: no server is alive.
        """
        async with self._changing:
            if self.asleep:  # weights that are loaded into a sleeping server crash it
                await self._wake()
            first = self._served is None
            replicas = [replica for replica in self.replicas if first or replica.ready]
            if not replicas:
                raise EngineError(f"v{version} cannot be published: {self.faults()}")
            try:
                publication = await self._publish_and_probe(
                    replicas, version, folder, used=first and any(one.process is None for one in replicas)
                )
            except EngineError as error:  # no server answers; their watchers restart them
                for replica in replicas:
                    replica.ready, replica.fault = False, str(error)
                raise
            except RollwrightError:
                await self._go_back(replicas)
                raise
            if not first and self._served != (version, folder):
                self._before = self._served
            self._served = version, folder
            for replica in replicas:
                fault = publication.failed.get(replica.client.address)
                replica.ready, replica.fault = fault is None, str(fault or "")
            return publication

    async def hold(self, version: int, folder: Path) -> None:
        """Keep a version's adapter on all servers beside the served one.

        It stays until another one is held. The base model of a run's adapters is always loaded.

        Raises:
            PolicyError: a server refuses the adapter.
            EngineError: no server is alive.
        """
        async with self._changing:
            self._held = version, folder
            clients = [replica.client for replica in self.replicas if replica.ready]
            if not clients:
                raise EngineError(f"v{version} cannot be loaded: {self.faults()}")
            if is_adapter(folder):  # the watcher of a server that crashes here loads it again
                await publish_adapter(clients, version, folder, limit=self._limit)

    async def sleep(self) -> None:
        """Release the GPUs' memory until the next publication.

        Weights move to the machine's memory, and caches are lost. No turn may be requested
        meanwhile; a server that dies is restarted afterwards.

        Raises:
            PolicyError: a server refuses, because it was started without ``--enable-sleep-mode``.
            EngineError: a server does not answer.
        """
        async with self._changing:
            self.asleep = True
            for replica in self.replicas:
                if replica.ready:
                    await replica.client.post("/sleep", CONTROL_SECONDS, params={"level": SLEEP_LEVEL})

    async def _wake(self) -> None:
        """Wake all servers; a watcher restarts a server that does not wake up."""
        for replica in self.replicas:
            if replica.ready:
                try:
                    await replica.client.post("/wake_up", CONTROL_SECONDS)
                except RollwrightError as error:
                    replica.ready, replica.fault = False, f"it does not wake up: {error}"
        self.asleep = False

    async def _publish_and_probe(
        self, replicas: Sequence[Replica], version: int, folder: Path, *, used: bool
    ) -> Publication:
        """Publish and check. ``used``: the servers may hold weights and caches of another run."""
        publication = await self._publish([replica.client for replica in replicas], version, folder, used=used)
        logger.info("%s", publication)
        loaded = [replica for replica in replicas if replica.client.address not in publication.failed]
        try:
            failed = await self._check([replica.client for replica in loaded], version, folder)
        except PolicyError as error:
            if self._served == (version, folder):  # others serve it
                for replica in loaded:
                    await self._withdraw(replica, version, folder, error)
            raise
        for replica in loaded:
            if isinstance(fault := failed.get(replica.client.address), PolicyError):
                await self._withdraw(replica, version, folder, fault)
        return replace(publication, failed={**publication.failed, **failed})

    async def _check(self, clients: Sequence[ServerClient], version: int, folder: Path) -> dict[str, RollwrightError]:
        """Compare what servers hold with the checkpoint. Return faults, by address.

        Raises:
            PolicyError, EngineError: no server is right.
        """
        failed = dict[str, RollwrightError]()
        if self._checksums:
            sums = await compare_weights(clients, version, whole_model_of(folder))
            failed.update(sums.failed)
            if is_adapter(folder):
                sums = await compare_adapter(_without(clients, failed), version, folder)
                failed.update(sums.failed)
            logger.info("v%d: servers hold %d of %d tensors as the checkpoint", version, sums.compared, sums.tensors)
        if self._probe is not None:
            result = await self._probe.check(_without(clients, failed), version, folder)
            failed.update(result.failed)
            logger.info("v%d: log-probs differ by %.1e in the mean, %.1e at most", version, result.mean, result.maximum)
        return failed

    async def _withdraw(self, replica: Replica, version: int, folder: Path, fault: PolicyError) -> None:
        """Keep a server with other weights from giving turns of a version. Its watcher mends it.

        Raises ``fault`` if it is somebody else's server, which never had another version.
        """
        earlier = [served for served in (self._served, self._before) if served is not None and served[0] != version]
        if replica.process is None and not is_adapter(folder) and not earlier:
            raise fault
        logger.warning("%s", fault)
        try:
            if replica.process is not None:
                await replica.process.stop()
            elif is_adapter(folder):
                await replica.client.unload_adapter(version, CONTROL_SECONDS)
            else:
                await self._publish([replica.client], *earlier[0])
        except RollwrightError as error:
            logger.warning("%s: %s", replica.client.address, error)

    async def _publish(
        self, clients: Sequence[ServerClient], version: int, folder: Path, *, used: bool = False
    ) -> Publication:
        update: UpdateMode = "exact" if used else self._update
        load = partial(publish, clients, update=update, together=self._together, limit=self._limit)
        if not is_adapter(folder):
            return await load(version, folder)
        base = base_of(folder)
        if used and base.is_relative_to(self._root.resolve()):
            await load(BASE_VERSION, base)
        keep = {self._held[0]} if self._held else ()
        return await publish_adapter(clients, version, folder, keep=keep, limit=self._limit)

    async def _go_back(self, replicas: Sequence[Replica]) -> None:
        """Serve the last good version again; a watcher restarts a server that cannot."""
        if self._served is None:
            return
        for replica in replicas:
            try:
                await self._publish([replica.client], *self._served)
            except RollwrightError as error:
                replica.ready, replica.fault = False, f"it does not go back to v{self._served[0]}: {error}"

    @property
    def behind(self) -> tuple[str, ...]:
        """Addresses of the servers that do not serve the current version."""
        return tuple(replica.client.address for replica in self.replicas if not replica.ready)

    def faults(self) -> str:
        """Describe in one line why servers are down."""
        down = [replica for replica in self.replicas if not replica.ready]
        return "; ".join(f"{one.client.address}: {one.fault or 'starting'}" for one in down) or "no server is down"

    async def _watch(self, replica: Replica) -> None:
        """Check one server again and again, and restart it when it fails."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.asleep:
                continue
            try:
                fault = await self._fault(replica)
            except Exception as error:  # of a library: the server may be ill, and is watched on
                fault = f"{type(error).__name__}: {error}"
            if fault:
                replica.ready, replica.fault = False, fault
                logger.warning("%s: %s; it is started again", replica.client.address, fault)
                await self._bring_back(replica)

    async def _fault(self, replica: Replica) -> str:
        """Return the fault of a server; empty if it has none."""
        if replica.process is not None and not replica.process.alive:
            return f"it ended ({replica.process.reason()})"
        if self._changing.locked():
            return ""  # a server may be silent while it loads weights
        if not replica.ready:
            return replica.fault or "it failed at a publication"
        try:
            await replica.client.check_alive(self._answer_seconds)
            serves = self._served is None or await self._serves(replica.client, *self._served)
        except RollwrightError as error:
            return "" if self._changing.locked() else str(error)
        if not serves and not self._changing.locked():
            served = self._served[0] if self._served else None
            return f"it does not serve v{served}: it was restarted, or another run published to it"
        return ""

    async def _serves(self, client: ServerClient, version: int, folder: Path) -> bool:
        return version in await client.adapters() if is_adapter(folder) else version == await client.weight_version()

    async def _bring_back(self, replica: Replica) -> None:
        """Restart a server and publish the current version to it, until that works.

        Publications to the other servers do not wait for it, because it may hang.
        """
        backoff = FIRST_BACKOFF
        while not replica.ready:
            try:
                if replica.process is not None:
                    await replica.process.stop()
                await self._start(replica)
                while not replica.ready:
                    served, held = self._served, self._held
                    assert served is not None
                    # The held adapter first: engines use a server as soon as it has the served one.
                    if held is not None and is_adapter(held[1]):
                        await publish_adapter([replica.client], *held, limit=self._limit)
                    await self._publish_and_probe([replica], *served, used=replica.process is None)
                    async with self._changing:
                        replica.ready = (served, held) == (self._served, self._held)
                    logger.warning("%s serves v%d again", replica.client.address, served[0])
            except Exception as error:  # whatever it is, the next try may succeed
                replica.fault = str(error) if isinstance(error, RollwrightError) else f"{type(error).__name__}: {error}"
                logger.warning("%s: %s; the next try is in %.0f s", replica.client.address, error, backoff)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF)

    async def close(self) -> None:
        """Stop the watchers and our servers with all their processes; close the connections.

        Raises:
            Exception: the first error, after everything else was stopped too.
        """
        watchers = [replica.watcher for replica in self.replicas if replica.watcher is not None]
        for watcher in watchers:
            watcher.cancel()
        stops = [replica.process.stop() for replica in self.replicas if replica.process is not None]
        ended = await asyncio.gather(*watchers, return_exceptions=True)
        ended += await asyncio.gather(*stops, return_exceptions=True)
        ended += await asyncio.gather(*(replica.client.close() for replica in self.replicas), return_exceptions=True)
        for replica in self.replicas:
            replica.ready = False
        for error in ended:
            if isinstance(error, Exception):
                raise error


def _without(clients: Iterable[ServerClient], failed: Container[str]) -> list[ServerClient]:
    """Return the clients of servers that did not fail, by address."""
    return [client for client in clients if client.address not in failed]
