"""Python's garbage collection in processes that observe pages."""

from __future__ import annotations

import gc

__all__ = ["collect_seldom"]

COLLECT_AFTER = 50_000
"""New objects after which Python collects garbage.

A snapshot of a page has ten thousand small lists, none of them garbage. With Python's default of
700, collection takes two fifths of the time of an observation (measured on
benchmarks/pages/cards.html: 4.8 ms, and 3.1 ms with this).
"""


def collect_seldom() -> None:
    """Make this process collect garbage less often than Python does by default.

    What its libraries made so far stays, and is not looked at again.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)
