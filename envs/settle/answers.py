"""Waits with a stopped clock for what a page has asked for: answers of requests, messages on
sockets."""

from __future__ import annotations

from envs.settle.constants import ANSWERED_SECONDS, REQUESTS_MS, SOCKET_QUIET_SECONDS, SOCKET_SECONDS
from envs.settle.requests import RequestTracker
from envs.settle.virtual_time import VirtualTime


class Answers:
    """Waits for the answers to one page. The page sees the same time however long they take."""

    def __init__(self, requests: RequestTracker, clock: VirtualTime) -> None:
        self._requests = requests
        self._time = clock
        self.never_silent = False
        """True for a document whose sockets never fall silent; they are not waited for again."""

    async def wait(self) -> bool:
        """Wait for all requests that are waited for; return True if there were any."""
        requests, some = self._requests, False
        # A document that is being loaded, in a frame, is not read while the clock stands.
        while requests.waiting() and not requests.navigating(frames=True):
            some = True
            heard = await requests.wait_event(min(requests.patience(), ANSWERED_SECONDS))
            requests.expire_stalled()
            if not heard:
                await self._time.give(REQUESTS_MS)  # one that the page put off until its clock goes on
                break
        return some

    async def listen(self) -> None:
        """Wait for the whole answer on a socket on which the page spoke."""
        requests = self._requests
        end = requests.clock() + SOCKET_SECONDS
        while not self.never_silent or requests.unanswered:
            limit = SOCKET_SECONDS if requests.unanswered else SOCKET_QUIET_SECONDS
            left = min(end, requests.heard_at + limit) - requests.clock()
            if left <= 0:
                self.never_silent = not requests.unanswered and requests.clock() >= end
                requests.unanswered = 0  # a server that does not answer now is not waited for again
                return
            await requests.wait_event(left)
