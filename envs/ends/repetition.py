"""The same action on the same page, again and again.

A repeat needs all three to be equal to the step before: the picture (perceptual hash), the DOM, and the action. One alone is not enough: text
progress on a same-looking page leaves the perceptual hash as it is (two of 64 bits for a changed heading), a canvas or an animation leaves
the DOM as it is, and different actions on an unchanged page are a search, not a loop.
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
    """Signature: what was done to what, independent of numbers that change from one observation to the next."""


class RepetitionDetector:
    """Counts equal steps in a row. One for each episode."""

    def __init__(self, repeats: int = REPEATS) -> None:
        if repeats < 2:
            raise ValueError(f"a repetition takes at least 2 equal steps, not {repeats}")
        self._repeats = repeats
        self._last: Sighting | None = None
        self.count = 0
        """Equal steps in a row so far, the last one included."""

    def is_repeated(self, sighting: Sighting) -> bool:
        """Take a step into account; True when it is the last of so many equal ones."""
        self.count = self.count + 1 if sighting == self._last else 1
        self._last = sighting
        return self.count >= self._repeats
