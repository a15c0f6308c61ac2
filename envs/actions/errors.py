"""Coded errors of actions that were not carried out, with hints.

An error is a value that becomes one line of the next observation, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from envs.types import ErrorCode

if TYPE_CHECKING:
    from envs.observation import Handle

CLOSE_ENOUGH = 0.5
"""Minimum similarity (difflib's ratio) of a suggestion: "save" and "safe button" have 0.53, "save"
and "cancel" 0.4."""

MIN_PART = 3
"""Minimum number of characters of a part of a name that makes the names similar."""

MAX_CANDIDATES = 3
"""Maximum number of suggestions; more is a list, not a hint."""

MAX_TEXT = 60
"""Maximum number of characters of a name or label in a message: the policy or the page may write
one of any length."""


@dataclass(frozen=True)
class ActionError:
    """A coded error with a hint."""

    code: ErrorCode
    message: str
    """Error in words, e.g. ``there is no element 9``."""
    hint: str = ""
    """Advice, e.g. ``choose 1 to 2``."""
    candidates: tuple[str, ...] = ()
    """Suggestions, best first, as the policy sees them: ``[3] button "Save"``."""

    def line(self) -> str:
        """Return ``code: message; hint (did you mean [3] button "Save"?)``."""
        hint = f"; {self.hint}" if self.hint else ""
        meant = f" (did you mean {' or '.join(self.candidates)}?)" if self.candidates else ""
        return f"{self.code}: {self.message}{hint}{meant}"


def disabled_error(called: str) -> ActionError:
    """Return the error of a disabled element, which ``called`` names in messages."""
    return ActionError(ErrorCode.DISABLED, f"{called} is disabled", "something else must be done before it can be used")


def describe_handle(handle: Handle) -> str:
    """Return an element as prompts show it: ``[3] button "Save"``."""
    return f'[{handle.index}] {handle.tag} "{shorten(handle.text)}"'


def closest_names(wanted: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names most like ``wanted`` without regard to case, best first."""
    scored = sorted(((-name_similarity(wanted, name), place, name) for place, name in enumerate(names)))
    return tuple(name for score, _, name in scored[:MAX_CANDIDATES] if -score >= CLOSE_ENOUGH)


def closest_handles(wanted: str, handles: Iterable[Handle]) -> tuple[str, ...]:
    """Return the elements most like ``wanted`` in id or label, best first, as `describe_handle`."""
    scored = sorted(
        (
            -max(name_similarity(wanted, handle.semantic_id), name_similarity(wanted, handle.text)),
            place,
            describe_handle(handle),
        )
        for place, handle in enumerate(handles)
    )
    return tuple(text for score, _, text in scored[:MAX_CANDIDATES] if -score >= CLOSE_ENOUGH)


def name_similarity(one: str, other: str) -> float:
    """Return the similarity of two names, from 0 to 1.

    If one name contains the whole other, it is at least `CLOSE_ENOUGH`.
    """
    one, other = one.casefold()[:MAX_TEXT], other.casefold()[:MAX_TEXT]
    ratio = SequenceMatcher(None, one, other).ratio()
    holds = min(len(one), len(other)) >= MIN_PART and (one in other or other in one)
    return max(ratio, CLOSE_ENOUGH) if holds else ratio


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """Return ``text`` on one line, cut to ``limit`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit] + "…"
