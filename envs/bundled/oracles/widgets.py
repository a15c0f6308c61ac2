"""Oracles for widgets: dates, spinners, sliders, menus that open."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from datetime import datetime

from envs.bundled.oracles.parts import (
    FIELDS,
    Oracle,
    click,
    labelled,
    middle,
    ordinal,
    quoted,
    spot,
    stuck,
    submit,
    tagged,
    wanted,
)
from envs.types import Action, Click, Element, Observation, Press, Scroll, Type

MAX_KEY_STEPS = 3
"""Steps of a slider that the arrow keys cover."""

MIN_CUT_LENGTH = 23
"""Length from which a shown text may be the beginning of a longer one."""

MIN_RANGE = 12.0
"""Range in thousandths of the viewport (2 px) below which clicks do not halve it."""


def enter_date(seen: Observation, history: Sequence[Action]) -> Action:
    """Type the date in the form of date fields, then submit."""
    day = datetime.strptime(wanted(seen, r"(\d+/\d+/\d+)"), "%m/%d/%Y")
    return _type_once(seen, history, day.strftime("%Y-%m-%d"))


def enter_time(seen: Observation, history: Sequence[Action]) -> Action:
    """Type the time in the 24-hour form, then submit."""
    time = datetime.strptime(wanted(seen, r"(\d+:\d+\s[AP]M)").replace("\u202f", " "), "%I:%M %p")
    return _type_once(seen, history, time.strftime("%H:%M"))


def _type_once(seen: Observation, history: Sequence[Action], text: str) -> Action:
    field = next(iter(tagged(seen, *FIELDS)), None)
    if history or field is None:
        return submit(seen)
    return Type(element=field.index, text=text)


def spinner(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the upper or the lower arrow until the number is shown, then submit."""
    goal, field = int(wanted(seen, r"Select (-?\d+)")), next(iter(tagged(seen, "input")), None)
    arrows = sorted(tagged(seen, "link"), key=lambda link: link.box[1])
    if field is None or len(arrows) != 2:
        return stuck(seen)
    value = int(field.value or 0)
    return submit(seen) if value == goal else Click(element=arrows[0 if value < goal else 1].index)


def slider(seen: Observation, history: Sequence[Action]) -> Action:
    """Move the slider to the number, then submit."""
    goals = re.findall(r"-?\d+", wanted(seen, r"Select (-?\d+)") or wanted(seen, r"\[(.*)\]"))
    tracks = tagged(seen, "item")
    values = [int(text.text) for text in tagged(seen, "text") if re.fullmatch(r"-?\d+", text.text)]
    if len(values) != len(tracks) or len(goals) != len(tracks):
        return stuck(seen)
    for track, value, goal in zip(tracks, values, goals, strict=True):
        if value != int(goal):
            return _slide(seen, history, track, value, int(goal))
    return submit(seen)


def _slide(seen: Observation, history: Sequence[Action], track: Element, value: int, goal: int) -> Action:
    """Click to halve the part of the track, then use the arrow keys.

    The range is not known; each later click shows on which side of the one before the goal is.
    """
    x, y, width, height = track.box
    side = 0 if width > height else 1
    across = spot(seen, *middle(track))[1 - side]
    low, high = spot(seen, x + 1, y + 1)[side], spot(seen, x + width - 1, y + height - 1)[side]
    points = [action.at for action in history if isinstance(action, Click) and action.at is not None]
    made = [point[side] for point in points if point[1 - side] == across]
    for before, after in itertools.pairwise(made):
        low, high = (before, high) if after > before else (low, before)
    further = value < goal if side == 0 else value > goal  # on an upright one more is further up
    if made:
        low, high = (made[-1], high) if further else (low, made[-1])
    if made and (abs(value - goal) <= MAX_KEY_STEPS or high - low < MIN_RANGE or isinstance(history[-1], Press)):
        return Press(key="ArrowRight" if value < goal else "ArrowLeft")
    half = (low + high) / 2
    return Click(at=(half, across) if side == 0 else (across, half))


