"""A site that is made of a recipe, as a session sees it: each episode has a server of its own."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envs.background import start_background
from envs.cancel_scope import finish_shielded
from envs.sites.base import SiteEpisode
from envs.sites.recipes.build import SiteBuild, build_of
from envs.sites.recipes.container import ContainerTemplate
from envs.sites.recipes.front import COOKIE, FrontedSite, address_at
from envs.sites.recipes.instance import InstanceState, SiteInstance, wait_until_ready
from envs.sites.recipes.kept_answers import KeptAnswers, ask_again
from envs.sites.recipes.recipe import SiteRecipe
from envs.sites.recipes.template import SiteTemplate, TemplateReport
from envs.sites.site_http import Server
from envs.sites.storage_state import read_storage_state
from envs.types import SiteError, WebTask

logger = logging.getLogger(__name__)

MEMORY_SECONDS = 10.0
"""Seconds between two looks at the memory of instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEpisode(SiteEpisode):
    """An episode on an instance; its end drops the instance and all that it changed."""

    instance: SiteInstance
    site: RecipeSite

    async def hash_state(self) -> dict[str, str]:
        """Return a hash for each file and table that counts."""
        return await self.site.hash_state(self.instance)

    def keep_answers(self) -> None:
        """Keep what the server answers."""
        self.site.keep_answers(self.instance)

    async def go_on(self) -> None:
        """Have the instance answer in place of the kept answers.

        Raises:
            SiteError: The browser has asked for something else than the episode's.
        """
        await self.site.go_on(self.instance)

    async def close(self) -> None:
        """Drop the instance."""
        await self.site.drop(self.instance)


