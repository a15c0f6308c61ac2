"""The front door: one environment for one task, in real Chromium.

::

    async with open_env("miniwob/click-test", seed=7) as env:
        step = await env.reset()
        print(step.observation.elements)
        step = await env.step(Click(element=1))
        print(step.reward, step.done)

It plays and grades an episode with the parts that a training run uses (`envs.episodes`), so the
reward is the run's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from envs.actions.parsing import parse
from envs.actions.parsing.extensions import Parser, as_parsed, read_turn
from envs.browser import BrowserPool, NetworkLog, PageStep, WebSession
from envs.ends import REPEATS
from envs.env_grading import EnvGrader, cause_of
from envs.episodes import NO_TURN, WebEpisode
from envs.registry import choose_task, seed_of
from envs.rewards.chromiumrl.capture import capture_page
from envs.rewards.functions import RewardFunction
from envs.rewards.judge import Judge
from envs.sites import LiveOptions, SharedSites, is_served, make_site
from envs.sites.base import Site
from envs.sites.pictures import PictureReader
from envs.step_result import AnyAction, StepResult
from envs.types import BrowserError, ConfigError, RewardBundle, Step, TaskError, Trajectory, WebTask

if TYPE_CHECKING:
    from playwright.async_api import Page

    from envs.browser.devtools.lent import LentPage

OWN_SESSIONS = 16
"""Sessions of an own pool, if the episode can be forked; else there is one."""


def open_env(
    task: str | WebTask,
    *,
    seed: int | None = None,
    instruction: str | None = None,
    horizon: int | None = None,
    date: str | None = None,
    reward: RewardFunction | str | None = None,
    weights: Mapping[str, float] | None = None,
    parser: str | Parser | None = None,
    repeats: int = REPEATS,
    stop_on_invalid: bool = False,
    judge: Judge | None = None,
    live: LiveOptions | None = None,
    site: Site | None = None,
    pool: BrowserPool | None = None,
    sites: SharedSites | None = None,
    page: Page | None = None,
    forkable: bool = False,
) -> WebEnv:
    """Make an environment for a task, used in ``async with`` (without an event loop:
    `open_env_sync`).

    Args:
        task: An id of `list_tasks`, ``live/<host>``, an address, a task of a file, or the path of a
            page of ``site``.
        seed: Seed of the page; the first of the task's training seeds if not given.
        instruction: Instruction for the policy; live pages need one.
        horizon: Maximum number of steps of an episode; the task's own if not given.
        date: Date of the page's clock when an episode begins (``2024-05-01T09:30Z``); the task's
            own if not given.
        reward: Reward of an ended episode in place of the task's rubric, evaluators or page: a
            function of an `Episode`, or its name (docs/extending.md).
        weights: Weights of reward components by name, over the defaults; ``{"length": 0.1,
            "my_rewards:polite": 0.5}``.
        parser: Parser of actions in texts: a function, an entry point, or ``module:function``.
        repeats: Number of equal steps in a row that end the episode; 0 for never.
        stop_on_invalid: True ends the episode at a text that is no action, as runs do by default.
        judge: An entered judge, for rubrics with facts that no program can check (docs/rewards.md).
        live: Log-ins, and the hosts that live pages may reach. An opened address may always be
            reached.
        site: Site that serves the task, not started; made from the task's ``site`` if not given.
        pool: Browsers that several environments share (`make_pool`); an own pool if not given.
        sites: Started sites that several environments share; an own site if not given.
        page: A page of Playwright's, to play on it instead of a browser of ours
            (docs/playwright.md). It stays open.
        forkable: True for episodes that can be forked (`WebEnv.fork`).

    Raises:
        TaskError: There is no such task or seed.
        ConfigError: A name or an option is wrong.
    """
    chosen = choose_task(
        task, site=None if site is None else site.name, seed=seed, instruction=instruction, horizon=horizon, date=date
    )
    live = live or LiveOptions()
    if isinstance(task, str) and "://" in task:
        # A person names this address, so it may be reached, also on this machine.
        origin = f"{task.partition('://')[0].lower()}://{chosen.site}"
        live = replace(live, addresses={chosen.site: origin, **live.addresses})
    if page is not None:
        if pool is not None:
            raise ConfigError("page: a pool or host has browsers of its own; give open_env a page or a pool")
        if forkable:
            raise ConfigError("forkable: a page of yours cannot be shown again; leave out page")
        from envs.browser.user_page import check_user_page  # Playwright is imported only where it is used

        check_user_page(page, chosen)
    return WebEnv(
        chosen,
        seed=seed_of(chosen, seed),
        reward=reward,
        weights=weights,
        parser=parser,
        repeats=repeats,
        stop_on_invalid=stop_on_invalid,
        judge=judge,
        live=live,
        site=site,
        pool=pool,
        sites=sites,
        page=page,
        forkable=forkable,
    )


class WebEnv:
    """One episode at a time of one task.

    Made by `open_env`; ``reset``, then ``step`` until ``done``, then ``reset`` again.
    """

    def __init__(
        self,
        task: WebTask,
        *,
        seed: int,
        reward: RewardFunction | str | None,
        weights: Mapping[str, float] | None,
        parser: str | Parser | None,
        repeats: int,
        stop_on_invalid: bool,
        judge: Judge | None,
        live: LiveOptions,
        site: Site | None,
        pool: BrowserPool | None,
        sites: SharedSites | None,
        page: Page | None = None,
        forkable: bool = False,
    ) -> None:
        self.task = task
        self.seed = seed
        """Seed of the next episode."""
        self.trajectory: Trajectory | None = None
        """The record of the last ended episode, with its reward; its model fields are empty."""
        self._grading = EnvGrader(task, reward=reward, weights=weights, judge=judge, live=live)
        self._parse = as_parsed(parser) if parser is not None else parse
        self._repeats, self._stop_on_invalid = repeats, stop_on_invalid
        self._live, self._forkable = live, forkable
        self._sites = sites if site is None and is_served(task.site, live.addresses) else None
        self._site = site if site is not None or self._sites is not None else make_site(task.site, live)
        self._pool, self._user_page = pool, page
        self._stack = AsyncExitStack()
        self._session: Any = None
        self._episode: WebEpisode | None = None
        self._episode_id = task.task_id
        self._pictures: tuple[bytes, ...] = ()

    @property
    def reward(self) -> RewardBundle | None:
        """The parts of the last episode's reward with their evidence; ``None`` before its end."""
        return None if self.trajectory is None else self.trajectory.reward

    @property
    def har(self) -> dict[str, Any]:
        """The episode's requests as an HTTP archive (HAR 1.2); before the environment is closed.

        It has no bodies of answers and no headers of cookies and credentials. It has the bodies of
        requests, which may hold what was typed.

        Raises:
            ConfigError: The pool does not record them (``make_pool(record_network=True)``).
            BrowserError: There is no episode.
        """
        if self._session is None:
            raise BrowserError("the environment is not open: use `async with open_env(…) as env`")
        log: NetworkLog = self._session.network
        return log.har()

    @property
    def page_step(self) -> PageStep | None:
        """The newest page with all that was read of it; ``None`` before the first one."""
        return None if self._episode is None else self._episode.page

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the present episode so far; empty without one."""
        return () if self._episode is None else tuple(self._episode.steps)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._site is None:
                assert self._sites is not None
                site = await self._sites.started(self.task.site)
            else:
                site = self._site
                stack.push_async_callback(site.close)
                await site.start()
            pool = self._pool
            if self._user_page is not None:
                from envs.browser.user_page import UserPagePool  # as in `open_env`

                pool = await stack.enter_async_context(UserPagePool(self._user_page))
            elif pool is None:
                pool = await stack.enter_async_context(BrowserPool(max_sessions=OWN_SESSIONS if self._forkable else 1))
            self._grading.open(pool, site)
            inspect = capture_page if self.task.reference else None
            self._session = await stack.enter_async_context(pool.lease(site, inspect=inspect))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._session = self._episode = None
        await self._stack.aclose()

    def __await__(self) -> Generator[Any, None, Self]:
        """``env = await open_env(…)``, where no block fits; then `close` it."""
        return self.__aenter__().__await__()

    async def close(self) -> None:
        """Give the browser back, and stop what was started for this environment."""
        await self.__aexit__()

    async def reset(self, seed: int | None = None) -> StepResult:
        """Begin an episode.

        Args:
            seed: Seed of this and the next episodes; the last one again if not given.

        Raises:
            BrowserError: The page did not come up, or the environment is not open.
            TaskError: The seed is not one of the task's.
            SiteError: A picture of the instruction cannot be read.
        """
        if self._session is None:
            raise BrowserError("the environment is not open: use `async with open_env(…) as env`")
        self.seed = self.seed if seed is None else seed_of(self.task, seed)
        self.trajectory = None
        self._grading.forget_pictures()
        self._episode = None
        self._pictures = await PictureReader.of(self._live).read_all(self.task.images) if self.task.images else ()
        episode = WebEpisode(
            self.task, self.seed, repeats=self._repeats, stop_on_invalid=self._stop_on_invalid, memory=None
        )
        await episode.begin(self._session, forkable=self._forkable)
        self._episode = episode
        return await self._result(episode)

    async def step(self, action: AnyAction) -> StepResult:
        """Carry out an action.

        One that cannot be carried out is no exception: the next observation says why.

        A browser that fails ends the episode with the reward ``None``.

        Raises:
            TaskError: no episode is going on.
            ConfigError: this is no action, dictionary or text; or a reward function failed.
        """
        episode = self._running()
        parsed, text = read_turn(action, self._parse)
        assert episode.page is not None
        turn = {
            **NO_TURN,
            "response": text,
            "form": str(parsed.form),
            "screenshot": self._grading.keep(episode.page.screenshot),
        }
        try:
            await episode.act(parsed.action)
            episode.record(parsed.action, turn)
        except BrowserError as error:
            episode.fail(error)
        return await self._result(episode)

    @asynccontextmanager
    async def fork(self, count: int = 2) -> AsyncIterator[tuple[WebEnv, ...]]:
        """Lend environments that go on in the middle of the episode, equal to this one until they
        act; this one goes on too.

        Raises:
            TaskError: No episode is going on.
            ConfigError: The environment was not opened with ``forkable``, or the pool is too small.
            CapacityError: No session became free in time.
            BrowserError: The browser or the site failed, or a fork's pages differ.
        """
        episode = self._running()
        async with self._session.fork(count) as sessions:
            yield tuple(self._continued(episode, session, number) for number, session in enumerate(sessions, start=1))

    def _continued(self, episode: WebEpisode, session: WebSession, number: int) -> WebEnv:
        env = copy(self)
        env._session, env._stack, env._grading = session, AsyncExitStack(), self._grading.copy()
        env._episode, env._episode_id = episode.continued(session), f"{self._episode_id}.{number}"
        return env

    def page(self) -> AbstractAsyncContextManager[Page]:
        """Lend the episode's tab to Playwright (`envs.playwright_page`); then `observe`.

        An environment on the caller's own page gives that page.

        Raises:
            TaskError: No episode is going on.
        """
        return self._running().playwright()

    def lend(self) -> AbstractAsyncContextManager[LentPage]:
        """The same for any DevTools client (`envs.supply`).

        Raises:
            ConfigError: The page is the caller's own.
        """
        if self._user_page is not None:
            raise ConfigError("the page is your own: give its clients the address of your browser")
        return self._running().lend()

    async def observe(self) -> StepResult:
        """Return the page as it was last seen, such as after `page`; graded if the episode is over.

        Raises:
            TaskError: There is no episode.
        """
        if self._episode is None:
            raise TaskError("no episode: call reset() first")
        return await self._result(self._episode)

    def _running(self) -> WebEpisode:
        """Return the episode that is going on."""
        episode = self._episode
        if episode is None:
            raise TaskError("no episode: call reset() first")
        if episode.lent:
            raise TaskError("the page is lent: leave `page()` or close its DevTools address first")
        if episode.over:
            raise TaskError(f"the episode is over ({episode.stop_reason}): call reset() for the next one")
        return episode

    async def _result(self, episode: WebEpisode) -> StepResult:
        page = episode.page
        assert page is not None
        if not episode.over:
            return StepResult(0.0, False, page.observation, page.screenshot, pictures=self._pictures)
        self.trajectory = ended = self.trajectory or await self._grading.grade(episode, self._episode_id)
        reward = ended.reward
        end, why, seen = ended.stop_reason, cause_of(reward), page.observation
        return StepResult(reward.score, True, seen, page.screenshot, end, why, self._pictures)
