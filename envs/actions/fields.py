"""Form fields: finds the one that a target stands for, gives it the focus, checks boxes.

What is put into them is in `envs.actions.text`, `values`, `choices` and `files`. Each asks the page what the field is now, acts with trusted
events, and gives an `Effect` or an `ActionError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envs.actions import pointer
from envs.actions.arrive import move_to_target
from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import ElementFacts, Nodes
from envs.actions.errors import ActionError
from envs.actions.keyboard import KEYS, Chord
from envs.actions.locate import Spot, find_control, locate
from envs.actions.validate import handle_name
from envs.cdp.messages import NODE_GONE, UNFOCUSABLE, refused_with
from envs.types import BrowserError, Check, ErrorCode
from envs.types.actions import MaybeTarget

UNFOCUSABLE_HINT = "it may be hidden: use what the page shows in its place"

MAX_ESCAPES = 3
"""Presses of Escape that close a picker: a calendar takes two."""

ENTER, ESCAPE, BACKSPACE = (Chord((), KEYS[key]) for key in ("Enter", "Escape", "Backspace"))


@dataclass(frozen=True)
class Field:
    """A field of the page, as it was when it was looked up."""

    own: str
    """Its object in an isolated world."""
    facts: ElementFacts
    spot: Spot | None = None
    """Where the mouse reaches it; ``None`` for the one that has the focus."""

    @property
    def called(self) -> str:
        """How messages call it."""
        if self.spot is None:
            return f"the {self.facts.tag} that has the focus"
        return handle_name(self.spot.handle) if self.spot.handle else f"the {self.facts.tag} at that point"

    @property
    def effect(self) -> Effect:
        """Of an action on it that did not move the mouse elsewhere."""
        return Effect(self.spot.point if self.spot else None)

    def disabled_error(self) -> ActionError:
        """The error of one that is disabled."""
        hint = "something else must be done before it can be used"
        return ActionError(ErrorCode.DISABLED, f"{self.called} is disabled", hint)


async def find_field(context: ActionContext, nodes: Nodes, target: MaybeTarget) -> Field | ActionError:
    """The field that a target stands for."""
    spot = await locate(context, nodes, target)
    if isinstance(spot, ActionError):
        return spot
    found = await find_control(nodes, spot)
    return found if isinstance(found, ActionError) else Field(*found, spot)


async def click_field(
    context: ActionContext, nodes: Nodes, target: MaybeTarget, spot: Spot, grip: pointer.Grip = pointer.LEFT
) -> Spot | ActionError:
    """Bring the mouse to a spot of the target and click there."""
    arrived = await move_to_target(context, nodes, target, spot)
    if not isinstance(arrived, ActionError):
        await pointer.click(context, *arrived.point, grip=grip)
    return arrived


async def focus(context: ActionContext, own: str, called: str, hint: str = UNFOCUSABLE_HINT) -> ActionError | None:
    """Give a field the keyboard focus.

    The error of one that does not take it: it is hidden, inert or disabled.
    """
    try:
        await context.cdp.send("DOM.focus", {"objectId": own})
    except BrowserError as error:
        if not refused_with(error, UNFOCUSABLE):
            raise
        return ActionError(ErrorCode.NOT_FOCUSABLE, f"{called} does not take the keyboard focus", hint)
    return None


async def close_picker(context: ActionContext, nodes: Nodes, own: str) -> None:
    """Close the drop-down list, calendar or colour chooser of a field.

    It is a window of its own, which takes the keys. The first Escape may only undo what was chosen in it.
    """
    for _ in range(MAX_ESCAPES):
        if not await nodes.ask(own, "open"):
            return
        await pointer.press(context, ESCAPE)


async def read_after(nodes: Nodes, own: str, what: str, other: Any = None) -> Any:
    """The answer of ``probe.js`` about a field that was changed; ``None`` if the page has let go of it since."""
    try:
        return await nodes.ask(own, what, other)
    except BrowserError as error:
        if refused_with(error, NODE_GONE):
            return None
        raise


async def check(context: ActionContext, nodes: Nodes, action: Check) -> Effect | ActionError:
    """Click a checkbox, radio button or switch if it is not as wanted."""
    field = await find_field(context, nodes, action)
    if isinstance(field, ActionError):
        return field
    called, facts = field.called, field.facts
    if facts.checked is None:
        return ActionError(ErrorCode.NOT_CHECKABLE, f"{called} is a {facts.tag} that is neither on nor off", "click it")
    if facts.disabled:
        return field.disabled_error()
    if facts.checked == action.on:
        return Effect()
    if facts.kind == "radio" and not action.on:
        return ActionError(ErrorCode.NOT_CHECKABLE, f"{called} is a radio button", "turn another one of its group on")
    assert field.spot is not None
    arrived = await click_field(context, nodes, action, field.spot)
    return arrived if isinstance(arrived, ActionError) else Effect(arrived.point)
