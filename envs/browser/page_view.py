"""The look at an episode's page: what the policy sees of it, and what the site declares.

Every operation goes through the episode's queues of the `Dispatcher`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envs.actions import ActionError
from envs.browser.context import BrowserContext
from envs.browser.dispatcher import OperationQueues
from envs.browser.operations import OperationKind
from envs.browser.options import Inspect, PageWork
from envs.browser.page_step import PageStep
from envs.browser.speculative_screenshot import SpeculativeScreenshots
from envs.browser.tab import Tab, shown_address, white_picture
from envs.observation import Observer, Reading
from envs.observation.options import MESSAGE_CHARS
from envs.observation.text_utils import shorten
from envs.observation.whole_page import read_whole
from envs.settle import Look
from envs.sites.base import Site
from envs.types import Observation, OpenTab, WebTask, WholePage, needs


@dataclass(kw_only=True)
class PageView:
    """The page of one episode, as it is looked at."""

    context: BrowserContext
    queues: OperationQueues
    site: Site
    task: WebTask
    marks: bool = False
    """Draw the elements' numbers on the screenshots."""
    screenshots: bool = True
    inspect: Inspect | None = None
    """Called at each look (`PoolOptions.inspect`)."""
    tell: Callable[[PageWork], None] = lambda work: None
    """Called with each piece of work that begins (`WebSession.tell`)."""

    def __post_init__(self) -> None:
        self._observer = Observer(self.site.observation, exclude=self.site.exclude)
        self._reading: Reading | None = None
        self._looked_at: Tab | None = None
        self._looked: Look | None = None
        """The clock's look at the time of the reading; the reading holds as long as the clock has
        this look."""
        self._instruction = self.task.instruction or ""
        self._notices: list[str] = []
        self._screenshot = b""
        self.speculative = SpeculativeScreenshots(self._screenshot_of)
        self._refused = self.context.popups_refused
        self._needs = needs(self.task.rubric)
        self._pages: list[WholePage] = []
        """Whole pages of the steps until now, for facts that ask for them."""

    @property
    def tab(self) -> Tab:
        """The tab that is looked at and acted on."""
        return self.context.active

    async def _look(self, point: tuple[float, float] | None, error: ActionError | None = None) -> PageStep:
        refused, self._refused = self.context.popups_refused - self._refused, self.context.popups_refused
        too_many = [f"{refused} windows too many were closed"] if refused else []
        no_page = self.tab.clock.requests.drain_notices()
        notices, self._notices = [*self._notices, *too_many, *([] if error else no_page)], []
        line = error.line() if error else None
        if self.tab.dialogs.pending is not None:
            return await self._waiting(point, line, tuple(notices))
        tab, site, kind = self.tab, self.site, OperationKind
        self.tell("observe")
        self._looked_at, self._looked = tab, tab.clock.looked
        observed = self.queues.run(kind.OBSERVATION, lambda: self._observe(tab, line))
        facts = self._declared(tab)
        if site.final_screenshot or point is None:
            # Only an action ends an episode, and a page at its end may show nothing: else looking
            # first saves a screenshot.
            reading, declared, screenshot = await asyncio.gather(observed, facts, self._shoot(tab))
        else:
            reading, declared = await asyncio.gather(observed, facts)
            screenshot = b"" if declared["done"] else await self._shoot(tab)
        self._reading, self._screenshot = reading, screenshot
        if self._needs.every_page:
            await self._read_whole()
        # At its end a page may show no instruction any more; the last one holds.
        self._instruction = self.task.instruction or declared["instruction"] or self._instruction
        reader, inspected = tab.signals, await self.inspected()
        signals = (
            await self.queues.run(kind.EVALUATION, lambda: reader.read(virtual=tab.clock.virtual)) if reader else None
        )
        return PageStep(
            observation=self._complete(reading.observation, tuple(notices)),
            screenshot=reading.marked(screenshot) if self.marks and screenshot else screenshot,
            done=bool(declared["done"]),
            page_facts=dict(declared["facts"]),
            point=point,
            hash_dom=lambda: reading.dom_hash,
            status=tab.clock.requests.main_status,
            unreachable=tab.clock.requests.main_unreachable,
            site_problem=tab.clock.requests.main_problem,
            frames=reading.frames,
            signals=signals,
            inspected=inspected,
            list_nodes=lambda: {number: handle.backend_node_id for number, handle in reading.handles.items()},
        )

    async def _declared(self, tab: Tab) -> dict[str, Any]:
        """Return the facts that the page declares about the episode."""
        script = self.site.facts_script(self.task)
        if not script:
            return {"instruction": "", "done": False, "facts": {}}
        declared: dict[str, Any] = await self.queues.run(OperationKind.EVALUATION, lambda: tab.evaluate(script))
        return declared

    async def _shoot(self, tab: Tab) -> bytes:
        if not self.screenshots:
            return b""
        taken = await self.speculative.result(tab)
        return await self._screenshot_of(tab) if taken is None else taken

    async def _screenshot_of(self, tab: Tab) -> bytes:
        return await self.queues.run(OperationKind.SCREENSHOT, tab.screenshot)

    async def _observe(self, tab: Tab, error: str | None) -> Reading:
        reading = await self._observer.observe(
            tab.cdp,
            viewport=self.context.viewport,
            instruction=self._instruction,
            error=error,
            world=tab.clock.world,
            looked=tab.clock.looked,
        )
        self.tell("screenshot")  # which was asked for at the same time, and is what is waited for now
        return reading

    def _complete(self, observation: Observation, notices: tuple[str, ...]) -> Observation:
        tabs = self.context.tabs
        listed = tuple(OpenTab(number=tab.number, active=tab is self.tab) for tab in tabs) if len(tabs) > 1 else ()
        update = {
            "instruction": self._instruction,
            "tabs": listed,
            "notices": tuple(shorten(notice, MESSAGE_CHARS) for notice in notices),
            "offers": self.site.offers,
        }
        return observation.model_copy(update=update)

    async def _waiting(
        self, point: tuple[float, float] | None, error: str | None, notices: tuple[str, ...]
    ) -> PageStep:
        """A dialog stops the page: nothing of it can be read until it is answered.

        The picture is the last one, or white before there is one.
        """
        pending = self.tab.dialogs.pending
        assert pending is not None
        if self.screenshots and not self._screenshot:
            self._screenshot = white_picture(self.context.looks)
        observation = Observation(
            instruction=self._instruction,
            elements=(),
            url=self._reading.observation.url if self._reading else await shown_address(self.tab.cdp),
            viewport=self.context.viewport,
            error=None if error is None else shorten(error, MESSAGE_CHARS),
            dialog=shorten(f"{pending.kind}: {pending.message}", MESSAGE_CHARS),
            notices=tuple(shorten(notice, MESSAGE_CHARS) for notice in notices),
            offers=self.site.offers,
        )
        return PageStep(observation, self._screenshot, done=False, point=point)

    async def inspected(self) -> Any:
        """Return what `inspect` reads of the page; ``None`` without one."""
        inspect, tab = self.inspect, self.tab
        return await self.queues.run(OperationKind.OBSERVATION, lambda: inspect(tab.cdp)) if inspect else None

    async def _read_whole(self) -> None:
        tab, viewport, elements = self.tab, self.context.viewport, self._needs.elements
        page = await self.queues.run(
            OperationKind.OBSERVATION,
            lambda: read_whole(self._observer, tab.cdp, viewport=viewport, world=tab.clock.world, elements=elements),
        )
        if self._pages[-1:] != [page]:
            self._pages.append(page)
