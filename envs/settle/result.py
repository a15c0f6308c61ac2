"""The result of waiting for a page to settle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SettleReason(StrEnum):
    """Reason why the wait ended, or was slower; metrics use these values."""

    RESTED = "rested"
    """Nothing was left to wait for."""
    OPEN_REQUESTS = "open_requests"
    """Requests that make no progress, or never end, were left open; the page's time was given all
    the same."""
    BACKGROUND = "background"
    """The page has workers, or uses the browser's stores, which need real time as well; it was
    waited until they were quiet."""
    NO_CLOCK = "no_clock"
    """The browser cannot hold the page's clock, or was asked not to."""
    DIALOG = "dialog"
    """The page shows a dialog and waits for its answer."""
    BUSY = "busy"
    """A script did not end within the real-time budget and was stopped."""
    DEADLINE = "deadline"
    """The real-time budget was used up, by a navigation that is not answered, or by navigations or
    requests that follow each other for ever; the load and the clock were stopped."""


@dataclass(frozen=True, slots=True)
class Settled:
    """One wait for a page."""

    virtual_ms: float
    """Milliseconds of the page's clock that passed; 0 where it is not held."""
    real_ms: float
    """Milliseconds of ours."""
    reason: SettleReason
    complete: bool
    """False when the page was cut off: it may look different if it is given more time."""
