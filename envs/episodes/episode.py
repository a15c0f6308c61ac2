"""One episode on a browser session: begin, act, read the end, keep the record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy, deepcopy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from envs.browser import PageStep, WebSession
from envs.browser.context import PageCrashed
from envs.browser.devtools.lent import LentPage
from envs.episodes.ending import EndWatch
from envs.episodes.page_script import PageScript
from envs.episodes.read_end import read_end
from envs.memory import EpisodeMemory, typed_secret
from envs.rewards import score
from envs.rewards.webarena import Helper
from envs.signals import aggregate
from envs.sites import LiveOptions
from envs.types import (
    Action,
    BrowserError,
    ConfigError,
    Forget,
    Invalid,
    Observation,
    Recorded,
    Remember,
    Step,
    StopReason,
    Trajectory,
    WebTask,
)
from envs.types.signals import EpisodeSignals

if TYPE_CHECKING:
    from playwright.async_api import Page

NOT_GRADED = "it was not graded yet"
"""Cause of the abstention that is an episode's reward until it is graded."""

NO_TURN: Mapping[str, Any] = MappingProxyType(
    {
        "screenshot": "",
        "prompt": "",
        "prompt_ids": (),
        "response": "",
        "response_ids": (),
        "logprobs": (),
        "policy_version": 0,
    }
)
"""Fields of a `Step` that describe a model's decision, for steps without one."""


