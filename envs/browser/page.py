"""One episode on one browser context: reset, act, settle, and read the evidence at the end.

Every operation goes through the episode's queues of the `Dispatcher`; nothing here waits for a
fixed time. Deadlines and failures are the session's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from envs.actions import ActionContext, ActionError, Effect, LastLook, check_action, execute
from envs.actions.mouse import move_at_once
from envs.browser.end_evidence import DownloadFolder, ask_page, read_nodes
from envs.browser.native_pickers import close_native_picker
from envs.browser.operations import OperationKind
from envs.browser.page_step import PageStep
from envs.browser.page_view import PageView
from envs.browser.tab import Tab, show_blank
from envs.cdp.messages import ALREADY_IN_EFFECT, send_unless
from envs.egress import AllowList
from envs.observation.dom import scaled
from envs.settle import Settled, SettleReason, drawn_whole
from envs.types import (
    Action,
    BrowserError,
    Click,
    DoubleClick,
    Drag,
    Needs,
    Press,
    Recorded,
    Scroll,
    TripleClick,
    Wait,
)

MAX_ALERTS = 10
"""Alerts that are confirmed in one step. They say something and ask nothing; a page that goes on is
not usable."""

STOPPED = {
    SettleReason.DEADLINE: "the page did not finish loading in time and was stopped",
    SettleReason.BUSY: "a script of the page did not end and was stopped",
}
"""Notices to the policy about a page that was stopped."""

MOVING = (Scroll, Press, Drag, Wait)
"""Actions after which more than one frame is likely to differ."""

MAX_STARTS = 20
"""Budgets that a site's page gets to be ready. MiniWoB's need one or two."""


@dataclass(kw_only=True)
class TaskPage(PageView):
    """The page of one episode. Made at its reset, used by one session."""

    budget_ms: float
    allow: AllowList
    clipboard: bool = False
    files: Path | None = None
    """The task's folder, from which uploads come."""
    downloads: DownloadFolder | None = None
    """Folder of its downloads, if its grading asks for them."""

    async def begin(self, seed: int, path: str) -> tuple[PageStep, bool]:
        """Load or reuse the page, reset it to the seed, and look; also whether loaded.

        ``path`` is where the page is entered: `SiteEpisode.path`.

        Raises:
            BrowserError: no answer, or a site of ours has no such page.
        """
        context, task, site = self.context, self.task, self.site
        load = context.path != task.path or site.reload_for(task)
        if load:
            context.path = None
            self.tell("navigate")
            url = site.origin + path
            go = self.tab.visit if site.foreign else self.tab.load
            settled = await self._alerts(await self.queues.run(OperationKind.NAVIGATION, lambda: go(url)))
            self._tell_of_stop(settled)
            context.path = task.path
        script, dialogs = site.reset_script(task, seed), self.tab.dialogs
        if script:
            await self.clear_dialogs()  # what a page asks before it is reset to its seed is not of the episode
            if dialogs.pending is not None:
                raise BrowserError(f"{site.origin}{path} opened more than {MAX_ALERTS} dialogs before it was reset")
        if dialogs.pending is None and (context.episodes or site.stateless_pages):  # elsewhere it has not moved yet
            width, height = context.viewport
            await move_at_once(self.tab.cdp, width - 1, height - 1)  # or the last click's place would show a hover
        if script:
            self.tell("reset")
            await self.queues.run(OperationKind.EVALUATION, lambda: self.tab.evaluate(script))
        if script or not load:
            settled = await self._settle(self.budget_ms)
        for _ in range(MAX_STARTS):
            if dialogs.pending is not None:  # nothing can be asked of the page before it is answered
                break
            if await self.queues.run(OperationKind.EVALUATION, lambda: self.tab.evaluate(site.ready_script(task))):
                break
            settled = await self._settle(self.budget_ms)
        else:
            raise BrowserError(
                f"{task.task_id} is not ready after {MAX_STARTS * self.budget_ms / 1000:g} s of its own time"
            )
        context.episodes += 1
        return replace(await self._look(None), settled=settled), load

    async def act(self, action: Action, last: PageStep) -> PageStep:
        """Carry out an action and look. ``last`` is what was seen before."""
        reading = self._reading
        handles, scale = (reading.handles, reading.scale) if reading else ({}, 1.0)
        refusal = check_action(action, handles, self.site.offers)
        if refusal is not None:
            return last.unchanged(refusal)  # the page stood still, so what was seen is still true
        tab = self.context.active
        action_context = ActionContext(
            cdp=tab.cdp,
            viewport=reading.viewport if reading else self.context.viewport,
            scale=scale,
            handles=handles,
            tabs=self.context,
            dialogs=tab.dialogs,
            intercept=tab.intercept,
            clock=tab.clock,
            allowed=lambda url: self.allow.refuse_url(url) is None,
            files=self.files,
            clipboard=self.clipboard,
            seen=self._still_seen(tab),
            drawn_whole=lambda: drawn_whole(self.tab.cdp, self.context.looks),
        )
        self.tell("execute")
        if tab.clock.date is None:
            await self.queues.run(OperationKind.EVALUATION, tab.clock.catch_up)
        outcome = await self._execute(action_context, action)
        if isinstance(outcome, Effect) and outcome.stop is not None:
            return replace(last.unchanged(), done=True, stop=outcome.stop, said=outcome.said)
        error = outcome if isinstance(outcome, ActionError) else None
        effect = outcome if isinstance(outcome, Effect) else Effect()
        if effect.notice:
            self._notices.append(effect.notice)
        if effect.point is not None:
            effect = replace(effect, point=scaled(effect.point, scale))
        if isinstance(action, Click | DoubleClick | TripleClick):
            self._tell_of_foreign_link(effect)
        settled, result = await self._seen(effect, error, speculate=self._may_speculate(action))
        return replace(result, settled=settled, error=error.code if error else None)

    async def look_again(self) -> PageStep:
        """Let the page settle and look, after somebody else has used it."""
        await self._settle(self.budget_ms)  # which also ends a script that does not end
        for tab in self.context.tabs:
            for method, params in tab.cdp.enabled:
                if (
                    method.startswith("Emulation.") and tab.dialogs.pending is None
                ):  # a client's own settings end with it, and with them ours
                    await send_unless(ALREADY_IN_EFFECT, tab.cdp, method, params)
        settled = await self._settle(self.budget_ms)
        return replace(await self._look(None), settled=settled)

    async def evidence(self, needs: Needs) -> Recorded:
        """Read the evidence that the grading needs from the page as it is.

        An open dialog is cancelled first: it would block the reading.
        """
        if needs.page and self.tab.dialogs.pending is None:
            await self._read_whole()
        await self.clear_dialogs()
        tab, absent = self.tab, dict[str, str]()
        scripts = await self.queues.run(OperationKind.EVALUATION, lambda: ask_page(tab.cdp, needs.scripts))
        nodes, cut = (
            await self.queues.run(OperationKind.OBSERVATION, lambda: read_nodes(tab.cdp, needs.styles))
            if needs.dom
            else (None, False)
        )
        files, more = await self.downloads.read() if needs.downloads and self.downloads else (None, False)
        if needs.downloads and files is None:
            absent["downloads"] = "this browser's downloads are not ours to see"
        of_files = {"downloads": files, "downloads_cut": more}
        return Recorded(pages=tuple(self._pages), dom=nodes, dom_cut=cut, scripts=scripts, absent=absent, **of_files)

    async def clear_dialogs(self) -> None:
        """Cancel what the page asks, and let it come to rest."""
        for _ in range(MAX_ALERTS):
            if self.tab.dialogs.pending is None:
                return
            await self.tab.dialogs.answer(False, None)
            await self.queues.run(OperationKind.INPUT, lambda: self.tab.clock.settle(self.budget_ms))

    async def _execute(self, action_context: ActionContext, action: Action) -> Effect | ActionError:
        tab = self.context.active
        try:
            return await self.queues.run(OperationKind.INPUT, lambda: execute(action_context, action))
        except BrowserError:
            if not self.context.goes_on_without(tab):
                raise
            return Effect()

    def _tell_of_foreign_link(self, effect: Effect) -> None:
        """Say that a link which was clicked is for another program; Chromium says nothing."""
        reading, node = self._reading, effect.node
        if reading is not None and node is None and effect.point is not None:
            node = reading.listed_at(effect.point)
        if reading is not None and node is not None and (scheme := reading.foreign_scheme(node)):
            self._notices.append(f"links with {scheme}: open nothing in this browser")

    def _still_seen(self, tab: Tab) -> LastLook | None:
        """Return the last look, if the page has stood still since."""
        reading, looked = self._reading, tab.clock.looked
        if reading is None or looked is None or looked is not self._looked:
            return None
        return LastLook(reading.scroll, reading.holds, reading.kinds.dom.frame_ids[0])

    def _may_speculate(self, action: Action) -> bool:
        """True if the picture of a step should be taken before the page has settled.

        Not where a page shows nothing at the end of its episode, nor where such a picture never
        holds: signals have observers in the page.
        """
        empty = not self.site.final_screenshot and bool(self.site.facts_script(self.task))
        busy = self.tab.signals is not None or self.site.background
        return self.screenshots and not isinstance(action, MOVING) and not empty and not busy

    async def _seen(self, effect: Effect, error: ActionError | None, *, speculate: bool) -> tuple[Settled, PageStep]:
        """Let the page settle after an action and look at it.

        If the tab closes itself meanwhile, another one is shown.
        """
        while True:
            tab = self.tab
            try:
                async with self.speculative.during(tab, worth=speculate and tab is self._looked_at) as drawing:
                    settled = await self._settle(self.budget_ms + effect.wait_ms, drawing)
                    return settled, await self._look(effect.point, error)
            except BrowserError:
                if not self.context.goes_on_without(tab):
                    raise

    async def _settle(self, budget_ms: float, drawing: Callable[[], None] | None = None) -> Settled:
        tab, tabs = self.tab, list(self.context.tabs)
        self.tell("settle")
        settled = await self.queues.run(OperationKind.INPUT, lambda: tab.clock.settle(budget_ms, drawing=drawing))
        settled = await self._alerts(settled)
        closed, notice = await close_native_picker(tab, self.queues)
        if closed is not None:
            settled = closed
            self._notices.append(notice)
        await self.context.settled()
        if len(self.context.tabs) > len(tabs):  # a window that the action opened; it has been given no time yet
            settled = await self.queues.run(OperationKind.INPUT, lambda: self.tab.clock.settle(budget_ms))
        if list(self.context.tabs) != tabs:
            tab.clock.still = False  # the windows of a page have its time, and can write to it
        if self.tab is not self._looked_at:
            await show_blank(self.tab.cdp)
        self._tell_of_stop(settled)
        return settled

    def _tell_of_stop(self, settled: Settled) -> None:
        if settled.reason in STOPPED:
            self._notices.append(STOPPED[settled.reason])

    async def _alerts(self, settled: Settled) -> Settled:
        """Confirm alerts and go on; confirms and prompts are the policy's to answer."""
        for _ in range(MAX_ALERTS):
            pending = self.tab.dialogs.pending
            if pending is None or pending.kind not in ("alert", "beforeunload"):
                return settled
            if pending.kind == "alert":
                self._notices.append(pending.message)
            await self.tab.dialogs.answer(True, None)
            settled = await self.queues.run(OperationKind.INPUT, lambda: self.tab.clock.settle(self.budget_ms))
        if self.tab.dialogs.pending is None:
            return settled
        raise BrowserError(f"the page of {self.task.task_id} opened more than {MAX_ALERTS} alerts in one step")
