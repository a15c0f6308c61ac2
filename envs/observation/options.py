"""Options of observations: which parts of a page are shown, and by which rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LINE_TOLERANCE = 6.0
"""Vertical distance in pixels between the middles of two elements of one line. It is less than half
of the smallest line height (13 px at 10 px font)."""

WHOLE_SHARE = 0.6
"""Share of the viewport above which a listener belongs to the page (event delegation), not to
something to click."""

URL_CHARS = 8_192
"""Maximum number of characters of an address. Servers refuse longer request lines (8 kB in Apache
and nginx), so only a fragment, ``data:`` or ``blob:`` is longer."""

TITLE_CHARS = 200
"""Maximum number of characters of a title: three times what a tab or a search engine shows."""

MESSAGE_CHARS = 1_000
"""Maximum number of characters of an alert, a dialog or an error. Chromium cuts what it shows of a
dialog at 2,000, and two paragraphs are enough."""

MAX_OPTIONS = 100
"""Maximum number of choices of one list that its element shows: all months, states of a country, or
quarter hours of a day. An action may name any other choice too."""

MAX_OPTIONS_OF_ALL = 500
"""Maximum number of choices shown of all lists of a page together."""

STATE_CHARS = 160
"""Maximum number of characters of all states of an element."""

WHOLE_CHARS = 2_000
"""Maximum number of characters of a label or value that is recorded for facts where the policy sees
it shortened: a long paragraph."""

WHOLE_CHARS_OF_ALL = 20_000
"""Maximum number of characters of the recorded labels and values of all elements of a page."""

MAX_CHARS = 190_000
"""Maximum number of characters of all strings of an observation together, with the default options:
200 elements of 500 characters, the choices, what is recorded whole, the text and its words,
address, title and messages."""


@dataclass(frozen=True)
class ObservationOptions:
    """Options of an `Observer`.

    The defaults are for pages of ordinary size; `SMALL` is what the tiny policies are trained on.
    """

    max_elements: int = 200
    """Maximum number of listed elements. A prompt line takes about 12 tokens."""
    label_chars: int = 80
    """Maximum number of characters of a label or value."""
    max_texts: int = 0
    """Maximum number of short texts outside of controls that are listed as elements of tag
    ``text``. If there are more, none is listed; 0 for never."""
    order: Literal["document", "lines"] = "document"
    """Order of the numbers: that of the text, or line by line as the eye reads."""
    rules: Literal["full", "small"] = "full"
    """Rule set. ``full`` knows more ways to be interactive and lists disabled elements; ``small``
    is the rule set of the shipped policies."""
    text_chars: int | None = 8_000
    """Maximum number of characters of the text rendering (about 2,000 tokens); ``None`` leaves the
    text out."""
    offscreen: bool = False
    """True to list elements that have to be scrolled to as well. They are counted in any case."""


FULL = ObservationOptions()

SMALL = ObservationOptions(max_elements=16, label_chars=24, max_texts=6, order="lines", rules="small", text_chars=None)
"""Options for viewports of about 160 px. The largest quickstart page has 8 elements, and 16 lines
keep a prompt of the tiny policy under 300 tokens. 168 px show about 26 characters of a 10 px font.
A handful of short texts are facts (a sum, a value), not prose."""


def looks_shortened(label: str) -> bool:
    """Return True if a label or value may have been cut by the options in use.

    A few words that end in "…" are whole (``Search…``).
    """
    # A space at the end of what is kept is left out.
    return len(label) >= (SMALL if label.endswith("…") else FULL).label_chars - 1