class WebEpisode:
    """One attempt of one task.

    Call `begin`, then `act` and `record` until `over`, then `read_end`; afterwards `trajectory` is
    its record. The record can be read at any moment, also after a failure before `begin` ended.
    """

    def __init__(
        self, task: WebTask, seed: int, *, repeats: int, stop_on_invalid: bool, memory: EpisodeMemory | None = None
    ) -> None:
        """
        Args:
            repeats: Equal steps in a row that end the episode; 0 for never.
            stop_on_invalid: True if an `Invalid` action ends the episode; else the next observation
                says what is wrong with it.
            memory: Carries out `Remember` and `Forget`; without one these actions may not occur.
        """
        self.task = task
        self.seed = seed
        self.memory = memory
        self.page: PageStep | None = None
        """The newest page."""
        self.before: PageStep | None = None
        """The page before the last action."""
        self.steps: list[Step] = []
        self.stop_reason: StopReason | None = None
        self.error: str | None = None
        """Reason of the abstention; ``None`` if it is none."""
        self.wall = ""
        """Name of the `envs.ends.BlockSign` that was shown instead of the site; else empty."""
        self.lent = False
        """True while a foreign client has the page."""
        self.recorded: Recorded | None = None
        self._script = PageScript(task.script) if task.script else None
        self._session: WebSession | None = None
        self._stop_on_invalid = stop_on_invalid
        self._watch = EndWatch(repeats)
        self._ended: PageStep | None = None
        """The last page of an episode that is over."""

    @property
    def over(self) -> bool:
        """True if there is nothing more to do."""
        return self.stop_reason is not None

    async def begin(self, session: WebSession, *, forkable: bool = False) -> PageStep:
        """Open and return the first page.

        Args:
            forkable: True for an episode that can be forked (`continued`).

        Raises:
            ConfigError: It was to be forkable, and cannot be.
            BrowserError: the browser, the page or the deadline failed; the caller passes it to
                `fail`.
        """
        self._session = session
        if forkable and self._script is not None and self._script.sets_up:
            raise ConfigError(f"an episode that can be forked cannot begin: script {self._script.name} has a setup")
        self.page = await session.reset(self.task, self.seed, forkable=forkable)
        self._look(self.page, first=True)
        if self._script is not None and not self.over:
            await self._script.setup(self)
        return self.page

    def continued(self, session: WebSession) -> WebEpisode:
        """Return an episode that goes on from here on a fork of the session, with its own record.

        The steps so far count for its horizon and its repetitions.
        """
        other = copy(self)
        other._session, other.steps, other._watch = session, list(self.steps), self._watch.copy()
        other.memory = deepcopy(self.memory)
        assert self.page is not None, "begin() comes first"
        other.page = replace(session.seen, observation=self.page.observation)
        return other

    async def act(self, action: Action) -> PageStep:
        """Carry out an action and return the page after it. `record` keeps the step.

        Raises:
            BrowserError: as in `begin`.
        """
        before = self.page
        assert self._session is not None and before is not None, "begin() comes first"
        if isinstance(action, Remember | Forget):  # the page stands still and is not looked at again
            assert self.memory is not None, "the parser reads these in an episode with a memory"
            page = before.unchanged(self.memory.apply(action))
        else:
            page = await self._session.step(action)
            if self.memory is not None:
                self.memory.hide(typed_secret(action, before.observation))
        self.before, self.page = before, page
        return page

    def record(self, action: Action, turn: Mapping[str, Any] = NO_TURN) -> Step:
        """Keep the step that `act` just took, and decide whether the episode goes on.

        Args:
            turn: Fields of the `Step` that describe how the action was decided, and what that cost.
        """
        before, page = self.before, self.page
        assert before is not None and page is not None, "act() comes first"
        settled = str(page.settled.reason) if page.settled is not None else ""
        seen = {"point": page.point, "error": page.error, "settled": settled, "signals": page.signals}
        step = Step(index=len(self.steps), observation=before.observation, action=action, **{**seen, **turn})
        self.steps.append(step)
        if isinstance(action, Invalid) and self._stop_on_invalid:
            self.stop_reason = StopReason.INVALID_ACTION
        elif not page.done and self._watch.repeats(before, action):
            self.stop_reason = StopReason.REPETITION
        elif len(self.steps) >= self.task.horizon:
            self.stop_reason = StopReason.HORIZON
        self._look(page)
        return step

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[LentPage]:
        """Leave the page to a foreign DevTools client, and take it as it is at the end.

        A browser or page that fails ends the episode with an abstention.

        Raises:
            BrowserError: the browser, the page or the deadline failed.
        """
        session = self._session
        assert session is not None, "begin() comes first"
        self.lent = True
        try:
            async with session.lend() as lent:
                yield lent
        except BrowserError as error:
            self.fail(error)
            raise
        finally:
            self.lent = False
            if not self.over:
                self.page = session.seen
                self._look(self.page)

    def playwright(self) -> AbstractAsyncContextManager[Page]:
        """Lend the page to Playwright (`envs.playwright_page`)."""
        from envs.playwright_page import playwright_page  # imported only where it is used

        return playwright_page(self.lend())

    async def read_end(self, live: LiveOptions | None = None, helpers: Mapping[str, Helper] | None = None) -> None:
        """Read what the task's grading needs and what only the browser has.

        An abstention is not read.

        Args:
            live: Options of live sites.
            helpers: Functions for WebArena's checks besides those that need no site.

        Raises:
            BrowserError: the browser failed.
        """
        if self.error is None:
            assert self._session is not None, "begin() comes first"
            self.recorded = await read_end(self._session, self.task, live or LiveOptions(), helpers)
            result = await self._script.validate(self) if self._script is not None else None
            if result is not None:
                changes = dict(zip(("validated", "validation"), result, strict=True))
                self.recorded = (self.recorded or Recorded()).model_copy(update=changes)

    async def inspected(self) -> PageStep:
        """Return the last page with what the pool's ``inspect`` reads.

        It is read now if a dialog hid the page before.

        Raises:
            BrowserError: the browser failed.
        """
        page = self.page
        assert self._session is not None and page is not None, "begin() comes first"
        if page.inspected is None and self.error is None:
            page = replace(page, inspected=await self._session.look(lambda shown: shown.inspected()))
        return page

    def fail(self, error: BrowserError) -> None:
        """Abstain because the browser or its page failed."""
        self.abstain(StopReason.CRASH if isinstance(error, PageCrashed) else StopReason.BROWSER_ERROR, str(error))

    def abstain(self, reason: StopReason, message: str) -> None:
        """Abstain: the episode failed for a reason that is not the policy's."""
        self.stop_reason, self.error = reason, message

    def _look(self, page: PageStep, *, first: bool = False) -> None:
        """End the episode if its end was declared, or the site cannot be used."""
        unusable = None if page.done else self._watch.unusable(page, first=first)
        if unusable is not None:
            self.abstain(unusable.reason, unusable.message)
            self.wall = unusable.wall
        elif page.done:
            self.stop_reason = page.stop or StopReason.DONE
        if self.over:
            self._ended = page

    def trajectory(self, **identity: Any) -> Trajectory:
        """Return the record as it stands, without a grade.

        Args:
            identity: Fields of a `Trajectory` that this class does not know: ids, sample, attempt,
                policy version, blobs.
        """
        page = self._ended
        final: Observation | None = None
        if page is not None:
            seen = page.observation
            final = seen.model_copy(update={"notices": page.earlier_notices + seen.notices})
        return Trajectory(
            task_id=self.task.task_id,
            kind=self.task.kind,
            seed=self.seed,
            steps=tuple(self.steps),
            final=final,
            stop_reason=self.stop_reason or StopReason.HORIZON,
            reward=score([], abstained=self.error or NOT_GRADED),
            page_facts={} if page is None else dict(page.page_facts),
            signals=self._signals(),
            recorded=self.recorded,
            answer="" if page is None else page.said,
            memory=self.memory.changes() if self.memory is not None else (),
            error=self.error,
            wall=self.wall,
            **identity,
        )

    def _signals(self) -> EpisodeSignals | None:
        signals = [step.signals for step in self.steps if step.signals is not None]
        return aggregate(signals) if signals else None
