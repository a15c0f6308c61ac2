"""A site of several hosts, each served by a recipe, under their true names and over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.cancel_scope import finish_shielded
from envs.sites.base import VIEWPORT, HostAddress, Site, SiteEpisode
from envs.sites.recipes.front import FrontedSite
from envs.sites.recipes.gateway import PORT, EpisodeServer, HostGateway
from envs.sites.static_server import StaticSite
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
        logins: Sequence[str] = (),
        viewport: tuple[int, int] = VIEWPORT,
    ) -> None:
        """
        Args:
            members: Sites by host; two hosts may have one.
            main: Host on which episodes begin; the first one by default.
            below: Path below which tasks begin.
            logins: Files of log-ins, beside those of the recipes.

        Raises:
            ConfigError: A site cannot be a member, or a log-in is a script.
        """
        self.members = dict(members)
        """Sites by host."""
        for host, site in members.items():
            if not isinstance(site, FrontedSite | StaticSite):
                raise ConfigError(f"site {name}: {host}: {site.name} cannot be a host of a group; name its own hosts")
        if script := next(filter(is_reference, logins), ""):
            raise ConfigError(f"site {name}: log-in {script} is a script; hosts of recipes take a file")
        self.name = name
        self.viewport = viewport
        self._main = main or next(iter(members))
        self._below = below
        self._logins = tuple(logins)
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
        """Return why its episodes cannot be forked; empty if those of each host can."""
        return "; ".join(dict.fromkeys(filter(None, (site.fork_problem() for site in self.members.values()))))

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
        for login in self._logins:
            state = await asyncio.to_thread(read_storage_state, Path(login))
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
        return await self._opened(EpisodeInstances(self, task, seed), task)

    async def fork_episode(self, episode: SiteEpisode, task: WebTask, seed: int, count: int) -> list[SiteEpisode]:
        """Fork the instances that an episode has launched, and open the way to each fork's hosts.

        Raises:
            SiteError: One cannot be forked.
        """
        assert isinstance(episode, GroupEpisode), "an episode of this site"
        forks = [EpisodeInstances(self, task, seed) for _ in range(count)]
        try:
            await episode.instances.fork(forks)
            return [await self._opened(instances, task) for instances in forks]
        except BaseException:
            for instances in forks:
                await finish_shielded(instances.close())
            raise

    async def _opened(self, instances: EpisodeInstances, task: WebTask) -> GroupEpisode:
        try:
            await instances.of(self._main)
            instances.server = await self.gateway.open(instances.find)
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
        self._opening: dict[str, asyncio.Future[SiteEpisode]] = {}
        self._closed = self._keeping = False
        self._known = frozenset[str]()
        """Hosts that were launched in the episode that this one is a fork of."""

    async def of(self, host: str) -> SiteEpisode:
        """Return the episode on a host's instance, launched at the first call.

        Raises:
            SiteError: The group has no such host, it cannot be launched, or the episode is over.
        """
        if host not in self._site.members:
            raise SiteError(f"site {self._site.name} has no host {host!r}; there are {', '.join(self._site.members)}")
        if self._closed:
            raise SiteError(f"site {self._site.name}: the episode is over")
        if host not in self._opening:
            self._opening[host] = asyncio.get_running_loop().create_task(self._open(host))
        return await asyncio.shield(self._opening[host])

    async def _open(self, host: str) -> SiteEpisode:
        opened = await self._site.members[host].open_host(self._task, self._seed)
        if self._keeping:
            opened.keep_answers()
        return opened

    def keep_answers(self) -> None:
        """Keep the answers of all hosts, also of those that are launched later."""
        self._keeping = True
        for opened in self._opening.values():
            opened.result().keep_answers()

    async def fork(self, forks: Sequence[EpisodeInstances]) -> None:
        """Give forks the states of the launched instances. Recordings begin anew at their requests.

        Raises:
            SiteError: An instance cannot be forked.
        """
        launched = {host: await asyncio.shield(opening) for host, opening in list(self._opening.items())}
        for fork in forks:
            fork._keeping, fork._known = True, frozenset(launched)
        for host, episode in launched.items():
            site = self._site.members[host]
            if site.repeatable:
                continue
            made = await site.fork_episode(episode, self._task, self._seed, len(forks))
            for fork, copy in zip(forks, made, strict=True):
                fork._opening[host] = asyncio.get_running_loop().create_future()
                fork._opening[host].set_result(copy)

    async def go_on(self) -> None:
        """Have a fork's own servers answer.

        Raises:
            SiteError: Its browser has asked for something else than the episode's.
        """
        if new := self._opening.keys() - self._known:
            raise SiteError(f"its pages ask another host when they are shown again: {min(new)}")
        for opened in list(self._opening.values()):
            await (await opened).go_on()

    async def find(self, host: str) -> HostAddress | None:
        """Return the address of a host's instance; ``None`` for another host."""
        if host not in self._site.members:
            return None
        return (await self.of(host)).address

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
            if isinstance(episode, SiteEpisode):
                await episode.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpisode(SiteEpisode):
    """An episode on several hosts; its end drops all of their instances."""

    instances: EpisodeInstances

    async def hash_state(self) -> dict[str, str]:
        """Return a hash for each part of the states of all hosts; launches those that are not."""
        return await self.instances.hash_state()

    def keep_answers(self) -> None:
        """Keep the answers of all hosts."""
        self.instances.keep_answers()

    async def go_on(self) -> None:
        """Have the fork's own servers answer.

        Raises:
            SiteError: The browser has asked for something else than the episode's.
        """
        await self.instances.go_on()

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
            raise SiteError(f"host {host} has no state: it is a recording or a folder of pages; ask another host")
        return state
