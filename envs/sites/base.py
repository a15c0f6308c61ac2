"""Base class of sites, and the state of a site for one episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.observation import FULL, ObservationOptions
from envs.types import WebTask
from envs.types.evidence import ServerState
from envs.types.paths import AnyPath

VIEWPORT = (1280, 720)
"""Size of a common laptop's window, as most benchmarks on real sites have it."""


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Address that answers the requests of one episode, whatever host they name."""

    port: int
    """Port of loopback."""
    cookie: str = field(default="", repr=False)
    """Cookie that is sent besides the browser's."""


@dataclass(frozen=True, slots=True)
class SiteEpisode:
    """State of a site for one episode."""

    path: str
    """Path at which the browser enters the episode; it leads to the task's path."""
    state: ServerState | None = None
    """State of the server, for grading, until `close`; ``None`` if it cannot be asked."""
    routes: Mapping[tuple[str, int], AnyPath] = field(default_factory=dict, kw_only=True)
    """Unix sockets that serve HTTPS under true names, by host and port."""
    address: HostAddress | None = field(default=None, kw_only=True)
    """Address at which it can be a host of a group; ``None`` if it cannot be one."""

    async def hash_state(self) -> dict[str, str]:
        """Return a hash for each part of the server's state; none if it cannot be seen."""
        return {}

    def keep_answers(self) -> None:
        """Keep what a fork of the episode needs. Called before the browser enters it."""

    async def go_on(self) -> None:
        """Have a fork's own server answer: its browser has repeated the episode.

        Raises:
            SiteError: The browser has asked for something else than the episode's.
        """

    async def close(self) -> None:
        """Drop the episode's state. A second close does nothing."""


class Site(ABC):
    """A place that tasks are attempted on. A subclass gives ``name`` and ``origin``.

    Everything else has the defaults of ordinary pages: they declare no instruction, reward or end,
    and a new browser context is all the reset that an episode needs.

    Example::

        class Wiki(Site):
            name = "wiki"
            origin = "http://127.0.0.1:8090"
    """

    name: str = ""
    """The name that `WebTask.site` refers to."""
    hosts: tuple[str, ...] = ()
    """Further origins that its pages may reach (``https://fonts.example``); others are refused."""
    cookies: Sequence[Mapping[str, Any]] = ()
    """Cookies at the start of an episode (``Storage.setCookies``); in no observation or record."""
    stores: Sequence[Mapping[str, Any]] = ()
    """Contents of ``localStorage`` and IndexedDB at the start, by origin.

    They have the form of Playwright's storage state, and are in no observation or record.
    """
    foreign: bool = False
    """True if somebody else serves the site.

    Its answer to a task's first address may be a wall, so it is looked at whatever its status. An
    error status of a site of ours is a `BrowserError`.
    """
    viewport: tuple[int, int] = VIEWPORT
    """Width and height of its pages in CSS pixels."""
    observation: ObservationOptions = FULL
    """Parts of its pages that observations show."""
    exclude: str = ""
    """CSS selector of parts that are not in observations (an instruction bar, a cover)."""
    style: str = ""
    """CSS that is added to each page."""
    offers: tuple[str, ...] = ()
    """Names of actions that it takes beyond those that every site takes (``submit``)."""
    stateless_pages: bool = False
    """True if `reset_script` undoes everything, so that pages can be used again."""
    repeatable: bool = False
    """True if its server answers equal actions on an equal task and seed equally, so that an
    episode can be forked by repeating it."""
    background: bool = False
    """True if its pages show answers of the browser's stores (IndexedDB, caches).

    These are then waited for, which takes 0.15 s a step.
    """
    final_screenshot: bool = True
    """True if the page still shows something after it has declared the end."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """Scheme, host and port, without a slash at the end.

        Raises:
            SiteError: the site is not started.
        """

    def problem(self) -> str:
        """Return why it cannot be started on this machine, with the fix; empty if it can."""
        return ""

    async def start(self) -> None:  # noqa: B027 - a site that is there already starts nothing
        """Begin to serve, before the first lease.

        Raises:
            SiteError: it cannot be served.
        """

    async def close(self) -> None:  # noqa: B027
        """Stop serving, after the last lease; nothing may be left running."""

    def counters(self) -> dict[str, dict[str, int]]:
        """Return counts for a monitor, by the recipe of the instances that it serves."""
        return {}

    async def open_episode(self, task: WebTask, seed: int) -> SiteEpisode:
        """Make the server's state for an episode, equal for equal tasks and seeds.

        Raises:
            SiteError: it cannot be made.
        """
        return SiteEpisode(task.path)

    async def open_host(self, task: WebTask, seed: int) -> SiteEpisode:
        """Do as `open_episode`, for a task that may begin on another host.

        Raises:
            SiteError: it cannot be made.
        """
        return await self.open_episode(task, seed)

    def fork_problem(self) -> str:
        """Return why its episodes cannot be forked; empty if they can."""
        if self.foreign:
            return f"site {self.name} is served by somebody else, whose server's state cannot be copied"
        return "" if self.repeatable else f"site {self.name} is not repeatable (Site.repeatable)"

    async def fork_episode(self, episode: SiteEpisode, task: WebTask, seed: int, count: int) -> list[SiteEpisode]:
        """Make server states for forks of an episode, whose browsers then repeat its actions.

        These begin where the episode began: equal actions lead to an equal state on a
        ``repeatable`` site.

        Raises:
            SiteError: They cannot be made.
        """
        made = list[SiteEpisode]()
        try:
            for _ in range(count):
                made.append(await self.open_episode(task, seed))
        except BaseException:
            for one in made:
                await one.close()
            raise
        return made

    def reload_for(self, task: WebTask) -> bool:
        """Return True if an episode needs a newly loaded page even on the right one."""
        return True

    def reset_script(self, task: WebTask, seed: int) -> str:
        """Return JavaScript that begins the episode in the loaded page; may be empty."""
        return ""

    def ready_script(self, task: WebTask) -> str:
        """Return a JavaScript expression that is true once the episode can begin."""
        return "true"

    def facts_script(self, task: WebTask) -> str:
        """Return a JavaScript expression of the page's facts; empty if there are none.

        Its value is ``{instruction: string, done: bool, facts: {name: number | bool | string}}``.
        """
        return ""
