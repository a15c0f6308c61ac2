"""How much of a page is shown, and by which rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LINE_TOLERANCE = 6.0
"""Pixels between the middles of two elements of one line: less than half of the smallest line height (13 px at 10 px font)."""

WHOLE_SHARE = 0.6
"""A listener on more than this share of the viewport belongs to the page (event delegation), not to something to click."""

URL_CHARS = 8_192
"""Characters of an address. Servers refuse longer request lines (8 kB in Apache and nginx), so only a fragment, ``data:`` or ``blob:`` is longer."""

TITLE_CHARS = 200
"""Characters of a title: three times what a tab or a search engine shows."""

MESSAGE_CHARS = 1_000
"""Characters of an alert, a dialog or an error: Chromium cuts what it shows of a dialog at 2,000, and two paragraphs say what one has to say."""

MAX_OPTIONS = 100
"""Choices of one list in its element: all the months, states of a country, or hours in quarters. An action may name any other choice too."""

MAX_OPTIONS_OF_ALL = 500
"""Choices of all lists of a page together."""

STATE_CHARS = 160
"""Characters of all that is said of an element's state."""

WHOLE_CHARS = 2_000
"""Characters of one label or value that is recorded for facts where the policy sees it shortened: a long paragraph."""

WHOLE_CHARS_OF_ALL = 20_000
"""The same of all elements of a page."""

MAX_CHARS = 190_000
"""Characters of all strings of an observation together, at most, with the default options: 200 elements of 500 characters, the choices, what is
recorded whole, the text and its words, address, title and messages."""


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
    offscreen: bool = False
    """Also list what has to be scrolled to. It is counted in any case."""


FULL = ObservationOptions()

SMALL = ObservationOptions(max_elements=16, label_chars=24, max_texts=6, order="lines", rules="small", text_chars=None)
"""For viewports of about 160 px. The largest quickstart page has 8 elements, and 16 lines keep a prompt of the tiny policy under 300 tokens;
168 px show about 26 characters of a 10 px font; a handful of short texts are facts (a sum, a value), not prose."""


def looks_shortened(label: str) -> bool:
    """Whether a label or value may have been cut by the options that are in use; a few words that end in "…" are whole (``Search…``)."""
    # A space at the end of what is kept is left out.
    return len(label) >= (SMALL if label.endswith("…") else FULL).label_chars - 1
