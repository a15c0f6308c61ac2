"""Oracle of generated tasks: carries out a solution plan on the observed page.

It knows the moves from the task's id, while MiniWoB++'s oracles derive theirs from the instruction.
Everything else is as for a policy. Elements are found by kind and label among those that the page's
text shows. The target is scrolled into view first, and a page is read to its end before an answer
is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from envs.bundled.generate.generate import TEMPLATES
from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Plan, Push, Say, Tick
from envs.bundled.oracles.parts import Oracle
from envs.observation.roles import INPUT_KINDS
from envs.types import (
    Action,
    Answer,
    Check,
    Click,
    Element,
    Invalid,
    Observation,
    Scroll,
    Select,
    Terminate,
    Type,
    WebTask,
)
from envs.types.actions import MAX_AMOUNT

TAGS = {
    Follow: ("link",),
    Push: ("button",),
    Fill: ("input", "textarea", *INPUT_KINDS.values()),
    Choose: ("select",),
    Tick: ("checkbox", "radio"),
}
"""Element tags that each move can use."""

MAX_SCROLLS = 4
"""Scrolls in a row. Pages of the bundled sites are two screens long at most; more are useless."""

EDGE = 2.0
"""CSS pixels at a page's end that may be out of view. Page heights may be fractions."""

READ_AMOUNT = 0.75
"""Scroll amount in heights of the viewport. Below 1, so that a line cut by the edge is seen."""

MIN_AMOUNT = 0.05
"""Smallest scroll in heights of the viewport. Elements may be out of view by a pixel."""


def is_generated(task: WebTask) -> bool:
    """Return True if a task is of a template's kind and site.

    A part of such a task (`envs.tasks.decompose`) counts too, although it has no plan.
    """
    template = TEMPLATES.get(task.kind)
    return template is not None and template.site == task.site


def follow(plan: Plan) -> Oracle:
    """Return an oracle that makes these moves, and then terminates.

    It does not terminate if the last move was an answer. It scrolls down to a target that is not in
    view, and answers `Invalid` when a move cannot be made, or when the move before had no effect,
    since plans have no way back.
    """

    def oracle(seen: Observation, history: Sequence[Action]) -> Action:
        if seen.error:
            return Invalid(reason=f"the action before had no effect: {seen.error}")
        made = sum(not isinstance(action, Scroll) for action in history)
        if made >= len(plan):
            return Terminate()
        action = _act(plan[made], seen)
        scroll = _scroll_to(action, seen)
        if scroll is None:
            return action
        scrolled = sum(1 for _ in takewhile(lambda action: isinstance(action, Scroll), reversed(history)))
        if scrolled == MAX_SCROLLS:
            if isinstance(action, Invalid):
                return action
            return Invalid(reason=f"{seen.url} was scrolled {scrolled} times, and {plan[made]} is still not in view")
        return scroll

    return oracle


def _act(move: Move, seen: Observation) -> Action:
    action = action_of(move, seen)
    element = _target(action, seen)
    if element is not None and seen.text and f"[{element.index}] " not in seen.text:
        return Invalid(reason=f"the text of {seen.url} leaves out element {element.index}, {element.text!r}")
    return action


def _target(action: Action, seen: Observation) -> Element | None:
    number = getattr(action, "element", None)
    return None if number is None else seen.elements[number - 1]


def _scroll_to(action: Action, seen: Observation) -> Scroll | None:
    """Return the scroll that brings the action's target into view, or ``None``."""
    height = seen.viewport[1]
    if isinstance(action, Answer | Invalid):
        below = seen.page_size[1] - seen.scroll[1] - height
        return Scroll(amount=READ_AMOUNT) if below > EDGE else None
    element = _target(action, seen)
    if element is None or element.in_viewport:
        return None
    away = (element.box[1] + element.box[3] / 2) / height - 0.5
    amount = round(min(max(abs(away), MIN_AMOUNT), MAX_AMOUNT), 2)
    return Scroll(direction="down" if away > 0 else "up", amount=amount)


def action_of(move: Move, observation: Observation) -> Action:
    """Return the action of a move, or an `Invalid` that names what is missing."""
    if isinstance(move, Say):
        return Answer(text=move.text)
    tags = TAGS[type(move)]
    target = next(
        (element for element in observation.elements if element.tag in tags and element.text == move.label), None
    )
    if target is None:
        return Invalid(reason=f"{observation.url} lists no {' or '.join(tags)} {move.label!r}")
    match move:
        case Fill(_, text):
            return Type(element=target.index, text=text)
        case Choose(_, option):
            return Select(element=target.index, text=option)
        case Tick(_, on):
            return Check(element=target.index, on=on)
    return Click(element=target.index)
