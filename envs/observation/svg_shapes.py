"""Parts of SVG shapes that a click reaches: their filled inside and their stroke.

A snapshot has a shape's rectangle, its attributes and its styles. The outline is computed from the
attributes and fitted into the rectangle. Dashes, clip paths and ``fill-rule`` are not considered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from envs.observation.dom import (
    ELEMENT,
    FILL,
    POINTER_EVENTS,
    STROKE,
    STROKE_WIDTH,
    TRANSFORM,
    Dom,
    Flags,
    Styles,
    pixels,
)
from envs.observation.visibility import matrix

SHAPES = frozenset({"circle", "ellipse", "line", "path", "polygon", "polyline", "rect"})
"""SVG elements that are not hit on their whole rectangle; a filled ``rect`` is."""

GEOMETRY = ("d", "points", "x1", "y1", "x2", "y2")
"""Attributes that define the outline of a shape."""

ROWS = 9
"""Number of pixel rows on which a point inside a shape is searched."""

ALONG = 4
"""Number of points tried along each edge of a stroke."""

MAX_CACHED = 4096
"""Maximum number of outlines in the cache: those of the icons of some tens of pages."""

Vectors = NDArray[np.float64]
"""(n, 2) floats."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_COMMAND = re.compile(r"([MmLlHhVvCcSsQqTtAaZz])([^MmLlHhVvCcSsQqTtAaZz]*)")
_ARC = re.compile(r"\s*,?\s*".join([rf"({_NUMBER})"] * 3 + ["([01])"] * 2 + [rf"({_NUMBER})"] * 2))
_COUNTS = {"h": 1, "v": 1, "c": 6, "s": 4, "q": 4}
_TIMES = np.arange(1, 9) / 8
"""Parameters at which a curve is cut into edges."""


@dataclass(frozen=True, slots=True)
class SvgShape:
    """Shape of an SVG element in the viewport."""

    starts: Vectors
    ends: Vectors
    """Start and end points of the edges."""
    drawn: Flags
    """True for edges that the stroke follows; the others close what is filled."""
    filled: bool
    half_stroke: float
    """Half the width of the stroke in CSS pixels, 0 for none."""

    def holds(self, points: Vectors) -> Flags:
        """Return True for each point at which a click reaches the shape."""
        reached: Flags = np.full(len(points), not len(self.starts))  # unknown: its rectangle
        if self.filled:
            reached |= [bool((x < crossings(y, self.starts, self.ends)).sum() % 2) for x, y in points]
        if self.half_stroke:
            reached |= [self._beside_stroke(point) for point in points]
        return reached

    def _beside_stroke(self, point: Vectors) -> bool:
        starts, ways = self.starts[self.drawn], (self.ends - self.starts)[self.drawn]
        lengths = np.maximum((ways**2).sum(axis=1), 1e-9)
        shares = np.clip(((point - starts) * ways).sum(axis=1) / lengths, 0, 1)
        away = np.hypot(*(point - starts - ways * shares[:, None]).T)
        return bool(away.min(initial=np.inf) <= self.half_stroke)

    def points(self, rect: Vectors) -> Vectors:
        """Return whole pixels in a rectangle (left, top, right, bottom) at which a click reaches
        the shape.

        The middles of its widest places come first, then points of its stroke.
        """
        spans = []
        for y in np.unique(np.round(np.linspace(rect[1], rect[3], ROWS + 2)[1:-1])) if self.filled else ():
            across = np.clip(np.sort(crossings(y, self.starts, self.ends)), rect[0], rect[2])
            spans += [
                (left - right, (left + right) / 2, y) for left, right in zip(across[::2], across[1::2], strict=True)
            ]
        inside = np.array([middle for _, *middle in sorted(spans)]).reshape(-1, 2)
        shares = ((np.arange(ALONG) + 0.5) / ALONG)[:, None, None]
        stroke = (self.starts + (self.ends - self.starts) * shares)[:, self.drawn].reshape(-1, 2)
        tried = np.round(np.concatenate([inside, stroke]))
        return tried[self.holds(tried)]


