"""A site of several hosts, each served by a recipe, under their true names and over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.sites.base import VIEWPORT, Site, SiteEpisode
from envs.sites.recipes.front import HostEpisode, HostSite
from envs.sites.recipes.gateway import PORT, EpisodeServer, HostGateway
from envs.sites.storage_state import read_storage_state
from envs.types import ConfigError, SiteError, WebTask
from envs.types.evidence import ServerState
from envs.types.extensions import is_reference

_LOCAL = ("127.0.0.1", "localhost")


class SiteGroup(Site):
    """The `Site` of a task that has several hosts. An episode begins on the main one.

    A host's instance is launched at the first request to it, the main one's before the episode.
    """

    def __init__(
        self,
        name: str,
        members: Mapping[str, Site],
        *,
        main: str = "",
        below: str = "",
        login: str = "",
        viewport: tuple[int, int] = VIEWPORT,
    ) -> None:
        """
        Args:
            members: Sites by host; two hosts may have one.
            main: Host on which episodes begin; the first one by default.
            below: Path below which tasks begin.
            login: File of a log-in, beside those of the recipes.

        Raises:
            ConfigError: A site cannot be a member, or the log-in is a script.
        """
        self.members: dict[str, HostSite] = {}
        """Sites by host."""
        for host, site in members.items():
            if not isinstance(site, HostSite):
                raise ConfigError(
                    f"site {name}: {host}: {site.name} cannot be a host of a group; a group's recipes are of kind "
                    "wsgi, asgi, process, container or mirror"
                )
            self.members[host] = site
        if is_reference(login):
            raise ConfigError(f"site {name}: log-in {login} is a script; hosts of recipes take a file")
        self.name = name
        self.viewport = viewport
        self._main = main or next(iter(members))
        self._below = below
        self._login = login
        self.hosts = tuple(f"https://{host}" for host in self.members if host != self._main)
        self.gateway = HostGateway(self.members)

    @property
    def origin(self) -> str:
        """Origin of the main host."""
        return f"https://{self._main}"

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the counts of its hosts' recipes."""
        return {name: counts for site in self.members.values() for name, counts in site.counters().items()}

    def problem(self) -> str:
        """Return why it cannot be started on this machine."""
        return "; ".join(dict.fromkeys(filter(None, (site.problem() for site in self.members.values()))))

    def fork_problem(self) -> str:
        """Return why its episodes cannot be forked."""
        return f"site {self.name} has several hosts; only an episode on one can be forked"

    async def start(self) -> None:
        """Start the sites of all hosts.

        Raises:
            SiteError: One cannot be started, or a log-in cannot be read.
        """
        for site in dict.fromkeys(self.members.values()):
            await site.start()
        cookies, stores = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
        for host, site in self.members.items():
            cookies += [
                {**cookie, "domain": host} if cookie.get("domain") in _LOCAL else cookie for cookie in site.cookies
            ]
            stores += [{**store, "origin": f"https://{host}"} for store in site.stores]
        if self._login:
            state = await asyncio.to_thread(read_storage_state, Path(self._login))
            cookies, stores = [*cookies, *state.cookies], [*stores, *state.stores]
        self.cookies, self.stores = cookies, stores
        await self.gateway.start()

    async def close(self) -> None:
        """Stop all sites."""
        await self.gateway.close()
        for site in dict.fromkeys(self.members.values()):
            await site.close()

    async def open_episode(self, task: WebTask, seed: int) -> SiteEpisode:
        """Launch the main host's instance, and open the way to all.

        Raises:
            SiteError: It cannot be launched.
        """
        instances = EpisodeInstances(self, task, seed)
        try:
            await instances.of(self._main)
            instances.server = await self.gateway.open(instances.find, instances.explain)
        except BaseException:
            await instances.close()
            raise
        routes = {(host, PORT): instances.server.socket for host in self.members}
        state = GroupState(instances, self._main)
        return GroupEpisode(path=self._below + task.path, state=state, routes=routes, instances=instances)


class EpisodeInstances:
    """The instances of one episode, by host; each is launched when it is needed."""

    def __init__(self, site: SiteGroup, task: WebTask, seed: int) -> None:
        self.server: EpisodeServer | None = None
        self._site = site
        self._task = task
        self._seed = seed
        self._opening: dict[str, asyncio.Task[HostEpisode]] = {}
        self._closed = False

    async def of(self, host: str) -> HostEpisode:
        """Return the episode on a host's instance, launched at the first call.

        Raises:
            SiteError: The group has no such host, it cannot be launched, or the episode is over.
        """
        if host not in self._site.members:
            raise SiteError(f"site {self._site.name} has no host {host!r}; there are {', '.join(self._site.members)}")
        if self._closed:
            raise SiteError(f"site {self._site.name}: the episode is over")
        if host not in self._opening:
            opening = self._site.members[host].open_host(self._task, self._seed, self._site.gateway.new_socket())
            self._opening[host] = asyncio.get_running_loop().create_task(opening)
        return await asyncio.shield(self._opening[host])

    async def find(self, host: str) -> Path | None:
        """Return the socket of a host's instance; ``None`` for another host."""
        if host not in self._site.members:
            return None
        return (await self.of(host)).socket

    async def explain(self, host: str) -> str:
        """Return why a host's instance fails; empty if it cannot be seen."""
        return await (await self.of(host)).failure()

    async def hash_state(self) -> dict[str, str]:
        """Return a hash for each part of the states of all hosts."""
        return {
            f"{host}/{name}": value
            for host in self._site.members
            for name, value in (await (await self.of(host)).hash_state()).items()
        }

    async def close(self) -> None:
        """Drop all instances. A second close does nothing."""
        self._closed = True
        if self.server is not None:
            await self.server.close()
        opening, self._opening = list(self._opening.values()), {}
        for task in opening:
            task.cancel()
        for episode in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(episode, HostEpisode):
                await episode.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpisode(SiteEpisode):
    """An episode on several hosts; its end drops all of their instances."""

    instances: EpisodeInstances

    async def hash_state(self) -> dict[str, str]:
        """Return a hash for each part of the states of all hosts; launches those that are not."""
        return await self.instances.hash_state()

    async def close(self) -> None:
        """Drop the instances."""
        await self.instances.close()


@dataclass(frozen=True)
class GroupState:
    """A `ServerState` over all hosts.

    Databases are named ``HOST`` or ``HOST/NAME``; those of the main host also by their own names.
    """

    instances: EpisodeInstances
    main: str

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]:
        """Return all rows of a ``SELECT`` over one host's database.

        Raises:
            SiteError: There is no such database, or the query fails.
        """
        host, _, name = database.partition("/")
        if "." in host:
            return await (await self._state(host)).sql(query, name)
        return await (await self._state(self.main)).sql(query, database)

    async def get_json(self, path: str) -> Any:
        """Return the JSON at a path of the main host; ``None`` for a 404.

        Raises:
            SiteError: The request failed.
        """
        return await (await self._state(self.main)).get_json(path)

    async def _state(self, host: str) -> ServerState:
        state = (await self.instances.of(host)).state
        if state is None:
            raise SiteError(f"host {host} is a recording, which has no state; ask another host")
        return state
