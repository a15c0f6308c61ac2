"""Visibility of boxes: opacity, clips, faces that are turned away, and drawn content.

An element of which nothing is drawn is not offered, however well a click would hit it. There is one
exception (`Drawn.stands_in`): pages replace native controls by a picture of their own and keep the
control above it, transparent, for the clicks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envs.observation.dom import (
    BACKFACE,
    BACKGROUND,
    CLIP,
    CLIP_PATH,
    LEFT,
    PICTURE,
    POSITION,
    TEXT_FILL,
    TOP,
    TRANSFORM,
    Dom,
    Flags,
    Indices,
    Rects,
    pixels,
)

MIN_SHARE = 0.25
"""Minimum share of a drawing that lies in a transparent control for it to be the control's. With
less, the drawing is something larger that the control lies on."""

DRAWN_TAGS = (
    *("IMG", "CANVAS", "VIDEO", "IFRAME", "EMBED", "OBJECT", "INPUT", "SELECT", "TEXTAREA", "BUTTON", "METER"),
    *("PROGRESS", "path", "rect", "circle", "ellipse", "line", "polygon", "polyline", "image", "use"),
)
"""Elements that draw themselves."""

_LENGTH = re.compile(r"(-?[\d.]+(?:e-?\d+)?)(px|%)")
_SHAPE = re.compile(r"(inset|circle|ellipse|polygon)\(([^()]*)\)")


def style_clips(dom: Dom, strips: Sequence[int] | None = None) -> Rects | None:
    """Return the rectangle that clip styles and turned faces leave of each box.

    The containing block does not matter. The answer is ``None`` where no box has any of them.

    Args:
        strips: Strip of each box (`envs.observation.whole_page`). A box in another strip than its
            parent is not cut by the parent.
    """
    clipped = dom.styled(CLIP_PATH, lambda path: path != "none") | dom.styled(BACKFACE, lambda face: face == "hidden")
    clipped |= dom.styled(CLIP, lambda clip: clip != "auto") & dom.styled(POSITION, ("absolute", "fixed").__contains__)
    if not clipped.any():
        return None
    left = np.tile(np.array([-1e9, -1e9, 1e9, 1e9]), (len(dom.box_node), 1))
    for box, (above, has_own) in enumerate(zip(dom.box_parent, clipped.tolist(), strict=True)):
        if above >= 0 and (strips is None or strips[above] == strips[box]):
            left[box] = left[above]
        if has_own:
            for cut in _own_clips(dom, box):
                left[box] = [*np.maximum(left[box, :2], cut[:2]), *np.minimum(left[box, 2:], cut[2:])]
    return left


def _own_clips(dom: Dom, box: int) -> list[list[float]]:
    rect: list[float] = dom.rects[box].tolist()
    clips = [clip_path(dom.style_of(box, CLIP_PATH), rect)]
    if dom.style_of(box, POSITION) in ("absolute", "fixed"):
        clips.append(_clip(dom.style_of(box, CLIP), rect))
    if dom.style_of(box, BACKFACE) == "hidden" and _faces_away(dom, box):
        clips.append([0.0, 0.0, 0.0, 0.0])
    return [cut for cut in clips if cut is not None]


def clip_path(css: str, rect: list[float]) -> list[float] | None:
    """Return the rectangle around what a ``clip-path`` leaves of a border box.

    Rectangles are left, top, right, bottom. The answer is ``None`` for a path that is not
    understood, which is taken to leave all.

    Source: https://drafts.csswg.org/css-shapes/#basic-shape-functions
    """
    shape = _SHAPE.search(css)
    if shape is None:
        return None
    left, top, right, bottom = rect
    width, height = right - left, bottom - top
    body, _, centre = shape[2].partition(" round ")[0].partition(" at ")
    lengths = _LENGTH.findall(body)

    def of(length: tuple[str, str], whole: float) -> float:
        return float(length[0]) * (whole / 100 if length[1] == "%" else 1.0)

    match shape[1], lengths:
        case _, []:
            return None
        case "inset", _:
            up, side, down, other = ([*lengths, lengths[1]] if len(lengths) == 3 else lengths * 4)[:4]
            return [left + of(other, width), top + of(up, height), right - of(side, width), bottom - of(down, height)]
        case "polygon", _:
            x = [left + of(length, width) for length in lengths[::2]]
            y = [top + of(length, height) for length in lengths[1::2]]
            return [min(x), min(y), max(x), max(y)]
    diagonal = float(np.hypot(width, height) / np.sqrt(2))
    radii = (
        (of(lengths[0], diagonal),) * 2 if shape[1] == "circle" else (of(lengths[0], width), of(lengths[-1], height))
    )
    middle = _LENGTH.findall(centre) or [("50", "%"), ("50", "%")]
    x_at, y_at = left + of(middle[0], width), top + of(middle[-1], height)
    return [x_at - radii[0], y_at - radii[1], x_at + radii[0], y_at + radii[1]]


def _clip(css: str, rect: list[float]) -> list[float] | None:
    """Return the rectangle that the old ``clip: rect(top, right, bottom, left)`` leaves.

    Its lengths are from the top left corner.
    """
    sides = css.removeprefix("rect(").removesuffix(")").split(", ") if css.startswith("rect(") else []
    if len(sides) != 4:
        return None
    left, top, right, bottom = rect
    up, side, down, other = sides
    return [
        left + pixels(other),  # auto is the box's own edge, for these two as for a length of 0
        top + pixels(up),
        right if side == "auto" else left + pixels(side),
        bottom if down == "auto" else top + pixels(down),
    ]


def _faces_away(dom: Dom, box: int) -> bool:
    """Return True if the transforms of a box and its ancestors turn its back to the viewer.

    Source: https://drafts.csswg.org/css-transforms-2/.
    """
    whole = np.eye(4)
    while box >= 0:
        whole = matrix(dom.style_of(box, TRANSFORM)) @ whole
        box = dom.box_parent[box]
    return bool(np.linalg.det(whole) != 0 and np.linalg.inv(whole)[2, 2] < 0)


def matrix(css: str) -> NDArray[np.float64]:
    """Return the 4 by 4 matrix of a computed ``transform``."""
    numbers = [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", css.partition("(")[2])]
    if len(numbers) == 16:
        return np.array(numbers).reshape(4, 4).T
    own = np.eye(4)
    if len(numbers) == 6:
        own[:2, 0], own[:2, 1], own[:2, 3] = numbers[:2], numbers[2:4], numbers[4:]
    return own


def invisible_text(dom: Dom) -> Flags:
    """Return the boxes whose text has no colour.

    Boxes with a picture behind them are left out: the letters may be cut out of it.
    """
    return dom.styled(TEXT_FILL, _is_clear) & dom.styled(PICTURE, lambda picture: picture == "none")


def _is_clear(css: str) -> bool:
    """Return True if a computed colour is fully transparent."""
    return css == "transparent" or (css.startswith("rgba(") and css.endswith(", 0)"))


class Drawn:
    """Knows the boxes that draw something visible."""

    def __init__(self, dom: Dom) -> None:
        self._dom = dom
        self._clear = invisible_text(dom)
        self._all = not dom.transparent and not self._clear.any()

    @cached_property
    def flags(self) -> Flags:
        """True for each box that draws words, a picture, a background or a border."""
        dom = self._dom
        flags = ~dom.styled(BACKGROUND, _is_clear) | dom.styled(PICTURE, lambda picture: picture != "none")
        flags |= dom.styled(LEFT, pixels) | dom.styled(TOP, pixels)
        flags[[box for node in dom.named(*DRAWN_TAGS) if (box := dom.box_of[node]) >= 0]] = True
        text: Indices = np.array(dom.box_text, dtype=np.int64)
        above: Indices = np.array(dom.box_parent, dtype=np.int64)
        hidden = np.array(dom.hidden)
        unreadable = self._clear | hidden
        words = np.array([bool(text_.strip()) for text_ in dom.strings], dtype=np.bool_)
        plain = dom.style_at == 0
        flags[plain] = (text[plain] >= 0) & words[text[plain]] & ~unreadable[above[plain]]
        flags &= ~hidden
        flags[list(dom.transparent)] = False
        return flags

    def nothing_of(self, node: int) -> bool:
        """Return True if an element is transparent, or has words and none of it is drawn."""
        dom, box = self._dom, self._dom.box_of[node]
        if self._all or box < 0:
            return False
        if box in dom.transparent:
            return True
        inside = range(box, bisect_right(dom.box_node, dom.end[node]))
        if not self._clear[inside.start : inside.stop].any():
            return False
        has_words = any(dom.box_text[other] >= 0 and dom.strings[dom.box_text[other]].strip() for other in inside)
        return has_words and not self.flags[inside.start : inside.stop].any()

    def stands_in(self, node: int, boxes: Indices, rects: Rects) -> bool:
        """Return True if a transparent element lies on a drawing of its own size.

        A drawing that is much larger is only what the element lies on.

        Args:
            boxes: Boxes that can be seen.
            rects: Visible rectangles of the ``boxes``.
        """
        own = self._dom.rects[self._dom.box_of[node]]
        size = np.maximum(0.0, np.minimum(rects[:, 2:], own[2:]) - np.maximum(rects[:, :2], own[:2])).prod(axis=1)
        whole = np.maximum((rects[:, 2:] - rects[:, :2]).prod(axis=1), 1e-9)
        return bool((self.flags[boxes] & (size / whole >= MIN_SHARE)).any())
