"""The virtual clock of a page: stopped between steps, advanced after each action.

A span of time runs at full speed: timers fire one after the other without a wait. The clock stands
while a real request is under way, and stops at the end of the span. So the effect of an action does
not depend on the load of the machine.

What is true of Chromium's virtual time is in `envs.settle.virtual_time`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from envs.cancel_scope import CancelScope
from envs.cdp.messages import UNKNOWN_METHOD, refused_with
from envs.settle.activity import ActivityProbe
from envs.settle.animations import Animations
from envs.settle.answers import Answers
from envs.settle.constants import (
    ANSWER_SECONDS,
    BACKGROUND_LOOKS,
    BACKGROUND_SECONDS,
    BUDGET_MS,
    EPOCH_SECONDS,
    FOLLOW_MS,
    FRAMES,
    LEAD_MS,
    NAVIGATION_BUDGET_MS,
    REAL_SECONDS,
    ROUNDS,
    SLICE_MS,
)
from envs.settle.page_dates import PageDates
from envs.settle.page_probe import REPLACED, Look, PageProbe
from envs.settle.quiescence import wait_until_quiet
from envs.settle.real_time import RealTime
from envs.settle.requests import Request, RequestTracker
from envs.settle.result import Settled, SettleReason
from envs.settle.spans import Spans
from envs.settle.virtual_time import VirtualTime
from envs.settle.workers import PageWorkers
from envs.types import BrowserError

if TYPE_CHECKING:
    from envs.cdp import Cdp


class VirtualClock:
    """The clock of one page, and of the windows and workers of its process.

    Not safe for concurrent calls of `settle`.
    """

    def __init__(
        self,
        cdp: Cdp,
        *,
        virtual: bool = True,
        background: bool = False,
        fields: bool = True,
        open_session: Callable[[str], Cdp] | None = None,
        date: float | None = EPOCH_SECONDS,
    ) -> None:
        """Make the clock of a session's page.

        Args:
            cdp: The page's session.
            virtual: False leaves the clock alone (a browser that is not ours) and waits for quiet.
            background: Wait for the browser's stores too (IndexedDB, caches, service workers): they
                answer in real time and send no event, so pages that use them are waited for like
                those with workers.
            fields: Read the states of fields when the page has settled (`Look.fields`).
            open_session: Returns the session of an id that the browser gave on this one
                (flattened), so that the page's workers are attached to and waited for. Shared
                workers are not the page's: see `PageWorkers.add`.
            date: Date at which the clock begins, in seconds since 1970; ``None`` is the real time.
        """
        self.date = date
        self.dates = PageDates(cdp)
        self._cdp = cdp
        self.virtual = virtual
        """True if the clock is held. `begin` sets it to False in a browser that cannot hold it."""
        self._begun = False
        self._background = background
        self._since = 0.0
        self._document_is_new = False
        self._blocked: set[str] = set()
        """Patterns of addresses that are not asked for again."""
        self._dialog = False
        self._settling: CancelScope | None = None
        """Cut when a dialog opens, or is open when it begins."""
        self._probe = PageProbe(cdp, fields=fields)
        self._looked: Look | None = None
        self._animations = Animations(cdp)
        self.requests = RequestTracker()
        """Requests in flight."""
        self.requests.watch(cdp)
        self.workers = PageWorkers(cdp, self.requests, open_session)
        self._time = VirtualTime(cdp, self._probe, self.requests)
        self.real_time = RealTime(self._time, self._animations)
        self._pending = Answers(self.requests, self._time)
        self.activity = ActivityProbe(cdp, self.requests)
        """Counters of Chromium's work for the page."""
        self._spans = Spans(self._time, self.requests, self.activity)
        self.still = False
        """True if nothing visible has changed since the last `settle` called ``drawing``, as far as
        is known."""
        cdp.on("Page.javascriptDialogOpening", lambda _event: self._dialog_is(True))
        cdp.on("Page.javascriptDialogClosed", lambda _event: self._dialog_is(False))
        cdp.on("Page.frameNavigated", self._navigated)

    @property
    def now(self) -> float:
        """Date of the clock, in milliseconds since 1970; 0 where it is not held, or has not
        begun."""
        return self._time.now if self.virtual else 0.0

    @property
    def world(self) -> int | None:
        """Execution context of the isolated world that the page is watched from.

        Returns ``None`` until a document was looked at.
        """
        return self._probe.world

    @property
    def looked(self) -> Look | None:
        """The look at the end of the last `settle`, which still holds: nothing happens while the
        clock stands.

        ``None`` if that is not known.
        """
        return self._looked if self.virtual and not self._dialog else None

    async def give(self, milliseconds: float) -> None:
        """Let the page's time go on for a span inside an action (`Spans`), if its clock is not held
        only where a script ran."""
        self._looked, self.still = None, False
        self.activity.unmark()
        await (self._spans.give(milliseconds) if self.virtual else self._spans.sleep(milliseconds))

    async def begin(self) -> None:
        """Stop the clock at its date.

        Call it on the blank page, before anything is loaded; a second call does nothing.

        On a page whose process has a clock already (a window that a page opened, a page that is
        attached to again) the clock is taken as it is.
        """
        if self._begun:
            return
        self._begun = True
        try:
            await self._begin()
        except BaseException:
            self._begun = False
            raise

    async def _begin(self) -> None:
        for domain in ("Page", "Network", "Animation"):
            await self._cdp.send(f"{domain}.enable")
        await self.workers.attach(held=self.virtual)
        if self.virtual:
            await self._stop()

    async def _stop(self) -> None:
        """Stop the clock at its date and the animations with it, or find out that this browser
        cannot."""
        date = time.time() if self.date is None else self.date
        try:
            new = await self._time.stop_at(date - LEAD_MS / 1000)
        except BrowserError as error:
            if not refused_with(error, UNKNOWN_METHOD):
                raise
            self.virtual = False
            return
        if new:
            await self._time.advance(LEAD_MS)
        await self._animations.freeze()

    async def catch_up(self) -> None:
        """Set the dates of a page on the real date to the real time, where a model has thought for
        long."""
        if self.date is None and self.now:
            await self.dates.catch_up(self.now)

    def fail(self, error: BrowserError) -> None:
        """Fail everyone who waits for the clock: the page is gone."""
        self._time.fail(error)

    def attached_again(self) -> None:
        """Note that the session was bound to its page anew.

        The next call sets everything up again.
        """
        self._begun = False
        self.activity.attached_again()

    async def settle(
        self,
        budget_ms: float = BUDGET_MS,
        *,
        seconds: float = REAL_SECONDS,
        drawing: Callable[[], None] | None = None,
    ) -> Settled:
        """Give the page ``budget_ms`` of virtual time and what follows; stop the clock.

        Ends within ``seconds``, and three times `ANSWER_SECONDS` if a load or a script has to be
        stopped; twice that where the page then goes on without a part of it that did not come.

        Args:
            budget_ms: Virtual milliseconds.
            seconds: Real seconds.
            drawing: Called when the first frame is about to be asked for, so that its picture can
                be taken with it; not called where a document is being loaded, or nothing can be
                drawn. `still` then says whether that picture holds.

        Raises:
            BrowserError: a script could not be stopped.
            Exception: whatever the session raises when the page or the browser is gone.
        """
        started = time.perf_counter()
        self._looked, self.still = None, False
        self._spans.begin()
        self.activity.unmark()
        self._since = self._time.now
        reason = await self._wait_within(seconds, budget_ms, drawing)
        complete = reason is not None
        if reason is None:
            reason = await self._cut_off()
            if reason is SettleReason.DEADLINE and await self._go_on_without(self.requests.give_up()):
                await self._wait_within(seconds, NAVIGATION_BUDGET_MS, None) or await self._cut_off()
        if not complete or reason is SettleReason.DIALOG:
            self._looked, self.still = None, False
        real_ms = 1000 * (time.perf_counter() - started)
        return Settled(
            self._time.now - self._since if self.virtual and self._since else 0.0,
            real_ms,
            reason,
            complete,
        )

    async def _wait_within(
        self, seconds: float, budget_ms: float, drawing: Callable[[], None] | None
    ) -> SettleReason | None:
        """Wait until the page has settled or shows a dialog; ``None`` if the real time ran out."""
        self._settling = scope = CancelScope(seconds)
        try:
            async with scope:
                self._dialog_is(self._dialog)
                reason = await self._wait(budget_ms, drawing)
        except TimeoutError:
            if not scope.expired:
                raise  # of something within
            return SettleReason.DIALOG if scope.was_cancelled else None
        return SettleReason.DIALOG if scope.was_cancelled else reason

    async def _wait(self, budget_ms: float, drawing: Callable[[], None] | None) -> SettleReason:
        await self.begin()
        self._since = self._since or self._time.now
        if self.virtual:
            return await self._settle(budget_ms, drawing)
        await wait_until_quiet(self._probe, self.requests, self._animations)
        return SettleReason.NO_CLOCK

    async def _settle(self, budget_ms: float, drawing: Callable[[], None] | None) -> SettleReason:
        """Frame, budget, and again while there is more.

        See the module's docstring for why a frame is needed.
        """
        heard_before = self.requests.heard_at
        until = self._time.now + budget_ms
        for turn in range(1 + ROUNDS):
            loading = self._document_is_new or self.requests.navigating()
            if not loading:  # else there is nothing to draw yet
                look = await self._drawn(drawing if turn == 0 else None)
                if turn == 0 and look.now:  # each request moves the clock, and another page of the process may have
                    self._since, self._time.now = min(self._since, look.now), look.now
            await self._time.give(max(until - self._time.now, FOLLOW_MS) if turn == 0 else FOLLOW_MS)
            await self._pending.listen()
            if loading:
                self._document_is_new = False
            # Both are asked for at once: counters that were read after the look say that something
            # ran, and never that nothing did.
            held = self.activity.holds() if self.activity.marked else None
            still, look = await asyncio.gather(held, self._look()) if held else (False, await self._look())
            heard = self.requests.heard_at > heard_before and not self._pending.never_silent
            heard_before = self.requests.heard_at
            if not (loading or heard or look.changed or self._animations.ending):
                self.still = still
                break
        if self.workers or self.requests.workers or self._background:
            self.still = False
            await self._wait_for_background()
            return SettleReason.BACKGROUND
        return SettleReason.OPEN_REQUESTS if self.requests.endless() else SettleReason.RESTED

    async def _look(self) -> Look:
        look = await self._probe.look()
        self._looked = look if look is not REPLACED else None
        return look

    async def _drawn(self, drawing: Callable[[], None] | None) -> Look:
        """Have a frame drawn after all requests are answered, and end the animations that begin
        with it.

        ``drawing`` is called before, and the frame is marked.
        """
        if drawing is not None:
            await self._probe.clock()  # what an action began is said before the answer to this
            await self._pending.wait()
            self.activity.listen()
            drawing()
        look = await self._probe.frame()
        again = await self._pending.wait()  # a frame is cheaper than to ask before each whether there are requests
        if again:
            look = await self._probe.frame()
        for number in range(FRAMES):
            if not (await self._animations.end() or look.animating):
                if drawing is not None and not number and not again:
                    await self.activity.mark()
                break
            look = await self._probe.frame()
        return look

    async def _wait_for_background(self) -> None:
        """Let both clocks run until workers and stores are idle for a while."""
        requests = self.requests
        end = requests.clock() + BACKGROUND_SECONDS
        quiet, seen = 0, requests.finished_at
        while quiet < BACKGROUND_LOOKS and requests.clock() < end:
            await self.requests.wait_event(SLICE_MS / 1000)
            await self._time.give(SLICE_MS)
            look = await self._look()
            busy = look.changed or self.workers.adding or requests.waiting() or requests.finished_at > seen
            quiet, seen = 0 if busy else quiet + 1, requests.finished_at

    async def _cut_off(self) -> SettleReason:
        """Stop the clock of a page that does not come to rest.

        First what keeps it from answering is stopped: the load of a document, or a script.
        """
        if await self._answers():
            return SettleReason.DEADLINE
        loading = self.requests.navigating()
        await self._cdp.send("Page.stopLoading")
        if loading and await self._answers():
            return SettleReason.DEADLINE
        await self._cdp.send("Runtime.terminateExecution")
        if not await self._answers():
            raise BrowserError("the page does not answer, and ending its scripts did not help")
        return SettleReason.BUSY

    async def _go_on_without(self, missing: list[Request]) -> bool:
        """Have the page and its next documents go on without these requests; return True if there
        are any.

        A missing style sheet holds back every frame, and a missing script the rest of its document:
        the document is reloaded if a GET is enough.
        """
        if not missing:
            return False
        held_back = any(request.kind == "Script" for request in missing) and self.requests.repeatable
        reading = held_back and (await self._probe.look()).ready == "loading"
        self._blocked |= {f"{request.place}*" for request in missing}
        await self._cdp.send("Network.setBlockedURLs", {"urls": sorted(self._blocked)})
        await self._cdp.send("Page.stopLoading")
        if reading:
            await self._cdp.send("Page.reload")
        return True

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self.virtual:
                    await self._time.stop()
                await self._time.read()
                return True
        except TimeoutError:
            return False

    def _dialog_is(self, open_: bool) -> None:
        self._dialog = open_
        if open_ and self._settling is not None:
            self._settling.cancel()

    def _navigated(self, event: dict[str, Any]) -> None:
        if "parentId" not in event["frame"]:
            self._document_is_new = True
            self._pending.never_silent = False
