"""Detects the same action on the same page, again and again.

A repeat has the same picture (perceptual hash), DOM and action as the step before. One alone is not
enough. Text progress on a similar page leaves the perceptual hash as it is (two of 64 bits for a
changed heading). A canvas or an animation leaves the DOM as it is. Different actions on an
unchanged page are a search, not a loop.
"""

from __future__ import annotations

from typing import NamedTuple

REPEATS = 3
"""Equal steps in a row that end an episode (W8-RL and WEBSERV both use 3)."""


class Sighting(NamedTuple):
    """One step: the page before the action, and the action."""

    picture: str
    """Perceptual hash of the screenshot."""
    dom: str
    """Hash of the page's elements, text and form state."""
    action: str
    """Signature of the action and its target, without numbers that change between observations."""


class RepetitionDetector:
    """Counts equal steps in a row. Each episode has its own."""

    def __init__(self, repeats: int = REPEATS) -> None:
        if repeats < 2:
            raise ValueError(f"a repetition takes at least 2 equal steps, not {repeats}")
        self._repeats = repeats
        self._last: Sighting | None = None
        self.count = 0
        """Number of equal steps in a row so far, with the last one."""

    def is_repeated(self, sighting: Sighting) -> bool:
        """Record a step; return True if it is the last of ``repeats`` equal ones."""
        self.count = self.count + 1 if sighting == self._last else 1
        self._last = sighting
        return self.count >= self._repeats
