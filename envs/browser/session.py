"""What an episode speaks to: reset a task to a seed, act, and see what came of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from envs.actions import input as keys
from envs.browser.observation import Handle, observe_script, read_page
from envs.browser.page import BrowserPage
from envs.sites.base import Site
from envs.types import Action, BrowserError, Click, Invalid, Observation, Select, Type, WebTask

if TYPE_CHECKING:
    from envs.browser.pool import BrowserPool

EDITABLE = frozenset({"input", "password", "textarea"})
"""Tags that text can be typed into."""


@dataclass(frozen=True)
class Frame:
    """What there is to know after a reset or a step."""

    observation: Observation
    screenshot: bytes
    """JPEG of the viewport, or ``b""`` at the end on a site that then shows nothing of the task."""
    done: bool
    """The page declared the end."""
    page_facts: dict[str, float | bool | str] = field(default_factory=dict)
    """What the page declares (MiniWoB: raw_reward, done, reason)."""
    point: tuple[float, float] | None = None
    """Where the mouse went, in CSS pixels; ``None`` if the page was not touched."""


class WebSession:
    """One episode at a time on one site. Made by `BrowserPool.lease`, not safe for concurrent calls.

    Every call ends within ``step_deadline`` seconds; what goes wrong in the browser is a `BrowserError` and the session
    can then only be reset or closed. An action that cannot be carried out is no error: the next observation says why.
    """

    def __init__(self, pool: BrowserPool, site: Site, *, step_deadline: float, settle_budget_ms: float) -> None:
        self._pool = pool
        self._site = site
        self._deadline = step_deadline
        self._budget = settle_budget_ms
        self._page: BrowserPage | None = None
        self._task: WebTask | None = None
        self._frame: Frame | None = None
        self._instruction = ""
        self._handles: dict[int, Handle] = {}

    async def reset(self, task: WebTask, seed: int) -> Frame:
        """Begin an episode.

        Raises:
            BrowserError: the browser, the page or the deadline.
        """
        self._frame = None
        await self._give_back()
        try:
            async with asyncio.timeout(self._deadline):
                self._page = await self._pool.acquire(self._site, task)
        except TimeoutError as error:
            raise BrowserError(f"no page for {task.task_id} within {self._deadline:g} s") from error
        self._task, self._instruction = task, ""
        work = self._reset(self._page, task, seed)
        self._frame = await self._page.guard(work, self._deadline, f"reset of {task.task_id}")
        return self._frame

    async def step(self, action: Action) -> Frame:
        """Carry out an action and look.

        Raises:
            BrowserError: the browser, the page or the deadline; or there is no episode.
        """
        page, task, frame = self._page, self._task, self._frame
        if page is None or task is None or frame is None:
            raise BrowserError("no episode: call reset() first, also after a BrowserError")
        refusal = refuse(action, self._handles)
        if refusal is not None:
            # The page stood still, so what was seen is still true.
            seen = frame.observation.model_copy(update={"error": refusal})
            self._frame = replace(frame, observation=seen, point=None)
            return self._frame
        self._frame = None
        self._frame = await page.guard(
            self._step(page, task, action), self._deadline, f"{action.type} in {task.task_id}"
        )
        return self._frame

    async def close(self) -> None:
        """Give the page back. The session may not be used again."""
        self._frame = None
        await self._give_back()

    async def _give_back(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            await self._pool.release(page, self._site)

    async def _reset(self, page: BrowserPage, task: WebTask, seed: int) -> Frame:
        if page.path != task.path or self._site.reload_for(task):
            async with self._pool.loading:
                await page.goto(self._site.origin + task.path)
            self._pool.counters.navigations += 1
            page.path = task.path
            # Stopped before the episode begins: a running virtual clock races to the page's next timer, even to the
            # episode's own time-out.
            await page.clock.settle(self._budget)
        width, height = self._site.viewport
        await keys.move(page.cdp, width - 1, height - 1)  # or the last click's place would show a hover
        script = self._site.reset_script(task, seed)
        if script:
            await page.evaluate(script)
        await page.clock.settle(self._budget)
        while not await page.evaluate(self._site.ready_script(task)):
            await page.clock.settle(self._budget)
        page.episodes += 1
        self._pool.counters.episodes += 1
        return await self._look(page, task, None)

    async def _step(self, page: BrowserPage, task: WebTask, action: Action) -> Frame:
        assert isinstance(action, Click | Type | Select) and isinstance(
            action.element, int
        )  # the rest is refused before
        handle = self._handles[action.element]
        if isinstance(action, Select):
            await self._choose(page, handle, action.text)
        else:
            await keys.click(page.cdp, *handle.point)
        if isinstance(action, Type):
            await keys.replace_text(page.cdp, action.text)
        await page.clock.settle(self._budget)
        return await self._look(page, task, handle.point)

    async def _choose(self, page: BrowserPage, handle: Handle, label: str) -> None:
        # A click would open the list in a window of its own, which gets none of the page's input events.
        x, y = handle.point
        await page.evaluate(f"document.elementFromPoint({x}, {y}).closest('select').focus()")
        options = handle.options or ()
        await keys.choose_option(page.cdp, option_index(options, label) or 0)

    async def _look(self, page: BrowserPage, task: WebTask, point: tuple[float, float] | None) -> Frame:
        seeing = f"({{page: {observe_script(self._site.exclude)}, site: {self._site.facts_script(task)}}})"
        read = page.evaluate(seeing)
        # Only an action ends an episode, and a page at its end may show nothing: then looking first saves a screenshot.
        if self._site.final_screenshot or point is None:
            seen, screenshot = await asyncio.gather(read, page.screenshot())
        else:
            seen = await read
            screenshot = b"" if seen["site"]["done"] else await page.screenshot()
        return self._frame_of(seen, screenshot, task, point)

    def _frame_of(
        self, seen: dict[str, Any], screenshot: bytes, task: WebTask, point: tuple[float, float] | None
    ) -> Frame:
        site = seen["site"]
        # At its end a page may show no instruction any more; the last one holds.
        self._instruction = task.instruction or site["instruction"] or self._instruction
        observation, self._handles = read_page(
            seen["page"], instruction=self._instruction, viewport=self._site.viewport
        )
        return Frame(observation, screenshot, bool(site["done"]), dict(site["facts"]), point)


def option_index(options: tuple[str, ...], label: str) -> int | None:
    """Position of an option by its label: exact first, then without regard to case and spaces at the ends."""
    if label in options:
        return options.index(label)
    folded = [option.strip().casefold() for option in options]
    wanted = label.strip().casefold()
    return folded.index(wanted) if wanted in folded else None


def refuse(action: Action, handles: dict[int, Handle]) -> str | None:
    """Why an action cannot be carried out, as ``code: hint``; ``None`` if it can."""
    if isinstance(action, Invalid):
        return f"{action.code}: {action.reason}"
    if not isinstance(action, Click | Type | Select) or not isinstance(action.element, int):
        return f"bad_action: {action.type} is not carried out yet; use click, type or select on an element's number"
    handle = handles.get(action.element)
    if handle is None:
        known = f"choose 1 to {len(handles)}" if handles else "the page shows none"
        return f"unknown_element: there is no element {action.element}; {known}"
    if isinstance(action, Click):
        return None
    if isinstance(action, Type):
        return None if handle.tag in EDITABLE else f"not_editable: element {action.element} is a {handle.tag}; click it"
    if handle.options is None:
        return f"not_a_list: element {action.element} is a {handle.tag}; select needs a drop-down list"
    if option_index(handle.options, action.text) is None:
        shown = ", ".join(handle.options[:8])
        return f"no_such_option: element {action.element} has no option {action.text!r}; it has {shown}"
    return None
