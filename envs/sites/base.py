"""The base class of sites, and what a site holds for one episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.observation import FULL, ObservationOptions
from envs.types import WebTask
from envs.types.evidence import ServerState

VIEWPORT = (1280, 720)
"""Of a common laptop's window, as most benchmarks on real sites have it."""


@dataclass(frozen=True, slots=True)
class SiteEpisode:
    """What a site holds for one episode."""

    path: str
    """Where the episode is entered; it leads to the task's path."""
    state: ServerState | None = None
    """The server's state, for grading; it can be asked until `close`. ``None``: it cannot be asked."""

    async def close(self) -> None:
        """Drop the episode's state. Closing twice is one close."""


class Site(ABC):
    """A place that tasks are attempted on. A subclass gives ``name`` and ``origin``.

    Everything else has a default, that of ordinary pages: they declare no instruction, reward or end,
    and a new browser context is all the reset that an episode needs.

    Example::

        class Wiki(Site):
            name = "wiki"
            origin = "http://127.0.0.1:8090"
    """

    name: str = ""
    """The name that `WebTask.site` refers to."""
    hosts: tuple[str, ...] = ()
    """Further origins that its pages may reach (``https://fonts.example``); all else is refused."""
    cookies: Sequence[Mapping[str, Any]] = ()
    """What episodes begin with, as ``Storage.setCookies`` takes them; in no observation or record."""
    foreign: bool = False
    """Whether somebody else serves it.

    What it answers to a task's first address is then looked at whatever its status: it may be a wall.
    Of a site of ours an error status is a `BrowserError`.
    """
    viewport: tuple[int, int] = VIEWPORT
    """Width and height of its pages in CSS pixels."""
    observation: ObservationOptions = FULL
    """How much of its pages is shown."""
    exclude: str = ""
    """CSS selector of what is no element of the observation (an instruction bar, a cover)."""
    style: str = ""
    """CSS that is added to each page."""
    offers: tuple[str, ...] = ()
    """Names of actions that it takes beyond those that every site does (``submit``)."""
    stateless_pages: bool = False
    """Whether `reset_script` undoes all that an episode did, so that pages are used again."""
    background: bool = False
    """Whether its pages show what the browser's stores answer (IndexedDB, caches).

    These are waited for then, 0.15 s a step.
    """
    final_screenshot: bool = True
    """Whether the page still shows something once it has declared the end."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """Scheme, host and port, without a slash at the end.

        Raises:
            SiteError: the site is not started.
        """

    async def start(self) -> None:  # noqa: B027 - a site that is there already starts nothing
        """Begin to serve, before the first lease.

        Raises:
            SiteError: it cannot be served.
        """

    async def close(self) -> None:  # noqa: B027
        """Stop serving, after the last lease; nothing is left running."""

    async def open_episode(self, task: WebTask, seed: int) -> SiteEpisode:
        """Make what the server holds for an episode, equal for equal tasks and seeds.

        Raises:
            SiteError: it cannot be made.
        """
        return SiteEpisode(task.path)

    def reload_for(self, task: WebTask) -> bool:
        """Whether an episode needs a newly loaded page although the right one is there."""
        return True

    def reset_script(self, task: WebTask, seed: int) -> str:
        """JavaScript run in the loaded page to begin the episode; may be empty."""
        return ""

    def ready_script(self, task: WebTask) -> str:
        """JavaScript expression that is true once the episode can begin."""
        return "true"

    def facts_script(self, task: WebTask) -> str:
        """JavaScript expression of what the page declares; empty where pages declare nothing.

        ``{instruction: string, done: bool, facts: {name: number | bool | string}}``.
        """
        return ""
