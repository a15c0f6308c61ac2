"""Detects passwords in what a policy types, which memory must not keep."""

from __future__ import annotations

from envs.types import Action, Element, Observation, Type
from envs.types.actions import GRID

PASSWORD = "password"
"""Tag of a password field in observations."""


def typed_secret(action: Action, seen: Observation) -> str:
    """Return the text that an action types into a password field, or ``""``.

    If the field is not known (no target, nothing has the focus), the text counts as a secret when
    the page shows a password field.
    """
    if not isinstance(action, Type) or not any(element.tag == PASSWORD for element in seen.elements):
        return ""
    if not action.is_named:
        focused = [element for element in seen.elements if element.focused]
        return action.text if not focused or focused[0].tag == PASSWORD else ""
    hit = any(element.tag == PASSWORD and _targets(action, element, seen.viewport) for element in seen.elements)
    return action.text if hit else ""


def _targets(action: Type, element: Element, viewport: tuple[int, int]) -> bool:
    if action.at is not None:
        x, y, width, height = element.box
        across, down = action.at[0] * viewport[0] / GRID, action.at[1] * viewport[1] / GRID
        return x <= across <= x + width and y <= down <= y + height
    return action.element in (element.index, element.id) or action.mark == element.index
