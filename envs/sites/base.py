"""What a session needs to know about a site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from envs.observation import ObservationOptions
from envs.types import WebTask

if TYPE_CHECKING:
    from envs.rewards import ServerState


class Site(Protocol):
    """A place that tasks are attempted on. ``start`` before the first lease, ``close`` after the last."""

    @property
    def name(self) -> str:
        """The name that `WebTask.site` refers to."""
        ...

    @property
    def origin(self) -> str:
        """Scheme, host and port, without a slash at the end.

        Raises:
            SiteError: the site is not started.
        """
        ...

    @property
    def hosts(self) -> tuple[str, ...]:
        """Further origins that its pages may reach (``https://fonts.example``); everything else is refused."""
        ...

    @property
    def observation(self) -> ObservationOptions:
        """How much of its pages is shown."""
        ...

    @property
    def viewport(self) -> tuple[int, int]:
        """Width and height of its pages in CSS pixels."""
        ...

    @property
    def stateless_pages(self) -> bool:
        """True if `reset_script` undoes everything that an episode did, so that pages and contexts may be used
        again."""
        ...

    @property
    def background(self) -> bool:
        """Whether its pages show what the browser's stores answer (IndexedDB, caches): these are waited for then, 0.15 s a step."""
        ...

    @property
    def final_screenshot(self) -> bool:
        """Whether the page still shows something once it has declared the end."""
        ...

    @property
    def style(self) -> str:
        """CSS that is added to each page."""
        ...

    @property
    def exclude(self) -> str:
        """CSS selector of what is no element of the observation (an instruction bar, a cover); may be empty."""
        ...

    @property
    def offers(self) -> tuple[str, ...]:
        """Names of actions that it takes beyond those that every site does (``submit``)."""
        ...

    async def start(self) -> None:
        """Begin to serve."""
        ...

    async def close(self) -> None:
        """Stop serving; nothing is left running."""
        ...

    def reload_for(self, task: WebTask) -> bool:
        """Whether an episode of this task needs a newly loaded page although the right one is there."""
        ...

    def reset_script(self, task: WebTask, seed: int) -> str:
        """JavaScript run in the loaded page to begin the episode; may be empty."""
        ...

    def ready_script(self, task: WebTask) -> str:
        """JavaScript expression that is true once the episode can begin."""
        ...

    def facts_script(self, task: WebTask) -> str:
        """JavaScript expression of ``{instruction: string, done: bool, facts: {name: number | bool | string}}``; empty where pages declare
        nothing."""
        ...


class SiteEpisode(Protocol):
    """What the server of a site holds for one episode."""

    @property
    def path(self) -> str:
        """Where the episode is entered; it leads to the task's path."""
        ...

    @property
    def state(self) -> ServerState:
        """For grading. It can be asked until `close`."""
        ...

    async def close(self) -> None:
        """The episode is over: its state is dropped. Closing twice is one close."""
        ...


@runtime_checkable
class StatefulSite(Protocol):
    """A `Site` whose server has a state of its own for each episode."""

    async def open_episode(self, task: WebTask, seed: int) -> SiteEpisode:
        """A new state, equal for equal tasks and seeds.

        Raises:
            SiteError: it cannot be made.
        """
        ...


@runtime_checkable
class ForeignSite(Protocol):
    """A `Site` that somebody else serves. What it answers to a task's first address is for the episode to judge: a wall, an error, a page."""

    @property
    def foreign(self) -> bool:
        """True."""
        ...


@runtime_checkable
class LoggedInSite(Protocol):
    """A `Site` whose episodes begin with cookies."""

    @property
    def cookies(self) -> Sequence[Mapping[str, Any]]:
        """As ``Storage.setCookies`` takes them."""
        ...
