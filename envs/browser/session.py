"""What an episode speaks to: reset a task to a seed, act, and see what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from envs.browser import keys
from envs.browser.context import BrowserContext
from envs.browser.observation import Handle, observe_script, read_page
from envs.browser.tab import Tab
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
    """One episode at a time on one site. Made by `BrowserPool.lease`, with one owner: a second call while one runs is refused.

    Every call ends within ``step_deadline`` seconds; what goes wrong in the browser is a `BrowserError` and the session
    can then only be reset or closed. An action that cannot be carried out is no error: the next observation says why.

    A caller that does not know whether a step arrived (a remote one, say) may ask for it again: with the same epoch and step id it is answered
    from memory and the page is not touched twice.
    """

    def __init__(self, pool: BrowserPool, site: Site, *, step_deadline: float, settle_budget_ms: float) -> None:
        self.epoch = 0
        """Counts resets; a step of an earlier epoch is refused."""
        self.step_id = 0
        """Number of the next step of this epoch."""
        self._pool = pool
        self._site = site
        self._deadline = step_deadline
        self._budget = settle_budget_ms
        self._context: BrowserContext | None = None
        self._task: WebTask | None = None
        self._frame: Frame | None = None
        self._last_action: Action | None = None
        self._instruction = ""
        self._handles: dict[int, Handle] = {}
        self._in_call = False

    async def reset(self, task: WebTask, seed: int) -> Frame:
        """Begin an episode, in a new epoch.

        Raises:
            BrowserError: the browser, the page or the deadline.
        """
        with self._one_at_a_time("reset"):
            self.epoch += 1
            self.step_id = 0
            self._frame = self._last_action = None
            await self._give_back()
            try:
                async with asyncio.timeout(self._deadline):
                    self._context = await self._pool.acquire(self._site, task)
            except TimeoutError as error:
                raise BrowserError(f"no page for {task.task_id} within {self._deadline:g} s") from error
            self._task, self._instruction = task, ""
            what = f"reset of {task.task_id}"
            self._frame = await self._guarded(self._context, self._reset(self._context, task, seed), what)
            return self._frame

    async def step(self, action: Action, *, epoch: int | None = None, step_id: int | None = None) -> Frame:
        """Carry out an action and look.

        Args:
            action: What to do.
            epoch: Epoch that the caller means; the present one if not given.
            step_id: Number of the step in its epoch; the next one if not given. The last one again gives the same answer again.

        Raises:
            BrowserError: the browser, the page or the deadline; or there is no such episode or step.
        """
        with self._one_at_a_time("step"):
            again = self._answered(action, self.epoch if epoch is None else epoch, step_id)
            if again is not None:
                return again
            context, task, frame = self._context, self._task, self._frame
            if context is None or task is None or frame is None:
                raise BrowserError("no episode: call reset() first, also after a BrowserError")
            self._frame = None
            self._frame = await self._carry_out(context, task, frame, action)
            self._last_action = action
            self.step_id += 1
            return self._frame

    async def close(self) -> None:
        """Give the page back. The session may not be used again."""
        self._frame = None
        await self._give_back()

    def _answered(self, action: Action, epoch: int, step_id: int | None) -> Frame | None:
        """The answer of a step that was carried out before; ``None`` if it is a new one."""
        if epoch != self.epoch:
            raise BrowserError(f"the session is in epoch {self.epoch}, not {epoch}: it was reset meanwhile")
        if step_id is None or step_id == self.step_id:
            return None
        if step_id != self.step_id - 1 or self._frame is None:
            raise BrowserError(f"step {step_id} of epoch {epoch} cannot be carried out; the next one is {self.step_id}")
        if action != self._last_action:
            raise BrowserError(
                f"step {step_id} of epoch {epoch} was another action; a step may only be repeated as it was"
            )
        return self._frame

    async def _carry_out(self, context: BrowserContext, task: WebTask, frame: Frame, action: Action) -> Frame:
        refusal = refuse(action, self._handles)
        if refusal is not None:
            # The page stood still, so what was seen is still true.
            seen = frame.observation.model_copy(update={"error": refusal})
            return replace(frame, observation=seen, point=None)
        work = self._step(context.active, task, action)
        return await self._guarded(context, work, f"{action.type} in {task.task_id}")

    @contextmanager
    def _one_at_a_time(self, what: str) -> Iterator[None]:
        if self._in_call:
            raise BrowserError(f"{what} while another call runs: a session has one owner")
        self._in_call = True
        try:
            yield
        finally:
            self._in_call = False

    async def _give_back(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            await self._pool.release(context, self._site)

    async def _guarded(self, context: BrowserContext, work: Coroutine[Any, Any, Frame], what: str) -> Frame:
        """Await ``work`` within the deadline; if it fails, the context is not used again."""
        try:
            return await context.active.guard(work, self._deadline, what)
        except BaseException:
            context.broken = True
            work.close()
            raise

    async def _reset(self, context: BrowserContext, task: WebTask, seed: int) -> Frame:
        page = context.active
        if context.path != task.path or self._site.reload_for(task):
            context.path = None
            async with self._pool.loading:
                await page.goto(self._site.origin + task.path)
            self._pool.counters.navigations += 1
            context.path = task.path
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
        context.episodes += 1
        self._pool.counters.episodes += 1
        return await self._look(page, task, None)

    async def _step(self, page: Tab, task: WebTask, action: Action) -> Frame:
        assert not isinstance(action, Invalid)  # refused before
        handle = self._handles[action.element]
        if isinstance(action, Select):
            await self._choose(page, handle, action.text)
        else:
            await keys.click(page.cdp, *handle.point)
        if isinstance(action, Type):
            await keys.replace_text(page.cdp, action.text)
        await page.clock.settle(self._budget)
        return await self._look(page, task, handle.point)

    async def _choose(self, page: Tab, handle: Handle, label: str) -> None:
        # A click would open the list in a window of its own, which gets none of the page's input events.
        x, y = handle.point
        await page.evaluate(f"document.elementFromPoint({x}, {y}).closest('select').focus()")
        options = handle.options or ()
        await keys.choose_option(page.cdp, option_index(options, label) or 0)

    async def _look(self, page: Tab, task: WebTask, point: tuple[float, float] | None) -> Frame:
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
        return f"invalid_action: {action.reason}"
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
