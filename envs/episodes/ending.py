"""Decides after each step whether an episode has to end.

It checks the page after each look, and the steps in a row. The page's own end is not decided here.
"""

from __future__ import annotations

from copy import copy, deepcopy
from typing import NamedTuple
from urllib.parse import urlsplit

from envs.browser import PageStep
from envs.ends import RepetitionDetector, Sighting, blocked, http_error
from envs.observation.hashes import action_signature, screen_hash
from envs.types import Action, StopReason

NO_PAGE = 400
"""Lowest status of an answer that is not the requested page."""


class Unusable(NamedTuple):
    """The page is not the site: the reason and a message."""

    reason: StopReason
    message: str
    wall: str = ""
    """Name of the `envs.ends.BlockSign`, if it is a wall."""


class EndWatch:
    """Watches one episode for unusable pages and repeated steps."""

    def __init__(self, repeats: int) -> None:
        """Make a watch that reports ``repeats`` equal steps in a row; 0 for never."""
        self._repeats = repeats
        self._signature = ""
        self._first: PageStep | None = None
        """First page of the row of equal steps."""
        self._detector: RepetitionDetector | None = None

    def copy(self) -> EndWatch:
        """Return a watch that goes on from here by itself."""
        other = copy(self)
        other._detector = deepcopy(self._detector)
        return other

    def unusable(self, result: PageStep, *, first: bool = False) -> Unusable | None:
        """Return the reason why a page is not the site; ``None`` if it is.

        The reason makes the episode an abstention. Walls come before errors, because they have the
        statuses of errors. On the ``first`` page of an episode a status of 400 and more is an error
        as well; later the policy may have asked for a page that does not exist.
        """
        seen, status = result.observation, result.status
        sign = blocked(url=seen.url, title=seen.title, text=seen.text, status=status, frames=result.frames)
        if sign is not None:
            return Unusable(StopReason.BLOCKED, f"{seen.url} shows {sign.hint} ({sign.name})", sign.name)
        if result.unreachable:
            where = urlsplit(seen.url).netloc
            return Unusable(
                StopReason.HTTP_ERROR, f"{seen.url}: nothing answers at {where}; start the site, or correct its address"
            )
        if http_error(status):
            why = f": {result.site_problem}" * bool(result.site_problem)
            return Unusable(StopReason.HTTP_ERROR, f"{seen.url} answered {status}{why}")
        if first and status is not None and status >= NO_PAGE:
            return Unusable(StopReason.BROWSER_ERROR, f"{seen.url} answered {status}; expected a page to begin on")
        return None

    def repeats(self, before: PageStep, action: Action) -> bool:
        """Return True if this step is the last of ``repeats`` equal ones.

        Equal steps have the same picture, document and action.
        """
        if not self._repeats:
            return False
        signature = action_signature(action, before.observation.elements)
        first = self._first
        # Cheapest first: each is computed only when the one before is equal.
        if first is None or signature != self._signature or before.dom_hash != first.dom_hash:
            self._signature, self._first, self._detector = signature, before, None
            return False
        if self._detector is None:
            self._detector = RepetitionDetector(self._repeats)
            self._detector.is_repeated(self._sighting(first))
        return self._detector.is_repeated(self._sighting(before))

    def _sighting(self, seen: PageStep) -> Sighting:
        return Sighting(screen_hash(seen.screenshot) if seen.screenshot else "", seen.dom_hash, self._signature)
