"""Difficulty, steps and need for reading of single MiniWoB++ kinds.

Kinds that are not listed have no oracle; they get `UNKNOWN`. Most of those need something that the
list of elements does not show (long texts, colours of letters, drawings, the authors of a feed's
posts), a clock, or the clipboard, which the episodes of a browser share.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """Numbers of a kind."""

    difficulty: int
    """Number of facts that must hold at the end; the largest one if seeds differ."""
    horizon: int
    """Largest number of steps that the oracle needed on 150 seeds.

    Where it is known, the number that it can need. A policy gets as many.
    """
    needs_reading: bool
    """True if words of the instruction must be matched to an element or copied.

    False if a few fixed labels or a place are enough.
    """


UNKNOWN = Kind(difficulty=4, horizon=10, needs_reading=True)
"""Numbers of kinds without an oracle."""

KINDS = {
    "choose-date": Kind(2, 14, True),
    "choose-date-easy": Kind(2, 3, True),
    "choose-date-medium": Kind(2, 4, True),
    "choose-date-nodelay": Kind(2, 14, True),
    "choose-list": Kind(2, 2, True),
    "click-button": Kind(1, 1, True),
    "click-button-sequence": Kind(2, 2, False),
    "click-checkboxes": Kind(7, 7, True),
    "click-checkboxes-large": Kind(13, 13, True),
    "click-checkboxes-transfer": Kind(7, 7, True),
    "click-collapsible": Kind(2, 2, False),
    "click-collapsible-nodelay": Kind(2, 2, False),
    "click-collapsible-2": Kind(2, 4, True),
    "click-collapsible-2-nodelay": Kind(2, 4, True),
    "click-color": Kind(1, 1, True),
    "click-dialog": Kind(1, 1, False),
    "click-dialog-2": Kind(1, 1, False),
    "click-link": Kind(1, 1, True),
    "click-menu": Kind(1, 3, True),
    "click-option": Kind(2, 2, True),
    "click-shades": Kind(7, 8, True),
    "click-tab": Kind(1, 1, False),
    "click-tab-2": Kind(2, 3, True),
    "click-tab-2-easy": Kind(1, 1, True),
    "click-tab-2-hard": Kind(2, 6, True),
    "click-tab-2-medium": Kind(1, 2, True),
    "click-test": Kind(1, 1, False),
    "click-test-2": Kind(1, 1, False),
    "click-test-transfer": Kind(1, 1, False),
    "click-widget": Kind(1, 1, True),
    "drag-box": Kind(2, 2, False),
    "drag-circle": Kind(2, 2, False),
    "drag-single-shape": Kind(2, 2, False),
    "drag-sort-numbers": Kind(5, 4, False),
    "email-inbox": Kind(2, 7, True),
    "email-inbox-delete": Kind(1, 1, True),
    "email-inbox-forward": Kind(2, 4, True),
    "email-inbox-important": Kind(1, 1, True),
    "email-inbox-noscroll": Kind(2, 4, True),
    "email-inbox-reply": Kind(2, 4, True),
    "email-inbox-star-reply": Kind(2, 4, True),
    "enter-date": Kind(2, 2, True),
    "enter-password": Kind(3, 3, True),
    "enter-text": Kind(2, 2, True),
    "enter-text-2": Kind(2, 2, True),
    "enter-text-dynamic": Kind(2, 2, True),
    "enter-time": Kind(2, 2, True),
    "find-greatest": Kind(2, 2, True),
    "focus-text": Kind(1, 1, False),
    "focus-text-2": Kind(1, 1, False),
    "form-sequence": Kind(3, 8, True),
    "form-sequence-2": Kind(3, 3, True),
    "form-sequence-3": Kind(2, 6, True),
    "generate-number": Kind(2, 8, True),
    "grid-coordinate": Kind(1, 1, True),
    "guess-number": Kind(2, 20, True),
    "highlight-text": Kind(2, 2, False),
    "identify-shape": Kind(1, 1, False),
    "login-user": Kind(3, 3, True),
    "login-user-popup": Kind(4, 6, True),
    "multi-layouts": Kind(4, 4, True),
    "multi-orderings": Kind(4, 4, True),
    "navigate-tree": Kind(2, 7, True),
    "odd-or-even": Kind(4, 4, True),
    "phone-book": Kind(2, 5, True),
    "resize-textarea": Kind(2, 2, False),
    "scroll-text-2": Kind(2, 2, False),
    "search-engine": Kind(3, 5, True),
    "sign-agreement": Kind(3, 3, True),
    "simple-algebra": Kind(2, 2, True),
    "simple-arithmetic": Kind(2, 2, True),
    "text-transform": Kind(2, 2, True),
    "unicode-test": Kind(1, 1, True),
    "use-autocomplete": Kind(2, 10, True),
    "use-autocomplete-nodelay": Kind(2, 10, True),
    "use-slider": Kind(2, 10, True),
    "use-slider-2": Kind(4, 15, True),
    "use-spinner": Kind(2, 11, True),
}
"""The kinds that have an oracle."""
