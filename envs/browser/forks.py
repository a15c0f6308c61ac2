"""Forks of an episode: its actions, repeated in other contexts, and what they must show."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from envs.browser.options import PoolOptions
from envs.browser.page import STOPPED, TaskPage
from envs.browser.page_step import PageStep
from envs.observation.compare import canonical_observation, first_difference
from envs.settle.requests import LEFT_OPEN
from envs.sites.base import Site, SiteEpisode
from envs.types import Action, BrowserError, ConfigError, Observation, SiteError, WebTask

NOT_EQUAL = (
    "an episode can be forked if its pages are equal when they are shown again; "
    "if they draw random numbers, give make_pool(page_seed=1)"
)


@dataclass
class EpisodeHistory:
    """The actions of one episode that can be forked, and what was seen."""

    task: WebTask
    seed: int
    shown: list[Observation] = field(default_factory=list)
    """Observations after the reset and after each action."""
    actions: list[Action] = field(default_factory=list)
    interrupted: str = ""
    """Reason why repeating the actions would not lead to the page; empty if it does."""

    def add(self, action: Action, seen: Observation) -> None:
        """Add an action and what was seen after it."""
        self.actions.append(action)
        self.shown.append(seen)

    def copy(self) -> Self:
        """Return the history for a fork, which goes on by itself."""
        return replace(self, shown=list(self.shown), actions=list(self.actions))

    def check_fork(self, count: int, most: int, seen: PageStep) -> None:
        """Check that so many forks can be made now.

        Args:
            most: Sessions of the pool.

        Raises:
            ConfigError: The pool is too small.
            BrowserError: The episode is over, or its actions do not lead to the page.
        """
        if not 1 <= count < most:
            raise ConfigError(f"{count} forks of an episode: the pool has {most} sessions; from 1 to {most - 1} fit")
        if self.interrupted or seen.done:
            raise BrowserError(f"{self.task.task_id} cannot be forked: {self.interrupted or 'it is over'}")

    async def repeat(self, page: TaskPage, result: PageStep, dom_hash: str, deadline: float) -> PageStep:
        """Repeat the actions on the first page of a fork, and compare each page with the episode's.

        Args:
            result: The first page.
            dom_hash: Hash of the episode's document now.
            deadline: Real seconds for each action.

        Raises:
            BrowserError: A page differs; names the first difference. Or the browser failed.
        """
        self._check(0, result)
        for number, action in enumerate(self.actions, start=1):
            acting = page.act(action, result)
            result = await page.context.guard(acting, deadline, f"{action.type} in a fork of {self.task.task_id}")
            self._check(number, result)
        if dom_hash != result.dom_hash:
            raise BrowserError(
                f"a fork of {self.task.task_id} differs after {len(self.actions)} actions in parts of the document "
                f"that observations do not show; {NOT_EQUAL}"
            )
        return replace(result, observation=self.shown[-1])

    def _check(self, step: int, seen: PageStep) -> None:
        shown, now = _without_delays(self.shown[step]), _without_delays(seen.observation)
        if shown == now:
            return
        difference = first_difference(canonical_observation(shown), canonical_observation(now))
        if difference is not None:
            place, before, after = difference
            raise BrowserError(
                f"a fork of {self.task.task_id} differs after {step} actions, {place}: the episode had {before!r}, "
                f"the fork has {after!r}; {NOT_EQUAL}"
            )


def _without_delays(seen: Observation) -> Observation:
    """Return an observation without notices of slow answers: those of a fork are there at once."""
    kept = tuple(one for one in seen.notices if one not in STOPPED.values() and LEFT_OPEN not in one)
    return seen.model_copy(update={"notices": kept})


def check_forkable(site: Site, options: PoolOptions) -> None:
    """Check that episodes of a site can be forked, before one begins.

    Raises:
        ConfigError: They cannot; says why.
    """
    why = site.fork_problem()
    if options.max_sessions < 2:
        why = "the pool has one session; give make_pool(max_sessions=…) one for each fork besides the episode's"
    elif not options.holds_clocks:
        why = "its pages' clocks are not held (virtual_time)"
    if why:
        raise ConfigError(f"an episode that can be forked cannot begin: {why}")


async def open_on_site(site: Site, task: WebTask, seed: int, *, forkable: bool) -> SiteEpisode:
    """Make the site's state for an episode.

    Raises:
        BrowserError: It cannot be made.
    """
    try:
        opened = await site.open_episode(task, seed)
    except SiteError as error:
        raise BrowserError(f"{task.task_id} cannot begin: {error}") from error
    if forkable:
        opened.keep_answers()
    return opened


async def fork_on_site(site: Site, opened: SiteEpisode, history: EpisodeHistory, count: int) -> list[SiteEpisode]:
    """Make the site's states for forks of an episode. What it waits for has deadlines of its own.

    Raises:
        BrowserError: They cannot be made.
    """
    try:
        return await site.fork_episode(opened, history.task, history.seed, count)
    except SiteError as error:
        raise BrowserError(f"{history.task.task_id} cannot be forked: {error}") from error


async def go_on_site(opened: SiteEpisode, history: EpisodeHistory) -> None:
    """Have a fork's own server answer.

    Raises:
        BrowserError: Its browser has asked for something else than the episode's.
    """
    try:
        await opened.go_on()
    except SiteError as error:
        raise BrowserError(f"{history.task.task_id} cannot be forked: {error}") from error


async def run_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; the first that fails cancels the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