def slider_and_checkbox(seen: Observation, history: Sequence[Action]) -> Action:
    """Move the slider, tick the nth checkbox, then submit."""
    moved = slider(seen, history)
    boxes = tagged(seen, "checkbox")
    box = boxes[ordinal(seen.instruction) - 1]
    done = isinstance(moved, Click) and moved.element is not None
    return Click(element=box.index) if done and not box.checked else moved


def autocomplete(seen: Observation, history: Sequence[Action]) -> Action:
    """Type the beginning, choose the item with the requested end, then submit."""
    field = next(iter(tagged(seen, "input")), None)
    start, end = [*quoted(seen), ""][:2]
    if field is None:
        return stuck(seen)
    if not history:
        return Type(element=field.index, text=start)
    last = history[-1]
    if isinstance(last, Type):
        items = [item for item in tagged(seen, "item", "menuitem") if item.text.startswith(start)]
        fitting = next((item for item in items if len(item.text) < MIN_CUT_LENGTH and item.text.endswith(end)), None)
        return Press(key="ArrowDown") if fitting is None else Click(element=fitting.index)
    return _walk_suggestions(seen, last, field, start, end) if isinstance(last, Press) else submit(seen)


def _walk_suggestions(seen: Observation, last: Press, field: Element, start: str, end: str) -> Action:
    """Go down the suggestions; the field shows each.

    The lower ones may not be visible. After the last one it shows what was typed. Then the way back
    up takes a name whose end is cut off.
    """
    if last.key == "Enter":
        return submit(seen)
    back = last.key == "ArrowUp" or field.value == start
    fits = field.value.endswith(end) if len(field.value) < MIN_CUT_LENGTH else back
    return Press(key="Enter" if fits and field.value != start else "ArrowUp" if back else "ArrowDown")


def dropdown_and_button(seen: Observation, history: Sequence[Action]) -> Action:
    """Open the list, scroll it if needed, choose the item, then click the button."""
    label = wanted(seen, r"Choose (.*) from the dropdown")
    items = tagged(seen, "item")
    if not history:
        return click(seen, items[0] if items else None)
    wish = next((item for item in items[1:] if item.text == label), None)
    if wish is not None:
        return Click(element=wish.index)
    if len(items) > 1:
        return Scroll(element=items[-1].index, amount=0.2)
    return click(seen, labelled(seen, quoted(seen)[0], "button"))


def date(seen: Observation, history: Sequence[Action]) -> Action:
    """Open the calendar, which shows December, turn back to the month, click the day, submit."""
    day = datetime.strptime(wanted(seen, r"(\d+/\d+/\d+)"), "%m/%d/%Y")
    field = next(iter(tagged(seen, "input")), None)
    if field is None or field.value:
        return submit(seen)
    if not history:
        return Click(element=field.index)
    if len(history) - 1 < 12 - day.month:
        return click(seen, labelled(seen, "Prev", "link"))
    days = {int(link.text): link for link in tagged(seen, "link") if link.text.isdigit()}
    if day.day in days:
        return Click(element=days[day.day].index)
    weekday = max((shown for shown in days if (day.day - shown) % 7 == 0), default=0)
    if not weekday or 8 not in days:
        return stuck(seen)
    x, y = middle(days[weekday])  # not all days are listed; below this one are those a week later
    week = days[8].box[1] - days[1].box[1]
    return Click(at=spot(seen, x, y + week * (day.day - weekday) / 7))


WIDGETS: dict[str, Oracle] = {
    "choose-date": date,
    "choose-date-easy": date,
    "choose-date-medium": date,
    "choose-date-nodelay": date,
    "enter-date": enter_date,
    "enter-time": enter_time,
    "form-sequence": slider_and_checkbox,
    "form-sequence-3": dropdown_and_button,
    "use-autocomplete": autocomplete,
    "use-autocomplete-nodelay": autocomplete,
    "use-slider": slider,
    "use-slider-2": slider,
    "use-spinner": spinner,
}
"""Oracles of kinds with a widget."""
