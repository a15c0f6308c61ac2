"""Shared parts of oracles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from envs.types import Action, Click, Element, Invalid, Observation, Target, Type

Oracle = Callable[[Observation, Sequence[Action]], Action]
"""Function (observation, earlier actions) -> next action."""

FIELDS = ("input", "password", "textarea")


def stuck(observation: Observation) -> Invalid:
    """Return the answer of an oracle that finds no action."""
    return Invalid(reason=f"the oracle knows no action for {observation.instruction!r}")


def quoted(observation: Observation) -> list[str]:
    """Return the texts in double quotes of the instruction, in order."""
    return re.findall(r'"([^"]*)"', observation.instruction)


def wanted(observation: Observation, pattern: str) -> str:
    """Return the first group of ``pattern`` in the instruction, or ``""``."""
    match = re.search(pattern, observation.instruction)
    return match.group(1) if match else ""


def ordinal(text: str) -> int:
    """Return the number of an ordinal: ``"2nd"`` -> 2; 0 if there is none."""
    match = re.search(r"(\d+)(?:st|nd|rd|th)", text)
    return int(match.group(1)) if match else 0


def tagged(observation: Observation, *tags: str) -> list[Element]:
    """Return the elements of these tags, in reading order."""
    return [element for element in observation.elements if element.tag in tags]


def labelled(observation: Observation, label: str, *tags: str) -> Element | None:
    """Return the first element with this label. Labels are compared as far as they are shown."""
    for element in tagged(observation, *tags) if tags else observation.elements:
        if element.tag != "text" and _same(element.text, label):
            return element
    return None


def _same(shown: str, label: str) -> bool:
    label = " ".join(label.split())
    return shown == label or (len(shown) >= 20 and label.startswith(shown))


def click(observation: Observation, element: Element | None) -> Action:
    """Click an element, or be stuck without one."""
    return stuck(observation) if element is None else Click(element=element.index)


def click_label(observation: Observation, label: str, *tags: str) -> Action:
    """Click the element with this label."""
    return click(observation, labelled(observation, label, *tags))


def submit(observation: Observation) -> Action:
    """Click the last button."""
    buttons = tagged(observation, "button")
    return click(observation, buttons[-1] if buttons else None)


def fill(observation: Observation, wishes: Iterable[tuple[Element | None, str]], then: Action) -> Action:
    """Type the first value that its field lacks, or return ``then``.

    Passwords are compared by length, which is all that is shown.
    """
    for field, text in wishes:
        if field is None:
            return stuck(observation)
        hidden = set(field.value) == {"*"}
        if field.value != text[:24].strip() and not (hidden and len(field.value) == len(text)):
            return Type(element=field.index, text=text)
    return then


def middle(element: Element) -> tuple[float, float]:
    """Return the middle of an element's box in CSS pixels."""
    x, y, width, height = element.box
    return x + width / 2, y + height / 2


def spot(observation: Observation, x: float, y: float) -> tuple[float, float]:
    """Convert CSS pixels to thousandths of the viewport, the unit of actions.

    Points outside the viewport are moved to its edge.
    """
    across, down = (
        min(1000.0, max(0.0, (int(value) + 0.5) * 1000 / side))
        for value, side in zip((x, y), observation.viewport, strict=True)
    )
    return across, down


def place(observation: Observation, x: float, y: float) -> Target:
    """Return the target at this CSS pixel."""
    return Target(at=spot(observation, x, y))
