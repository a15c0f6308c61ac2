"""Waits until a page is quiet, where its clock cannot be held."""

from __future__ import annotations

from envs.settle.animations import Animations
from envs.settle.page_probe import PageProbe
from envs.settle.requests import RequestTracker

QUIET_MS = 50.0
"""Real milliseconds without a change. 30 ms missed 8 of 9 chains of requests and timers, 50 ms
none, 100 ms only cost more."""


async def wait_until_quiet(probe: PageProbe, requests: RequestTracker, animations: Animations) -> None:
    """Wait until a frame has been drawn and the page was quiet for `QUIET_MS`.

    Quiet: nothing has changed, nothing was animated and no request was in flight.

    The caller sets the limit. A document that is still being read is not quiet, whatever is known
    of its requests: those that it began before they were listened to are unknown.
    """
    drawn = False
    while True:
        if not drawn:
            drawn = (await probe.frame()).ready != "loading"
        await animations.end()
        look = await probe.quiet(QUIET_MS)
        drawn = drawn and look.ready != "loading"
        requests.expire_stalled()
        still = requests.clock() - requests.finished_at >= QUIET_MS / 1000
        if drawn and still and look.now and not (look.animating or animations.ending or requests.waiting()):
            return
