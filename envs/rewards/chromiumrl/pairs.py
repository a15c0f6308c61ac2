"""Likeness of two nodes: words, boxes, styles (facts section 2.6)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from envs.rewards.chromiumrl.records import Box

COLOURS = ("color", "background-color")
LENGTHS = ("font-size", "font-weight", "padding", "margin", "width", "height", "line-height")
NUMBERS = ("opacity",)
WORDS = (
    "visibility",
    "display",
    "position",
    "overflow",
    "white-space",
    "text-align",
    "text-decoration",
    "border",
    "border-radius",
)
PROPERTIES = COLOURS + LENGTHS + NUMBERS + WORDS
"""The 19 properties that are compared."""

FARTHEST = math.sqrt(3) * 255
"""Distance of black and white in RGB."""

_RGB = re.compile(r"rgba?\(\s*([\d.]+)[\s,]+([\d.]+)[\s,]+([\d.]+)(?:[\s,/]+([\d.]+))?\s*\)")
_PIXELS = re.compile(r"-?\d+(?:\.\d+)?px")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

Matrix = NDArray[np.float64]


def word_similarity(first: str, second: str) -> float:
    """Jaccard index of the sets of whitespace-separated words; equal texts 1, one empty 0."""
    if first == second:
        return 1.0
    a, b = set(first.split()), set(second.split())
    return len(a & b) / len(a | b) if a and b else 0.0


def word_similarities(first: Sequence[str], second: Sequence[str]) -> Matrix:
    """`word_similarity` of all pairs: (len(first), len(second))."""
    similarities = np.zeros((len(first), len(second)))
    words = [set(text.split()) for text in second]
    columns: dict[str, list[int]] = {}
    for node, contained in enumerate(words):
        for word in contained:
            columns.setdefault(word, []).append(node)
    equal: dict[str, list[int]] = {}
    for node, text in enumerate(second):
        equal.setdefault(text, []).append(node)
    sizes = np.array([len(contained) for contained in words], dtype=np.float64)
    rows: dict[str, Matrix] = {}
    for node, text in enumerate(first):
        if text not in rows:
            row, own = np.zeros(len(second)), set(text.split())
            for word in own:
                row[columns.get(word, [])] += 1
            row /= np.maximum(1.0, sizes + len(own) - row)
            row[equal.get(text, [])] = 1.0
            rows[text] = row
        similarities[node] = rows[text]
    return similarities


def box_overlap(first: Box | None, second: Box | None) -> float:
    """Intersection over union; equal boxes (also empty ones and two missing ones) 1."""
    if first == second:
        return 1.0
    if first is None or second is None:
        return 0.0
    return float(overlaps([first], [second])[0, 0])


def overlaps(first: Sequence[Box | None], second: Sequence[Box | None]) -> Matrix:
    """`box_overlap` of all pairs: (len(first), len(second))."""
    a, b = _corners(first)[:, None], _corners(second)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = np.prod(np.maximum(sides, 0.0), axis=2)
    together = np.prod(a[..., 2:] - a[..., :2], axis=2) + np.prod(b[..., 2:] - b[..., :2], axis=2) - common
    ratio = np.divide(common, together, out=np.zeros_like(common), where=together > 0)
    same: Matrix = np.where(np.all(a == b, axis=2), 1.0, ratio)
    return np.minimum(same, 1.0)


def _corners(boxes: Sequence[Box | None]) -> Matrix:
    corners = np.full((len(boxes), 4), -1e9)  # far from every page, and empty
    for node, box in enumerate(boxes):
        if box is not None:
            corners[node] = (box[0], box[1], box[0] + box[2], box[1] + box[3])
    return corners


def style_similarity(first: Mapping[str, str], second: Mapping[str, str], native: bool) -> float:
    """Plain mean over the 19 properties.

    Args:
        first: Computed styles of the reference. second: Of the live node.
        native: Only the properties that both have; when they share none, 1 if both have none and 0
            otherwise; colours are seen over white. Without it a property that both lack counts as
            equal, and transparent black is black.
    """
    names: Sequence[str] = PROPERTIES
    if native:
        names = [name for name in PROPERTIES if name in first and name in second]
        if not names:
            return float(not first and not second)
    alike = (property_similarity(name, first.get(name, ""), second.get(name, ""), native) for name in names)
    return math.fsum(alike) / len(names)


def property_similarity(name: str, first: str, second: str, over_white: bool = False) -> float:
    """Return the likeness of two computed values of one property, in [0, 1]."""
    if first == second:
        return 1.0
    if name in COLOURS:
        a, b = read_colour(first, over_white), read_colour(second, over_white)
        return 0.0 if a is None or b is None else max(0.0, 1.0 - math.dist(a, b) / FARTHEST)
    pattern = _PIXELS if name in LENGTHS else _NUMBER if name in NUMBERS else None
    if pattern is None or not (pattern.fullmatch(first) and pattern.fullmatch(second)):
        return 0.0
    x, y = float(first.removesuffix("px")), float(second.removesuffix("px"))
    return max(0.0, 1.0 - abs(x - y) / max(abs(y), 1.0))


def read_colour(css: str, over_white: bool) -> tuple[float, float, float] | None:
    """Red, green and blue, of which alpha shows white if so wanted."""
    match = _RGB.fullmatch(css)
    if match:
        alpha = float(match[4]) if match[4] and over_white else 1.0
        red, green, blue = (alpha * float(match[channel]) + (1.0 - alpha) * 255.0 for channel in (1, 2, 3))
        return red, green, blue
    if re.fullmatch(r"#[0-9a-fA-F]{6}", css):
        return float(int(css[1:3], 16)), float(int(css[3:5], 16)), float(int(css[5:], 16))
    return None
