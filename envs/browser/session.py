"""A leased browser session: reset a task to a seed, act, observe, fork, and look at the end.

Who runs, and who waits for whom, all in one event loop::

    episode ── await step() ──> WebSession ── guard(deadline) ──> TaskPage.act
                                                                         │ its turn (Dispatcher)
                                                                         v
                                        Tab ── CDP calls, one batch ──> Chromium
    episode <── PageStep ────── WebSession <── look at the page ── settled (VirtualClock)

A lost connection, a crash or the deadline cancels the guarded work: the caller gets one
`BrowserError`, and the context is not used again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import TypeVar

from envs.browser.context import BrowserContext
from envs.browser.contexts import ContextLender, end_episode
from envs.browser.devtools.lent import LentPage, real_time
from envs.browser.dispatcher import Dispatcher
from envs.browser.final_page import FinalPage
from envs.browser.forks import (
    EpisodeHistory,
    check_forkable,
    fork_on_site,
    go_on_site,
    open_on_site,
    run_all,
)
from envs.browser.network_log import NetworkLog
from envs.browser.options import Inspect, PageWork
from envs.browser.page import TaskPage
from envs.browser.page_step import PageStep
from envs.cancel_scope import finish_shielded
from envs.sites.base import Site, SiteEpisode
from envs.types import Action, BrowserError, ConfigError, Needs, Recorded, WebTask, needs
from envs.types.evidence import ServerState

T = TypeVar("T")

_numbers = itertools.count()
"""Numbers that tell episodes of one task apart in the names of their queues."""

NO_EPISODE = (
    "no episode: call reset() first, also after a BrowserError; "
    "a page is looked at before the session is closed or reset"
)


class WebSession:
    """Plays one episode at a time on one site. Made by `BrowserPool.lease`.

    It has one owner: a second call while one runs is refused.

    Every call ends within ``step_deadline`` seconds; what goes wrong in the browser is a
    `BrowserError` and the session can then only be reset or closed. An action that cannot be
    carried out is no error: the next observation says why.

    A caller that does not know whether a step arrived (a remote one, say) may ask for it again:
    with the same epoch and step id it is answered from memory and the page is not touched twice.
    """

    def __init__(
        self,
        contexts: ContextLender,
        dispatcher: Dispatcher,
        site: Site,
        *,
        step_deadline: float,
        inspect: Inspect | None = None,
        lease: Callable[[], AbstractAsyncContextManager[WebSession]] | None = None,
    ) -> None:
        """
        Args:
            lease: Lends a further session on the site, for a fork.
        """
        self.epoch = 0
        """Counts resets; a step of an earlier epoch is refused."""
        self.step_id = 0
        """Number of the next step of this epoch."""
        self.tell: Callable[[PageWork], None] = lambda work: None
        """Called with each piece of work that begins. The owner may set it before a reset."""
        self._contexts = contexts
        self._dispatcher = dispatcher
        self._site = site
        self._step_deadline = step_deadline
        self._inspect = inspect
        self._lease = lease
        self._history: EpisodeHistory | None = None
        """Actions so far, of an episode that can be forked."""
        self._context: BrowserContext | None = None
        self._page: TaskPage | None = None
        self._site_episode: SiteEpisode | None = None
        self._result: PageStep | None = None
        self._last_action: Action | None = None
        self._in_call = False
        self._closed = False

    @property
    def server(self) -> ServerState | None:
        """The site's server state for this episode; ``None`` where it has none.

        Use it before the session is closed or reset.

        Raises:
            BrowserError: The session is closed.
        """
        self._check_open("server")
        return None if self._site_episode is None else self._site_episode.state

    @property
    def records_network(self) -> bool:
        """True if the pool keeps the requests of episodes (`network`)."""
        return self._contexts.options.record_network

    @property
    def network(self) -> NetworkLog:
        """The requests of the running episode.

        Raises:
            ConfigError: The pool does not record them.
            BrowserError: There is no episode.
        """
        log = self.page.context.network
        if log is None:
            raise ConfigError("requests are not recorded: give make_pool(record_network=True)")
        return log

    @property
    def page(self) -> TaskPage:
        """Page of the running episode.

        Raises:
            BrowserError: There is no episode.
        """
        if self._page is None:
            raise BrowserError(NO_EPISODE)
        return self._page

    async def reset(self, task: WebTask, seed: int, *, forkable: bool = False) -> PageStep:
        """Begin an episode, in a new epoch.

        Args:
            forkable: Keep what `fork` needs.

        Raises:
            BrowserError: The browser, the page or the deadline failed.
            ConfigError: It was to be forkable, and cannot be.
        """
        with self._one_at_a_time("reset"):
            if forkable:
                check_forkable(self._site, self._contexts.options)
            self._history = EpisodeHistory(task, seed) if forkable else None
            self.epoch += 1
            self.step_id = 0
            self._result = self._last_action = None
            await self._give_back()
            # An episode that needs a browser waits for its start.
            self.tell("reset" if self._contexts.browser_set.has_one else "restart")
            opening = open_on_site(self._site, task, seed, forkable=forkable)
            self._result = result = await self._begin(task, seed, opening)
            if self._history is not None:
                self._history.shown.append(result.observation)
            return result

    async def _begin(self, task: WebTask, seed: int, opening: Awaitable[SiteEpisode]) -> PageStep:
        """Take a context, and enter an episode of the site."""
        try:
            async with asyncio.timeout(self._step_deadline):
                opened = self._site_episode = await opening
                self._context = await self._contexts.acquire(self._site, task)
                self._contexts.lead(self._context, self._site, opened.routes)
        except TimeoutError as error:
            raise BrowserError(f"no page for {task.task_id} within {self._step_deadline:g} s") from error
        finally:
            if self._closed:  # meanwhile: `close` did not give back what came after it
                await self._give_back()
        self._check_open("reset")
        self._page = self._episode_page(self._context, task)
        if needs(task.rubric).downloads and not self._contexts.options.browser_address:
            folder = self._page.downloads = self._context.download_folder(self._contexts.options.downloads)
            await self._context.guard(folder.allow(), self._step_deadline, f"downloads of {task.task_id}")
        if self._context.network is not None:
            self._context.network.clear()
        if self._site.cookies or self._site.stores:
            log_in = self._context.log_in(self._site.cookies, self._site.stores)
            await self._context.guard(log_in, self._step_deadline, f"log-in of {task.task_id}")
        begin = self._page.begin(seed, opened.path)
        result, loaded = await self._context.guard(begin, self._step_deadline, f"reset of {task.task_id}")
        self._contexts.record_episode(self._site, loaded=loaded)
        return result

    @asynccontextmanager
    async def fork(self, count: int = 2) -> AsyncIterator[tuple[WebSession, ...]]:
        """Lend sessions that go on from here, equal to this one until they act.

        Each has a copy of the server's state and a context of its own, in which the episode's
        actions are repeated. They take places of the pool, and are closed at the end.

        Raises:
            ConfigError: The episode was not begun with ``forkable``, or the pool is too small.
            CapacityError: No session became free in time.
            BrowserError: The episode is over, the browser or the server failed, or a fork differs.
        """
        async with AsyncExitStack() as stack:
            with self._one_at_a_time("fork"):
                history, seen, opened = self._history, self.seen, self._site_episode
                if history is None or opened is None or self._lease is None:
                    raise ConfigError("the episode was not begun to be forked: use reset(…, forkable=True)")
                history.check_fork(count, self._contexts.options.max_sessions, seen)
                forks = [await stack.enter_async_context(self._lease()) for _ in range(count)]
                for fork, copy in zip(forks, await fork_on_site(self._site, opened, history, count), strict=True):
                    fork._site_episode = copy
                await run_all(fork._repeat(history, seen.dom_hash) for fork in forks)
            yield tuple(forks)

    async def _repeat(self, history: EpisodeHistory, dom_hash: str) -> None:
        """Become a fork of an episode, on the copy of its server's state."""
        with self._one_at_a_time("fork"):
            opened = self._site_episode
            assert opened is not None, "given by the session that is forked"
            first = await self._begin(history.task, history.seed, asyncio.sleep(0, opened))
            self._result = await history.repeat(self.page, first, dom_hash, self._step_deadline)
            await go_on_site(opened, history)
            self._history, self.step_id = history.copy(), len(history.actions)
            self._last_action = history.actions[-1] if history.actions else None

    def _interrupt_history(self, why: str) -> None:
        if self._history is not None:
            self._history.interrupted = why

    async def step(self, action: Action, *, epoch: int | None = None, step_id: int | None = None) -> PageStep:
        """Carry out an action and look.

        Args:
            action: The action.
            epoch: Epoch that the caller means; the present one if not given.
            step_id: Number of the step in its epoch; the next one if not given. The last number
                again returns the same result again.

        Raises:
            BrowserError: The browser, the page or the deadline failed; or there is no such episode
                or step.
        """
        with self._one_at_a_time("step"):
            again = self._answered(action, self.epoch if epoch is None else epoch, step_id)
            if again is not None:
                return again
            page, result = self.page, self.seen
            self._result = None
            what = f"{action.type} in {page.task.task_id}"
            result = await page.context.guard(page.act(action, result), self._step_deadline, what)
            self._result, self._last_action = result, action
            self.step_id += 1
            if self._history is not None:
                self._history.add(action, result.observation)
            return result

    async def evidence(self, needs: Needs) -> Recorded:
        """Read the evidence that the episode's grading needs.

        The page stays as it is, but for a dialog, which is cancelled.

        Raises:
            BrowserError: The browser, the page or the deadline failed; or there is no episode.
        """
        with self._one_at_a_time("evidence"):
            page = self.page
            self._interrupt_history("its end was read")
            return await page.context.guard(
                page.evidence(needs), self._step_deadline, f"evidence of {page.task.task_id}"
            )

    async def look(self, work: Callable[[FinalPage], Awaitable[T]]) -> T:
        """Run ``work`` on the page, and on others of its site, after the episode's end.

        It has the deadline of a step. The episode cannot go on afterwards.

        Raises:
            BrowserError: The browser or the deadline failed; or there is no episode. Errors of
                ``work`` pass.
        """
        with self._one_at_a_time("look"):
            page = self.page
            self._result = None

            async def looking() -> T:
                await page.clear_dialogs()
                return await work(FinalPage(page))

            return await page.context.guard(looking(), self._step_deadline, f"look at the end of {page.task.task_id}")

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[LentPage]:
        """Leave the page to a foreign DevTools client; look again at the end (`seen`).

        The page's time is real meanwhile. No other episode gets its context.

        Raises:
            BrowserError: There is no episode; or the browser, the page or the deadline failed.
        """
        with self._one_at_a_time("lend"):
            page, self._result, self._last_action = self.page, None, None
            page.context.lent = True
            self._interrupt_history("a foreign client had its page")
            try:
                async with real_time(page.context):
                    yield self._contexts.lent_page(page)
            finally:
                what = f"look at {page.task.task_id} after it was lent"
                self._result = await page.context.guard(page.look_again(), self._step_deadline, what)

    @property
    def seen(self) -> PageStep:
        """The page as it was last seen.

        Raises:
            BrowserError: There is no episode, or it failed.
        """
        if self._result is None:
            raise BrowserError(NO_EPISODE)
        return self._result

    async def close(self) -> None:
        """Give the page back.

        Later calls are refused; `close` again does nothing.
        """
        self._closed = True
        self._result = None
        await self._give_back()

    def _episode_page(self, context: BrowserContext, task: WebTask) -> TaskPage:
        """Make the page of a new episode, with its queues."""
        options = self._contexts.options
        return TaskPage(
            context=context,
            queues=self._dispatcher.open_queues(f"{task.task_id} #{next(_numbers)}"),
            site=self._site,
            task=task,
            budget_ms=options.settle_budget_ms,
            allow=self._contexts.allow_of(context),
            marks=options.marks,
            screenshots=options.screenshots,
            clipboard=options.browser_per_episode,
            files=options.files / task.files if options.files and task.files else None,
            inspect=self._inspect or options.inspect,
            tell=self.tell,
        )

    def _answered(self, action: Action, epoch: int, step_id: int | None) -> PageStep | None:
        """Return the result of a step that was carried out before.

        Returns ``None`` if it is a new one.
        """
        if epoch != self.epoch:
            raise BrowserError(f"the session is in epoch {self.epoch}, not {epoch}: it was reset meanwhile")
        if step_id is None or step_id == self.step_id:
            return None
        if step_id != self.step_id - 1 or self._result is None:
            raise BrowserError(f"step {step_id} of epoch {epoch} cannot be carried out; the next one is {self.step_id}")
        if action != self._last_action:
            raise BrowserError(
                f"step {step_id} of epoch {epoch} was another action; a step may only be repeated as it was"
            )
        return self._result

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise BrowserError(f"{what} after the session was closed; take another one with BrowserPool.lease()")

    @contextmanager
    def _one_at_a_time(self, what: str) -> Iterator[None]:
        self._check_open(what)
        if self._in_call:
            raise BrowserError(f"{what} while another call runs: a session has one owner")
        self._in_call = True
        try:
            yield
        finally:
            self._in_call = False

    async def _give_back(self) -> None:
        context, self._context = self._context, None
        page, self._page = self._page, None
        site_episode, self._site_episode = self._site_episode, None
        if context is not None or site_episode is not None:
            await finish_shielded(end_episode(self._contexts, self._site, context, page, site_episode))