def hit_parts(style: Styles) -> tuple[bool, bool]:
    """Return True if clicks reach the inside of a shape with this style, and the same for its
    stroke.

    Source: https://www.w3.org/TR/SVG2/interact.html#PointerEventsProp
    """
    events = style[POINTER_EVENTS].lower().removeprefix("visible") or "all"
    if events in ("auto", "painted"):
        return style[FILL] != "none", style[STROKE] != "none"
    return events in ("fill", "all", "bounding-box"), events in ("stroke", "all")


def shape_of(dom: Dom, node: int, rect: Vectors) -> SvgShape:
    """Return the shape of a node in its rectangle (left, top, right, bottom; with the stroke)."""
    name, box = dom.name[node], dom.box_of[node]
    style = dom.styles[dom.style_at[box]]
    filled, stroked = hit_parts(style)
    edges, drawn = _outline(name, *(dom.attribute(node, attribute) or "" for attribute in GEOMETRY))
    turn, scale = _user_space(dom, node)
    corners = edges.reshape(-1, 2) @ turn.T
    width = pixels(style[STROKE_WIDTH]) * scale * abs(np.linalg.det(turn)) ** 0.5
    span = np.ptp(corners, axis=0) if len(corners) else np.zeros(2)
    size = rect[2:] - rect[:2]
    if style[STROKE] != "none":  # a path's rectangle may be larger than its corners need
        size = size - width.max() if name in ("circle", "ellipse", "line", "rect") else span * scale
    if len(corners):
        corners = (rect[:2] + rect[2:] - size) / 2 + (corners - corners.min(axis=0)) / np.maximum(span, 1e-9) * size
    starts, ends = corners.reshape(-1, 2, 2).transpose(1, 0, 2)
    return SvgShape(starts, ends, drawn, filled, float(width.mean()) / 2 if stroked else 0.0)


def crossings(y: float, starts: Vectors, ends: Vectors) -> NDArray[np.float64]:
    """Return the x at which edges cross a height."""
    over = (starts[:, 1] > y) != (ends[:, 1] > y)
    (x, top), (to_x, to_y) = starts[over].T, ends[over].T
    crossed: NDArray[np.float64] = x + (y - top) * (to_x - x) / (to_y - top)
    return crossed


def in_polygon(point: NDArray[np.float64], corners: Vectors) -> bool:
    """Return True if a point is in a polygon, by the even-odd rule."""
    return bool((point[0] < crossings(point[1], corners, np.roll(corners, -1, axis=0))).sum() % 2)


