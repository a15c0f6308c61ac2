"""Oracle of generated tasks: carries out a solution plan on the observed page.

Which moves solve a task it knows from the task's id, unlike MiniWoB++'s oracles, which work it out from the instruction. Everything else is as a
reader would have to do it: elements are found by kind and label among those that the page's text shows, what is acted on is scrolled into view
first, and a page is read to its end before an answer is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from envs.oracles.parts import Oracle
from envs.tasks.generate.generate import TEMPLATES
from envs.tasks.generate.moves import Move, Plan
from envs.tasks.generate.perform import action_of
from envs.types import Action, Answer, Element, Invalid, Observation, Scroll, Terminate, WebTask
from envs.types.actions import MAX_AMOUNT

MAX_SCROLLS = 4
"""In a row. Pages of the bundled sites are two screens long at most; whoever scrolls on does not get anywhere."""

EDGE = 2.0
"""CSS pixels at a page's end that may be out of view: its height is a fraction where texts are."""

READ_ON = 0.75
"""Of the viewport's height: a line at its edge is seen again, whole."""

MIN_AMOUNT = 0.05
"""Of a scroll, in heights of the viewport: what is out of view by a pixel has to come in all the same."""


def is_generated(task: WebTask) -> bool:
    """Whether it is of a template's kind and site.

    Of a part of such a task (`envs.tasks.decompose`) too, which has no plan.
    """
    template = TEMPLATES.get(task.kind)
    return template is not None and template.site == task.site


def follow(plan: Plan) -> Oracle:
    """The oracle that makes these moves, and then says that it is done (unless the last one was an answer).

    It is at a loss when a move cannot be made, or when the one before had no effect: plans hold no way back.
    """

    def oracle(seen: Observation, history: Sequence[Action]) -> Action:
        if seen.error:
            return Invalid(reason=f"the action before had no effect: {seen.error}")
        made = sum(not isinstance(action, Scroll) for action in history)
        if made >= len(plan):
            return Terminate()
        action = _make(plan[made], seen)
        scroll = None if isinstance(action, Invalid) else _look_first(action, seen)
        if scroll is None:
            return action
        scrolled = sum(1 for _ in takewhile(lambda action: isinstance(action, Scroll), reversed(history)))
        if scrolled == MAX_SCROLLS:
            return Invalid(reason=f"{seen.url} was scrolled {scrolled} times, and {plan[made]} is still not in view")
        return scroll

    return oracle


def _make(move: Move, seen: Observation) -> Action:
    action = action_of(move, seen)
    element = _target(action, seen)
    if element is not None and seen.text and f"[{element.index}] " not in seen.text:
        return Invalid(reason=f"the text of {seen.url} leaves out element {element.index}, {element.text!r}")
    return action


def _target(action: Action, seen: Observation) -> Element | None:
    number = getattr(action, "element", None)
    return None if number is None else seen.elements[number - 1]


def _look_first(action: Action, seen: Observation) -> Scroll | None:
    """What brings into view what the action is about; ``None`` if it is."""
    height = seen.viewport[1]
    if isinstance(action, Answer):
        below = seen.page_size[1] - seen.scroll[1] - height
        return Scroll(amount=READ_ON) if below > EDGE else None
    element = _target(action, seen)
    if element is None or element.in_viewport:
        return None
    away = (element.box[1] + element.box[3] / 2) / height - 0.5
    amount = round(min(max(abs(away), MIN_AMOUNT), MAX_AMOUNT), 2)
    return Scroll(direction="down" if away > 0 else "up", amount=amount)
