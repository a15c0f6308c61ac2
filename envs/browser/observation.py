"""What the policy sees of a page: interactive elements in reading order, and where to click them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from envs.browser.tab import script
from envs.types import Element, Observation

MAX_ELEMENTS = 16
"""Elements shown. The largest quickstart page has 8; 16 lines keep a prompt of the tiny policy under 300 tokens."""

LABEL_CHARS = 24
"""Characters of a label or value. The viewport of 168 px shows about 26 characters of a 10 px font."""

MAX_TEXTS = 6
"""Short texts outside controls are shown only when there are no more than this: they are facts (a sum, a value), not
prose."""

LINE_TOLERANCE = 6.0
"""Pixels between the middles of two elements of one line: less than half of the smallest line height (13 px at 10 px
font)."""

WHOLE_SHARE = 0.6
"""A listener on more than this share of the viewport belongs to the page (event delegation), not to something to
click."""


@dataclass(frozen=True)
class Handle:
    """What an action needs to know about an element; stays outside the page and outside the observation."""

    tag: str
    point: tuple[float, float]
    """A point that hits the element and nothing above it."""
    options: tuple[str, ...] | None
    """Labels of a drop-down list."""


def observe_script(exclude: str) -> str:
    """JavaScript expression that reads the page; ``exclude`` is a CSS selector of what is not shown."""
    options = {
        "limit": MAX_ELEMENTS,
        "labelChars": LABEL_CHARS,
        "textLimit": MAX_TEXTS,
        "lineTolerance": LINE_TOLERANCE,
        "wholeShare": WHOLE_SHARE,
        "exclude": exclude,
    }
    return f"({script('observe.js')})({json.dumps(options)})"


def read_page(
    page: dict[str, Any], *, instruction: str, viewport: tuple[int, int]
) -> tuple[Observation, dict[int, Handle]]:
    """The observation that `observe_script` gave, and the handles of its elements by number."""
    elements: list[Element] = []
    handles: dict[int, Handle] = {}
    for index, raw in enumerate(page["elements"], start=1):
        x, y, width, height = raw["box"]
        elements.append(
            Element(
                index=index,
                tag=raw["tag"],
                text=raw["text"],
                value=raw["value"],
                checked=raw["checked"],
                focused=raw["focused"],
                box=(x, y, width, height),
            )
        )
        options = tuple(raw["options"]) if raw["options"] is not None else None
        handles[index] = Handle(raw["tag"], (raw["point"][0], raw["point"][1]), options)
    return Observation(instruction=instruction, elements=tuple(elements), url=page["url"], viewport=viewport), handles