def _user_space(dom: Dom, node: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the transforms of a shape and its groups, and the CSS pixels of one unit of its
    ``svg``.

    The first is a 2 by 2 matrix; the second is the scale across and down.
    """
    turn = np.eye(2)
    while (above := dom.up(node)) >= 0:
        if dom.name[node] == "svg" and (dom.type[above] != ELEMENT or dom.name[above].isupper()):
            break
        turn = matrix(dom.style(node, TRANSFORM))[:2, :2] @ turn
        node = above
    view = [float(number) for number in re.findall(_NUMBER, dom.attribute(node, "viewBox") or "")]
    if len(view) != 4 or min(view[2:]) <= 0 or dom.box_of[node] < 0:
        return turn, np.ones(2)
    left, top, right, bottom = dom.rects[dom.box_of[node]]
    scale = np.array([right - left, bottom - top]) / view[2:]
    fitted = dom.attribute(node, "preserveAspectRatio") or ""
    if "none" not in fitted:
        scale[:] = scale.max() if "slice" in fitted else scale.min()
    return turn, scale


@lru_cache(maxsize=MAX_CACHED)
def _outline(name: str, path: str, points: str, *ends: str) -> tuple[NDArray[np.float64], Flags]:
    """Return edges (n, start and end, x and y) in user units, and True for those that the stroke
    follows.

    A circle and a rectangle have a fixed size, as they are fitted into the shape's rectangle.
    """
    subpaths = list[tuple[list[complex], bool]]()
    if name == "path":
        subpaths = list(_subpaths(path))
    elif name in ("circle", "ellipse"):
        subpaths = [(list(np.exp(2j * np.pi * np.arange(48) / 48)), True)]
    elif name == "rect":
        subpaths = [([0j, 1 + 0j, 1 + 1j, 1j], True)]
    else:
        numbers = [float(number) for number in re.findall(_NUMBER, points or " ".join(end or "0" for end in ends))]
        subpaths = [([complex(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=False)], name == "polygon")]
    subpaths = [(corners, closed) for corners, closed in subpaths if len(corners) > 1]
    edges = [np.stack([corners, np.roll(corners, -1)], axis=1) for corners, _ in subpaths]
    drawn = [[True] * (len(corners) - 1) + [closed] for corners, closed in subpaths]
    flat = np.concatenate([np.zeros((0, 2), dtype=np.complex128), *edges])
    return np.stack([flat.real, flat.imag], axis=2), np.concatenate([np.zeros(0, dtype=np.bool_), *drawn]).astype(
        np.bool_
    )


def _subpaths(path: str) -> Iterator[tuple[list[complex], bool]]:
    """Yield the corners of each subpath, curves cut into edges, and True if it is closed.

    Source: https://www.w3.org/TR/SVG2/paths.html#PathData
    """
    corners, current, control, before = list[complex](), 0j, 0j, "m"
    for command, text in _COMMAND.findall(path):
        kind = command.lower()
        if kind in "mz":
            yield corners, kind == "z"
            current = corners[0] if corners and kind == "z" else current
            corners, before = [current], kind
        for numbers in () if kind == "z" else _arguments(kind, text):
            base = current if command.islower() else 0j
            to = complex(*numbers[-2:]) + base if kind not in "hv" else 0j
            if kind == "m":
                corners, kind = [to], "l"
            elif kind == "a":
                corners += _arc(current, to, *numbers[:5])
            elif kind in "csqt":
                first = complex(*numbers[:2]) + base if kind in "cq" else current
                if kind in "st" and before in {"s": "cs", "t": "qt"}[kind]:
                    first = 2 * current - control
                control = complex(*numbers[-4:-2]) + base if kind in "cs" else first
                corners += _curve(current, first, *([control] if kind in "cs" else []), to)
            else:
                if kind == "h":
                    to = complex(numbers[0] + base.real, current.imag)
                elif kind == "v":
                    to = complex(current.real, numbers[0] + base.imag)
                corners.append(to)
            current, before = to, kind
    yield corners, False


def _arguments(kind: str, text: str) -> Iterator[tuple[float, ...]]:
    """Return the numbers of a path's command, once for each time that it is repeated.

    The flags of an arc may follow each other without a separator.
    """
    count = _COUNTS.get(kind, 2)
    numbers = _ARC.findall(text) if kind == "a" else zip(*[iter(re.findall(_NUMBER, text))] * count, strict=False)
    return (tuple(map(float, group)) for group in numbers)


def _curve(*controls: complex) -> list[complex]:
    """Return points of a Bézier curve after its start, by de Casteljau's algorithm."""
    points = np.array(controls)[:, None] * np.ones(len(_TIMES))
    while len(points) > 1:
        points = points[:-1] * (1 - _TIMES) + points[1:] * _TIMES
    return list(points[0])


def _arc(
    start: complex, end: complex, across: float, down: float, degrees: float, large: float, clockwise: float
) -> list[complex]:
    """Return points of an arc of an ellipse after its start.

    Source: https://www.w3.org/TR/SVG2/implnote.html#ArcImplementationNotes
    """
    turned = np.exp(1j * np.radians(degrees))
    half = (start - end) / 2 / turned
    if not across or not down or not half:
        return [end]
    from_middle = complex(half.real / across, half.imag / down)  # on a circle of radius 1
    size = max(abs(from_middle), 1.0)  # an ellipse that is too small for its ends grows
    from_middle /= size
    side = -1j if bool(large) != bool(clockwise) else 1j
    centre = side * from_middle / abs(from_middle) * max(0.0, 1 - abs(from_middle) ** 2) ** 0.5
    first, last = from_middle - centre, -from_middle - centre
    angle = float(np.angle(last / first)) % (2 * np.pi) - (0 if clockwise else 2 * np.pi)
    times = np.arange(1, 25) / 24
    points = centre + first * np.exp(1j * angle * times)
    arc = (points.real * abs(across) + 1j * points.imag * abs(down)) * size * turned + (start + end) / 2
    return [*arc[:-1], end]
