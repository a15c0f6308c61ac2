"""Form fields: finds the field of a target, gives it the focus, checks boxes, uploads files.

Writing and choosing are in `envs.actions.text`, `values` and `choices`. Each asks the page for the
field's state, acts with trusted events, and returns an `Effect` or an `ActionError`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import ElementFacts, Nodes
from envs.actions.errors import ActionError, closest_names, disabled_error, shorten
from envs.actions.keyboard import KEYS, Chord, parse_chord, pastes, press
from envs.actions.mouse import click_spot
from envs.actions.target import Spot, find_control, handle_name, locate
from envs.cdp.messages import NODE_GONE, UNFOCUSABLE, refused_with, send_unless
from envs.types import BrowserError, Check, ErrorCode, Press, Upload
from envs.types.actions import MaybeTarget

CHOOSER_SECONDS = 2.0
"""Real seconds for a click to open a file chooser (it takes 0.01 s). Only an element that opens
none costs them."""

UNFOCUSABLE_HINT = "it may be hidden: use what the page shows in its place"

MAX_ESCAPES = 3
"""Maximum number of presses of Escape that close a picker: a calendar takes two."""

ENTER, ESCAPE, BACKSPACE = (Chord((), KEYS[key]) for key in ("Enter", "Escape", "Backspace"))


@dataclass(frozen=True)
class Field:
    """Field of the page, as it was when it was looked up."""

    own: str
    """Id of its object in an isolated world."""
    facts: ElementFacts
    spot: Spot | None = None
    """Place where the mouse reaches it; ``None`` for the field that has the focus."""

    @property
    def called(self) -> str:
        """Name of the field in messages."""
        if self.spot is None:
            return f"the {self.facts.tag} that has the focus"
        return handle_name(self.spot.handle) if self.spot.handle else f"the {self.facts.tag} at that point"

    @property
    def effect(self) -> Effect:
        """Effect of an action on the field that did not move the mouse elsewhere."""
        return Effect(self.spot.point if self.spot else None)


async def find_field(context: ActionContext, nodes: Nodes, target: MaybeTarget) -> Field | ActionError:
    """Return the field that a target stands for."""
    spot = await locate(context, nodes, target)
    if isinstance(spot, ActionError):
        return spot
    control = await find_control(nodes, spot)
    return control if isinstance(control, ActionError) else Field(*control, spot)


async def focus(context: ActionContext, own: str, called: str, hint: str = UNFOCUSABLE_HINT) -> ActionError | None:
    """Give a field the keyboard focus.

    The answer is the error of a field that does not take it: it is hidden, inert or disabled.
    """
    if await send_unless(UNFOCUSABLE, context.cdp, "DOM.focus", {"objectId": own}) is None:
        return ActionError(ErrorCode.NOT_FOCUSABLE, f"{called} does not take the keyboard focus", hint)
    return None


async def close_picker(context: ActionContext, nodes: Nodes, own: str) -> None:
    """Close the drop-down list, calendar or colour chooser of a field.

    It is a window of its own, which takes the keys. The first Escape may only undo the choice in
    it.
    """
    for _ in range(MAX_ESCAPES):
        if not await nodes.ask(own, "open"):
            return
        await press(context, ESCAPE)


async def read_after(nodes: Nodes, own: str, what: str, other: Any = None) -> Any:
    """Return the answer of ``probe.js`` about a changed field; ``None`` if the page removed it."""
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
        return disabled_error(called)
    if facts.checked == action.on:
        return Effect()
    if facts.kind == "radio" and not action.on:
        return ActionError(ErrorCode.NOT_CHECKABLE, f"{called} is a radio button", "turn another one of its group on")
    assert field.spot is not None
    arrived = await click_spot(context, nodes, action, field.spot)
    return arrived if isinstance(arrived, ActionError) else Effect(arrived.point)


async def press_key(context: ActionContext, nodes: Nodes, action: Press) -> Effect | ActionError:
    """Press a key or chord, in the target if one is named."""
    chord = parse_chord(action.key)
    if chord is None:
        suggestions = closest_names(action.key.rpartition("+")[2], tuple(name for name in KEYS if len(name) > 1))
        return ActionError(
            ErrorCode.BAD_ACTION,
            f"{shorten(action.key)!r} is no key",
            "write it like Enter, a or Control+a",
            suggestions,
        )
    if pastes(chord) and not context.clipboard:
        return ActionError(ErrorCode.BAD_ACTION, "the clipboard is not open to this task", "type the text")
    effect = Effect()
    if action.is_named:
        field = await find_field(context, nodes, action)
        if isinstance(field, ActionError):
            return field
        refusal = await focus(context, field.own, field.called, "press without a target")
        if refusal:
            return refusal
        effect = field.effect
    await press(context, chord)
    return effect


async def upload(context: ActionContext, nodes: Nodes, action: Upload) -> Effect | ActionError:
    """Put files of the task's folder into a file field or file chooser.

    A click on the target opens the file chooser.
    """
    paths = resolve_files(context.files, action.files)
    if isinstance(paths, ActionError):
        return paths
    field = await find_field(context, nodes, action)
    if isinstance(field, ActionError):
        return field
    own, facts, called = field.own, field.facts, field.called
    if facts.disabled:
        return disabled_error(called)
    if facts.file:
        if len(paths) > 1 and not facts.multiple:
            return ActionError(ErrorCode.BAD_ACTION, f"{called} takes one file, not {len(paths)}")
        await context.cdp.send("DOM.setFileInputFiles", {"files": paths, "objectId": own})
        return field.effect
    assert field.spot is not None
    async with context.intercept.file_choosers() as chosen:
        arrived = await click_spot(context, nodes, action, field.spot)
        if isinstance(arrived, ActionError):
            return arrived
        try:
            async with asyncio.timeout(CHOOSER_SECONDS):
                opened = await chosen
        except TimeoutError:
            return ActionError(ErrorCode.NOT_A_FILE_FIELD, f"{called} opens no file chooser", "name the file field")
    if len(paths) > 1 and opened["mode"] == "selectSingle":
        return ActionError(ErrorCode.BAD_ACTION, f"{called} takes one file, not {len(paths)}")
    await context.cdp.send("DOM.setFileInputFiles", {"files": paths, "backendNodeId": opened["backendNodeId"]})
    return Effect(arrived.point)


def resolve_files(folder: Path | None, names: tuple[str, ...]) -> list[str] | ActionError:
    """Return absolute paths of files of the task's folder.

    Links and ``..`` do not lead out of it.
    """
    root = folder.resolve() if folder else None
    files = [path for path in root.rglob("*") if path.is_file() and path.resolve().is_relative_to(root)] if root else []
    there = {str(path.relative_to(root)): path for path in sorted(files)} if root else {}
    paths = []
    for name in names:
        # Names are looked up among the existing files, so none outside of the folder can be named.
        if name not in there:
            listed = ", ".join(list(there)[:8]) or "none"
            suggestions = tuple(f'"{close}"' for close in closest_names(name, there))
            hint = f"its files are {listed}"
            return ActionError(ErrorCode.NO_SUCH_FILE, f"the task has no file {shorten(name)!r}", hint, suggestions)
        paths.append(str(there[name].resolve()))
    return paths
