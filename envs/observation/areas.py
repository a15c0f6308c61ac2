"""Places of the areas of image maps, which have no boxes: a click on the picture reaches them."""

from __future__ import annotations

from bisect import bisect_right
from itertools import product

import numpy as np
from numpy.typing import NDArray

from envs.observation.dom import LEFT, TOP, Dom, pixels
from envs.observation.occlusion import Scene
from envs.observation.svg_shapes import in_polygon

GRID = 8
"""Number of points tried across and down each area, after its middle. So an eighth of a picture is
found in any shape."""

AreaShape = tuple[str, NDArray[np.float64]]
"""Shape of an area: ``rect``, ``circle`` or ``poly``, and its numbers in CSS pixels of the picture.
"""


def areas(dom: Dom, scene: Scene) -> dict[int, tuple[tuple[float, float], tuple[float, float, float, float]]]:
    """Return a point and a box (x, y, width, height) of each area that a click can reach.

    Source: https://html.spec.whatwg.org/multipage/image-maps.html#image-map-processing-model
    """
    reached = {}
    for picture, of_map in _maps(dom).items():
        box = dom.box_of[picture]
        if box < 0 or dom.hidden[box]:
            continue
        corner = dom.rects[box, :2] + [pixels(dom.style_of(box, LEFT)), pixels(dom.style_of(box, TOP))]
        size = dom.rects[box, 2:] - corner
        low, high = np.maximum(corner, scene.clips[box, :2]), np.minimum(dom.rects[box, 2:], scene.clips[box, 2:])
        before: list[AreaShape] = []  # where areas overlap, a click reaches the first one
        for area in of_map:
            shape = _shape(dom, area, size)
            before.append(shape)
            rect = _rect(shape) + np.tile(corner, 2)
            start, end = np.maximum(rect[:2], low), np.minimum(rect[2:], high)
            if area in reached or not (start + 1 < end).all():
                continue
            point = _point(scene, picture, corner, before, (start, end))
            if point is not None:
                reached[area] = (point, (float(start[0]), float(start[1]), *(end - start).tolist()))
    return reached


def picture_of(dom: Dom, area: int) -> int:
    """Return the first picture that an area is on, -1 for none."""
    return next((picture for picture, of_map in _maps(dom).items() if area in of_map), -1)


def _maps(dom: Dom) -> dict[int, list[int]]:
    """Return the areas of each picture that has a map, in order."""
    by_name: dict[tuple[int, str], list[int]] = {}
    for node in dom.named("MAP"):
        name = dom.attribute(node, "name") or dom.attribute(node, "id") or ""
        inside = [area for area in dom.named("AREA") if node < area <= dom.end[node]]
        by_name.setdefault((bisect_right(dom.documents, node), name), inside)
    used = ((node, dom.attribute(node, "usemap") or "") for node in dom.with_attribute("usemap"))
    return {node: by_name.get((bisect_right(dom.documents, node), name.lstrip("#")), []) for node, name in used}


def _shape(dom: Dom, area: int, size: NDArray[np.float64]) -> AreaShape:
    kind = (dom.attribute(area, "shape") or "rect").lower()
    parts = (dom.attribute(area, "coords") or "").replace(",", " ").split()
    try:
        numbers = np.array([float(part) for part in parts])
    except ValueError:
        numbers = np.zeros(0)
    if kind.startswith("circ") and len(numbers) >= 3:
        return "circle", numbers[:3]
    if kind.startswith("poly") and len(numbers) >= 6:
        return "poly", numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
    if kind == "default":
        return "rect", np.array([0.0, 0.0, *size])
    return "rect", numbers[:4] if len(numbers) >= 4 else np.zeros(4)


def _rect(shape: AreaShape) -> NDArray[np.float64]:
    kind, numbers = shape
    if kind == "circle":
        x, y, radius = numbers
        return np.array([x - radius, y - radius, x + radius, y + radius])
    corners = numbers.reshape(-1, 2)
    return np.concatenate([corners.min(axis=0), corners.max(axis=0)])


def _holds(shape: AreaShape, point: NDArray[np.float64]) -> bool:
    kind, numbers = shape
    if kind == "circle":
        return bool(np.hypot(*(point - numbers[:2])) < numbers[2])
    if kind == "poly":
        return in_polygon(point, numbers)
    rect = _rect(shape)
    return bool((rect[:2] <= point).all() and (point < rect[2:]).all())


def _point(
    scene: Scene,
    picture: int,
    corner: NDArray[np.float64],
    shapes: list[AreaShape],
    rect: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[float, float] | None:
    """Return a whole pixel in the visible part that reaches the last shape and none before it."""
    shares = sorted(
        product((np.arange(GRID) + 0.5) / GRID, repeat=2), key=lambda share: abs(share[0] - 0.5) + abs(share[1] - 0.5)
    )
    points = np.floor(rect[0] + (rect[1] - rect[0]) * np.array([(0.5, 0.5), *shares]))
    for point, hit in zip(points, scene.hits(points), strict=True):
        inside = [shape for shape in shapes if _holds(shape, point - corner)]
        if hit == picture and inside and inside[0] is shapes[-1]:
            return float(point[0]), float(point[1])
    return None
