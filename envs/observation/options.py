"""How much of a page is shown, and by which rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LINE_TOLERANCE = 6.0
"""Pixels between the middles of two elements of one line: less than half of the smallest line height (13 px at 10 px font)."""

WHOLE_SHARE = 0.6
"""A listener on more than this share of the viewport belongs to the page (event delegation), not to something to click."""


@dataclass(frozen=True)
class ObservationOptions:
    """What an `Observer` shows. The defaults are for pages of ordinary size; `SMALL` is what the tiny policies are trained on."""

    max_elements: int = 200
    """Elements listed. A prompt line takes about 12 tokens."""
    label_chars: int = 80
    """Characters of a label or value."""
    max_texts: int = 0
    """Short texts outside of controls are listed as elements of tag ``text`` when there are no more than this; 0 for never."""
    order: Literal["document", "lines"] = "document"
    """Numbers in the order of the text, or line by line as the eye reads."""
    rules: Literal["full", "small"] = "full"
    """``full`` knows more ways to be interactive and lists disabled elements; ``small`` is the rule set of the shipped policies."""
    text_chars: int | None = 8_000
    """Most characters of the text rendering (about 2,000 tokens); ``None`` leaves the text out."""
    ids: Literal["index", "id"] = "index"
    """What stands in the brackets of the text rendering: the number, or the semantic id."""
    offscreen: bool = False
    """Also list what has to be scrolled to. It is counted in any case."""
    hoverable: bool = False
    """Ask for listeners of the mouse coming over elements (one more call), mark the elements that have one, and list those that have no
    other use as ``hover``."""
    diff: bool = True
    """Say what changed since the observer's last observation."""


FULL = ObservationOptions()

SMALL = ObservationOptions(
    max_elements=16, label_chars=24, max_texts=6, order="lines", rules="small", text_chars=None, diff=False
)
"""For viewports of about 160 px. The largest quickstart page has 8 elements, and 16 lines keep a prompt of the tiny policy under 300 tokens;
168 px show about 26 characters of a 10 px font; a handful of short texts are facts (a sum, a value), not prose."""
