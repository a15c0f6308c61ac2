"""Extracts a page's text blocks from layout and screenshots with and without text.

The paper finds blocks by drawing a page twice with every text in a colour of its own, and gets one
block for each text node: what it says, the box around its pixels, its colour. Here the browser's
layout says what each line of a text node says, where it is and which colour it has; that is the
same block without guessing from colours that anti-aliasing mixed. What the layout does not say is
whether a line can be seen: it may be clipped, covered, transparent or as light as what is behind
it, and a policy that is rewarded for text would learn to write such text. So the page is drawn once
more with transparent letters, and a line counts only where the pictures differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.observation.dom import STYLES, Dom
from envs.observation.snapshot import decode
from envs.rewards.chromiumrl.pairs import read_colour
from envs.rewards.design2code.records import PageBlocks, TextBlock
from envs.rewards.design2code.ssim import Image
from envs.types import JudgeError

FILL = "-webkit-text-fill-color"
"""Property that paints letters; ``color`` unless a page sets it."""

COMPUTED = (*STYLES, FILL)
"""``computedStyles`` of the capture that `page_blocks` reads."""

SEEN = 12
"""Levels (of 255, of any channel) by which a pixel must differ for a letter to be seen there. Black
on white differs by 255, light grey (#ccc) on white by 51; two drawings of one page by 0."""

INK = 0.1
"""Share of a line's columns in which something must be seen. A full stop has ink in half of its
columns, letters set 10 px apart in 40 %."""

Rect = tuple[float, float, float, float]
"""Left, top, right, bottom in CSS pixels."""


def page_blocks(raw: dict[str, Any], shown: Image, blank: Image) -> PageBlocks:
    """One block for each text node that is seen, in document order; frames and shadow roots
    included.

    Args:
        raw: Answer of ``DOMSnapshot.captureSnapshot`` with `COMPUTED`, of a page that is not
            scrolled.
        shown: Picture of the whole page, one pixel for a CSS pixel.
        blank: The same without text.

    Raises:
        JudgeError: the pictures are not of one page.
    """
    if shown.shape != blank.shape:
        raise JudgeError(
            f"pictures of one page with and without its text are {shown.shape} and {blank.shape}; expected equal sizes"
        )
    dom, fills = _decoded(raw)
    spans = [
        span
        for one in raw["documents"]
        for span in zip(one["textBoxes"]["start"], one["textBoxes"]["length"], strict=True)
    ]
    lines: dict[int, list[tuple[str, Rect]]] = {}
    for box, rect, span in zip(dom.line_box, dom.line_rects.tolist(), spans, strict=True):
        text = _part(dom.string(dom.box_text[box]), *span)
        # What a style sheet puts before and after elements, bullets of lists say, is no node of the
        # page.
        made_up = dom.box_node[box] in dom.pseudo or dom.parent[dom.box_node[box]] in dom.pseudo
        where = seen_part(shown, blank, rect) if text.strip() and not made_up else None
        if where is not None:
            lines.setdefault(box, []).append((text, where))
    blocks = []
    for box, pieces in lines.items():
        left, top, right, bottom = _around([where for _, where in pieces])
        colour = read_colour(dom.string(fills[box]), over_white=True) or _painted(shown, blank, pieces[0][1])
        blocks.append(
            TextBlock(
                text=" ".join(" ".join(text for text, _ in pieces).split()),
                left=left,
                top=top,
                width=right - left,
                height=bottom - top,
                colour=(round(colour[0]), round(colour[1]), round(colour[2])),
            )
        )
    height, width = shown.shape[:2]
    return PageBlocks(width=width, height=height, blocks=tuple(blocks))


def _decoded(raw: dict[str, Any]) -> tuple[Dom, list[int]]:
    """The snapshot as observations read it, and by box the string index of its text's colour."""
    narrow, fills = {**raw, "documents": []}, []
    for one in raw["documents"]:
        layout = one["layout"]
        fills += [row[len(STYLES)] if len(row) > len(STYLES) else -1 for row in layout["styles"]]
        kept = {**layout, "styles": [row[: len(STYLES)] for row in layout["styles"]]}
        narrow["documents"].append({**one, "layout": kept})
    return decode(narrow), fills


def seen_part(shown: Image, blank: Image, rect: Sequence[float]) -> Rect | None:
    """Return the visible part of a line: its box, cut to the columns with ink; ``None`` if too
    little is left.

    The height stays the line's: the font sets it, not the letters in it.
    """
    left, top, right, bottom = _pixels(shown, rect)
    if left >= right or top >= bottom:
        return None
    there, bare = shown[top:bottom, left:right], blank[top:bottom, left:right]
    columns = np.flatnonzero((np.maximum(there, bare) - np.minimum(there, bare) >= SEEN).any(axis=(0, 2)))
    if len(columns) < max(1.0, INK * (rect[2] - rect[0])):
        return None
    return float(left + columns[0]), max(rect[1], 0.0), float(left + columns[-1] + 1), min(rect[3], float(len(shown)))


def _pixels(picture: Image, rect: Sequence[float]) -> tuple[int, int, int, int]:
    """The pixels that a rectangle touches."""
    height, width = picture.shape[:2]
    return (
        max(0, math.floor(rect[0])),
        max(0, math.floor(rect[1])),
        min(width, math.ceil(rect[2])),
        min(height, math.ceil(rect[3])),
    )


def _around(rects: Sequence[Rect]) -> Rect:
    lefts, tops, rights, bottoms = zip(*rects, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def _painted(shown: Image, blank: Image, rect: Rect) -> tuple[float, float, float]:
    """The colour of the pixel that a text changed most: for colours that are computed to other
    notations (``oklch(…)``)."""
    left, top, right, bottom = _pixels(shown, rect)
    there = shown[top:bottom, left:right].astype(np.int16)
    apart = np.abs(there - blank[top:bottom, left:right]).sum(axis=2)
    red, green, blue = there.reshape(-1, 3)[int(apart.argmax())].tolist()
    return float(red), float(green), float(blue)


def _part(text: str, start: int, length: int) -> str:
    """A part of a text by the browser's positions, which count UTF-16 units."""
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * (start + length)].decode("utf-16-le", "replace")
