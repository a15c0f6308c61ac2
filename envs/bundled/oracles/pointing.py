"""Oracles that point, drag or scroll."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.bundled.oracles.parts import (
    Oracle,
    click_label,
    fill,
    labelled,
    middle,
    place,
    quoted,
    spot,
    stuck,
    submit,
    tagged,
    wanted,
)
from envs.types import Action, Click, Drag, Hover, Observation, Scroll, Target

STEPS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
"""Directions on the screen, as (right, down)."""

TOP, MARGIN, LINE = 52.0, 15.0, 11.0
"""Heights in pixels: top bar, gap between paragraph and button, line of text."""


def grid(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the named point of the grid.

    The top left point is (-2, 2). The spacing is measured from the points on the page.
    """
    point = re.search(r"\((-?\d),(-?\d)\)", seen.instruction)
    points = [middle(shape) for shape in tagged(seen, "shape")]
    if not point or not points:
        return stuck(seen)
    left, top = min(x for x, _ in points), min(y for _, y in points)
    step = min(x for x, _ in points if x > left + 1) - left
    return Click(at=spot(seen, left + (int(point[1]) + 2) * step, top + (2 - int(point[2])) * step))


def describe(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the button that names the kind of the shape."""
    shape = next(iter(tagged(seen, "shape")), None)
    if shape is None:
        return stuck(seen)
    sorts = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}
    lettered = "Number" if shape.text.isdigit() else "Letter"
    return click_label(seen, sorts.get(shape.text.split(" ")[-1], lettered), "button")


def box_into_box(seen: Observation, history: Sequence[Action]) -> Action:
    """Drag the small box to the middle of the large one, then submit."""
    small, large = labelled(seen, "s", "item"), labelled(seen, "L", "item")
    if history:
        return submit(seen)
    if small is None or large is None:
        return stuck(seen)
    return Drag(start=Target(element=small.index), end=place(seen, *middle(large)))


def drag_along(seen: Observation, history: Sequence[Action]) -> Action:
    """Drag the shape a little in the named direction, then submit."""
    shape = next(iter(tagged(seen, "shape")), None)
    if history or shape is None:
        return submit(seen)
    right, down = STEPS[wanted(seen, r"Drag the \w+ (\w+)")]
    x, y = middle(shape)
    return Drag(start=Target(element=shape.index), end=place(seen, x + 15 * right, y + 15 * down))


def resize(seen: Observation, history: Sequence[Action]) -> Action:
    """Drag the corner of the text area, then submit."""
    area = next(iter(tagged(seen, "textarea")), None)
    if history or area is None:
        return submit(seen)
    x, y = area.box[0] + area.box[2] - 4, area.box[1] + area.box[3] - 4
    by = 15 if "larger" in seen.instruction else -15
    wide = "width" in seen.instruction
    return Drag(start=place(seen, x, y), end=place(seen, x + by * wide, y + by * (not wide)))


def scroll_to_end(seen: Observation, history: Sequence[Action]) -> Action:
    """Scroll the text area as far as it goes, then submit."""
    area = next(iter(tagged(seen, "textarea")), None)
    if history or area is None:
        return submit(seen)
    return Scroll(element=area.index, direction="down" if "bottom" in seen.instruction else "up", amount=20)


def highlight(seen: Observation, history: Sequence[Action]) -> Action:
    """Drag over the paragraph, then submit.

    Observations leave out long texts, so the place of the paragraph follows from that of the
    button: below it if the button is at the top of the page, otherwise above it.
    """
    button = next(iter(tagged(seen, "button")), None)
    if history or button is None:
        return submit(seen)
    x, y, _, height = button.box
    if y < TOP + LINE:
        start, end = y + height + MARGIN + LINE / 2, seen.viewport[1] - 3.0
    else:
        start, end = TOP + MARGIN + LINE / 2, y - MARGIN - LINE / 2
    return Drag(start=place(seen, x + 1, start), end=place(seen, seen.viewport[0] - 6.0, end))


def menu_path(seen: Observation, history: Sequence[Action]) -> Action:
    """Open the menus of the path by pointing at them, and click its last name."""
    *menus, last = wanted(seen, r"Select (.*)").split(">")
    item = labelled(seen, last, "menuitem")
    if item is not None:
        return Click(element=item.index)
    shown = [item for name in menus if (item := labelled(seen, name, "menuitem")) is not None]
    return Hover(element=shown[-1].index) if shown else stuck(seen)


def sort_numbers(seen: Observation, history: Sequence[Action]) -> Action:
    """Move the lowest number that is out of place, then submit.

    The list is one element; its rows have equal heights.
    """
    rows = next(iter(tagged(seen, "item")), None)
    if rows is None:
        return stuck(seen)
    numbers = [int(number) for number in rows.text.split()]
    wrong = next(
        (place for place, pair in enumerate(zip(numbers, sorted(numbers), strict=True)) if len({*pair}) > 1), -1
    )
    if wrong < 0:
        return submit(seen)
    x, y, width, height = rows.box
    high = height / len(numbers)
    moved = wrong + min(range(len(numbers) - wrong), key=lambda place: numbers[wrong + place])
    start = place(seen, x + width / 2, y + (moved + 0.5) * high)
    return Drag(start=start, end=place(seen, x + width / 2, y + (wrong + 0.1) * high))


def sign(seen: Observation, history: Sequence[Action]) -> Action:
    """Scroll the agreement to its end, fill in the field there, and click the button."""
    if "Click the cancel" in seen.instruction:
        return click_label(seen, "Cancel", "button")
    name, button = quoted(seen)
    field = next(iter(tagged(seen, "input")), None)
    if field is None:
        return Scroll(at=spot(seen, seen.viewport[0] / 2, seen.viewport[1] / 2), amount=20)
    return fill(seen, [(field, name)], click_label(seen, button, "button"))


POINTING: dict[str, Oracle] = {
    "click-menu": menu_path,
    "drag-box": box_into_box,
    "drag-circle": drag_along,
    "drag-single-shape": drag_along,
    "drag-sort-numbers": sort_numbers,
    "grid-coordinate": grid,
    "highlight-text": highlight,
    "identify-shape": describe,
    "resize-textarea": resize,
    "scroll-text-2": scroll_to_end,
    "sign-agreement": sign,
}
"""Oracles of the kinds that need the mouse's position."""