class RecipeSite(FrontedSite):
    """The `Site` of a recipe whose episodes have a server process of their own."""

    def __init__(self, recipe: SiteRecipe, *, isolate: bool = True) -> None:
        super().__init__(recipe.name, recipe.viewport)
        self.recipe = recipe
        self.hosts = recipe.hosts
        self.report: TemplateReport | None = None
        """Report of the template on itself; ``None`` before the start."""
        self._build: SiteBuild = build_of(recipe)
        self._isolate = isolate
        self._template: SiteTemplate | ContainerTemplate | None = None
        self._changing = asyncio.Lock()
        self._launching = asyncio.Semaphore(recipe.limits.launches)
        self._numbers = itertools.count(1)
        self._ready_ones: deque[SiteInstance] = deque()
        self._filling: set[asyncio.Task[None]] = set()
        self._reading: set[asyncio.Task[None]] = set()
        self._launches = self._resets = 0
        self._memory, self._memory_read = 0, -MEMORY_SECONDS
        self._reported: set[Path] = set()
        """Sockets of servers whose problem is logged."""

    def problem(self) -> str:
        """Return why it cannot be started on this machine."""
        try:
            self._build.require_finished()
        except SiteError as error:
            return str(error)
        return ""

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the instances by state, launches and resets so far, and their private memory."""
        if time.monotonic() - self._memory_read > MEMORY_SECONDS:
            self._memory_read = time.monotonic()
            start_background(self._read_memory(), self._reading, f"memory of {self.name}")
        waiting = len(self._ready_ones)
        counts = {"playing": self.instances - waiting, "waiting": waiting}
        totals = {"launches": self._launches, "resets": self._resets, "memory": self._memory}
        return {self.name: {**counts, **totals}}

    async def _read_memory(self) -> None:
        if (template := self._template) is not None:
            self._memory = await asyncio.to_thread(template.unique_memory)

    async def start(self) -> None:
        """Start the template and the front.

        Raises:
            SiteError: The recipe is not built, or its application does not start.
        """
        await self._started_template()
        if self.recipe.login:
            place = self.recipe.folder if self.recipe.kind == "container" else self._build.state
            state = await asyncio.to_thread(read_storage_state, place / self.recipe.login)
            self.cookies, self.stores = state.cookies, state.stores
        loop = asyncio.get_running_loop()  # the front asks in its own thread
        self._front.problem_of = lambda token: asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self.failure_of(token), loop)
        )
        await super().start()
        self._fill()

    async def close(self) -> None:
        """End all instances, the template and the front."""
        for task in (*self._filling, *self._reading):
            task.cancel()
        await asyncio.gather(*self._filling, *self._reading, return_exceptions=True)
        await super().close()
        async with self._changing:
            if self._template is not None:
                await finish_shielded(self._template.close())
                self._template = None
        self._ready_ones.clear()

    async def open_episode(self, task: WebTask, seed: int) -> InstanceEpisode:
        """Launch an instance, or take one that waits; the seed changes nothing.

        Raises:
            SiteError: It cannot be launched, or is not ready in time.
        """
        instance = await self._take() or await self.launch()
        self._fill()
        return self._episode_on(instance, task)

    def _episode_on(self, instance: SiteInstance, task: WebTask) -> InstanceEpisode:
        state = InstanceState(
            origin=self.origin,
            headers={"cookie": f"{COOKIE}={instance.token}"},
            instance=instance,
            files=self.recipe.state.databases,
        )
        entrance, address = (
            self._front.entrance(instance.token, task.path),
            address_at(self._server.origin, instance.token),
        )
        return InstanceEpisode(path=entrance, state=state, address=address, instance=instance, site=self)

    async def launch(self) -> SiteInstance:
        """Launch an instance and wait until it answers.

        Raises:
            SiteError: Too little memory is free, or the instance is not ready in time.
        """
        async with self._launching:
            template = await self._started_template()
            try:
                return await self._begin(self._new_instance(template))
            except SiteError:
                if template.alive:
                    raise
            return await self._begin(self._new_instance(await self._started_template()))  # it ended meanwhile

    def fork_problem(self) -> str:
        """Return why its episodes cannot be forked; empty if they can."""
        if self.recipe.kind == "container" and not self.recipe.state.folders:
            return f"site {self.name} has no state.folders by which the container of a fork could be compared"
        return ""

    def keep_answers(self, instance: SiteInstance) -> None:
        """Keep what an instance answers, so that it can be forked."""
        self._front.kept[instance.token] = KeptAnswers()

    async def fork_episode(self, episode: SiteEpisode, task: WebTask, seed: int, count: int) -> list[SiteEpisode]:
        """Launch instances on copies of an episode's state.

        They give the answers that the episode got, until `SiteEpisode.go_on`.

        Raises:
            SiteError: The episode's server does not come to rest, or one cannot be launched.
        """
        assert isinstance(episode, InstanceEpisode), "an episode of this site"
        return [self._episode_on(instance, task) for instance in await self.fork(episode.instance, count)]

    async def fork(self, instance: SiteInstance, count: int) -> list[SiteInstance]:
        """Launch instances on copies of an instance's state, whose answers are kept.

        State in memory or in a container is made anew: by the same requests, and compared.

        Raises:
            SiteError: The instance does not come to rest, or one cannot be launched.
        """
        template, kept, files = instance.template, self._front.kept[instance.token], dict[str, str]()
        repeated = self.recipe.state.memory or self.recipe.kind == "container"
        made = [self._new_instance(template) for _ in range(count)]
        try:
            try:
                answers = await self._server.run(kept.hold())
                if repeated or isinstance(template, ContainerTemplate):
                    files = await self.hash_state(instance)
                else:
                    await template.copy(instance.name, [one.name for one in made])
            finally:
                await self._server.run(kept.release())
            for one in made:
                self._front.kept[one.token] = KeptAnswers(answers)
            try:
                async with asyncio.TaskGroup() as begun:
                    for one in made:
                        begun.create_task(self._begin_in_turn(one))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            for one in made if repeated else ():
                await ask_again(template.socket_of(one.name), answers)
                if other := unequal(files, await self.hash_state(one)):
                    raise SiteError(f"the same requests leave other content in {other[0]}")
        except BaseException as error:
            for one in made:
                await finish_shielded(self.drop(one))
            if isinstance(error, SiteError):
                raise SiteError(f"site {self.name}: an episode cannot be forked: {error}") from error
            raise
        return made

    async def go_on(self, instance: SiteInstance) -> None:
        """Have a fork answer in place of the kept answers.

        Raises:
            SiteError: The browser has asked for something else than the episode's.
        """
        await self._server.run(self._front.kept[instance.token].go_on())

    def _new_instance(self, template: SiteTemplate | ContainerTemplate) -> SiteInstance:
        name = f"i{next(self._numbers)}"
        return SiteInstance(name, self._front.admit(template.socket_of(name)), template)

    async def _begin_in_turn(self, instance: SiteInstance) -> None:
        async with self._launching:
            await self._begin(instance)

    async def _begin(self, instance: SiteInstance) -> SiteInstance:
        try:
            if not await instance.template.launch(instance.name):
                await wait_until_ready(instance, self.recipe)
            self._launches += 1
        except BaseException:
            await finish_shielded(self.drop(instance))
            raise
        return instance

    async def drop(self, instance: SiteInstance) -> None:
        """End an instance and drop its state. A second drop does nothing."""
        if self._front.instances.pop(instance.token, None) is not None:
            self._resets += 1
        self._front.kept.pop(instance.token, None)
        self._reported.discard(instance.template.socket_of(instance.name))
        if instance.template.alive:
            with _unless_ended(instance.template):
                await instance.template.drop(instance.name)

    async def failure_of(self, token: str) -> str:
        """Return why the server of a token has ended or fails; empty if it cannot be seen."""
        place, template = self._front.instances.get(token), self._template
        if not isinstance(place, Path) or template is None or place.parent != template.folder or not template.alive:
            return f"site {self.name}: the template ended, and this episode's server with it"
        look = await template.ask("look", name=place.stem)
        if look["alive"] and not look["limit"]:
            return ""
        lines = look["log"].strip().splitlines()
        what = "failed" if look["alive"] else f"ended with status {look['status']}"
        limit = f"; it reached {look['limit']} of the recipe" * bool(look["limit"])
        last = f" ({lines[-1]})" if lines else ""
        why = f"site {self.name}: the server of this episode {what}{limit}{last}"
        if place not in self._reported:
            self._reported.add(place)
            logger.warning("%s", why)
        return why

    async def hash_state(self, instance: SiteInstance) -> dict[str, str]:
        """Return a hash for each file and table of an instance's state that counts."""
        return await instance.template.hash_state(instance.name)

    def server_of(self, instance: SiteInstance) -> Server:
        """Return the front as this instance's episode reaches it."""
        return Server(self.origin, headers={"cookie": f"{COOKIE}={instance.token}"})

    async def _started_template(self) -> SiteTemplate | ContainerTemplate:
        async with self._changing:
            if self._template is not None and self._template.alive:
                return self._template
            if self._template is not None:
                logger.warning("site %s: its template ended and is started again", self.name)
                await self._template.close()
                self._front.instances.clear()
                self._ready_ones.clear()
            made = ContainerTemplate if self.recipe.kind == "container" else SiteTemplate
            self._template = made(self._build, isolate=self._isolate)
            self.report = await self._template.start()
            return self._template

    async def _take(self) -> SiteInstance | None:
        """Return an instance that waits for an episode, if one does; drop those that have ended."""
        while self._ready_ones:
            instance = self._ready_ones.popleft()
            try:
                with _unless_ended(instance.template):
                    if not await self.failure_of(instance.token):
                        return instance
                    await self.drop(instance)
            except BaseException:
                await finish_shielded(self.drop(instance))
                raise
        return None

    def _fill(self) -> None:
        """Launch instances ahead, until as many wait as the recipe says."""
        lacking = self.recipe.limits.ahead - len(self._ready_ones) - len(self._filling)
        for _ in range(lacking):
            start_background(self._launch_ahead(), self._filling, f"instance of {self.name}")

    async def _launch_ahead(self) -> None:
        try:
            self._ready_ones.append(await self.launch())
        except SiteError as error:  # the episode that needs it launches one itself, and reports the error
            logger.warning("%s", error)


def unequal(one: Mapping[str, str], two: Mapping[str, str]) -> list[str]:
    """Return the names whose hashes differ."""
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))


@contextmanager
def _unless_ended(template: SiteTemplate | ContainerTemplate) -> Iterator[None]:
    """Ignore the error of a template that ended, and all its instances with it."""
    try:
        yield
    except SiteError:
        if template.alive:
            raise
