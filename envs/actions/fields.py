"""Actions on form fields: type, clear, select, check, upload.

Each asks the page what the field is now, acts with trusted events, and gives
an `Effect` or an `ActionError`.
"""

from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path

from envs.actions import pointer
from envs.actions.arrive import move_to_target
from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import ElementFacts, Nodes
from envs.actions.errors import ActionError, closest_names, shorten
from envs.actions.keyboard import KEYS, Chord
from envs.actions.locate import Box, Spot, find_control, in_view, locate
from envs.actions.validate import handle_name, no_such_option, option_index
from envs.cdp.messages import NO_BOX, NODE_GONE, UNFOCUSABLE, refused_with
from envs.types import BrowserError, Check, Clear, ErrorCode, Select, Type, Upload
from envs.types.actions import MaybeTarget

CHOOSER_SECONDS = 2.0
"""Real seconds for a click to open a file chooser (it takes 0.01 s). Only an element that opens none costs them."""

UNFOCUSABLE_HINT = "it may be hidden: use what the page shows in its place"

_ENTER = Chord((), KEYS["Enter"])
_DATE = r"(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)"
_TIME = r"(?P<h>\d\d):(?P<min>\d\d)(?::(?P<s>\d\d))?"
_TYPED = {
    "date": re.compile(_DATE),
    "time": re.compile(_TIME),
    "datetime-local": re.compile(f"{_DATE}[T ]{_TIME}"),
    "month": re.compile(r"(?P<y>\d{4})-(?P<m>\d\d)"),
    "week": re.compile(r"(?P<y>\d{4})-W(?P<w>\d\d)"),
}
"""Values of date and time fields as HTML writes them, by the field's type."""

STEP_SLACK = 1e-6
"""Of a step that a range's value may be off: 0.3 is three steps of 0.1, but not to the last bit."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def keys_for(kind: str, text: str, *, seconds: bool = False) -> str | None:
    """Keys to type for an HTML date or time value; ``None`` for other text.

    Fields are those of the locale en-US.

    Args:
        seconds: The field has a part for them.

    ``2024-05-17`` is typed ``05172024``, ``21:05`` is ``0905PM``; Chromium moves on to the next part by itself where a part is full.
    """
    match = _TYPED[kind].fullmatch(text.strip())
    if match is None:
        return None
    part = match.groupdict()
    if kind == "month":
        return f"{_MONTHS[(int(part['m']) - 1) % 12]}\t{part['y']}"
    if kind == "week":
        return f"{part['w']}{part['y']}"
    day = f"{part['m']}{part['d']}{part['y']}" if "y" in part else ""
    if "h" not in part:
        return day
    hour = int(part["h"]) % 24
    rest = part["s"] or "00" if seconds else ""
    clock = f"{(hour - 1) % 12 + 1:02d}{part['min']}{rest}{'AM' if hour < 12 else 'PM'}"
    return f"{day}\t{clock}" if day else clock


async def type_text(context: ActionContext, nodes: Nodes, action: Type) -> Effect | ActionError:
    """Click a field and write into it, or write into what has the focus."""
    spot: Spot | None = None
    if action.is_named:
        found = await _field(context, nodes, action)
        if isinstance(found, ActionError):
            return found
        spot, own, facts = found
        if facts.tag == "input" and facts.kind in ("color", "range"):
            return await _set_value(context, spot, nodes, own, facts, action)
        refusal = _not_editable(spot, facts)
        if refusal:
            return refusal
        if facts.kind in _TYPED and facts.tag == "input":
            return await _type_date(context, spot, own, facts, action)
        arrived = await _click(context, nodes, action, spot)
        if isinstance(arrived, ActionError):
            return arrived
        spot = arrived
    elif not await _takes_text(nodes):
        return ActionError(
            ErrorCode.NOT_EDITABLE, "nothing that takes text has the focus", "name the field to type into"
        )
    await (pointer.replace_text if action.clear else pointer.append_text)(context, action.text)
    if action.enter:
        await pointer.press(context, _ENTER)
    return Effect(spot.point if spot else None)


async def clear(context: ActionContext, nodes: Nodes, action: Clear) -> Effect | ActionError:
    """Empty a field."""
    return await type_text(context, nodes, Type(element=action.element, mark=action.mark, at=action.at, text=""))


async def select(context: ActionContext, nodes: Nodes, action: Select) -> Effect | ActionError:
    """Choose an option.

    The list is never opened: that would be a window of its own, which gets none of the page's
    input.

    The keyboard goes from option to option and the page is told of each. So the list is first set, without any event, to the option
    beside the wanted one; one arrow key then gives exactly one trusted ``input`` and ``change``, however long the list is.
    """
    found = await _field(context, nodes, action)
    if isinstance(found, ActionError):
        return found
    spot, own, facts = found
    called = _called(spot, facts)
    if facts.disabled:
        return _disabled(called)
    if facts.tag == "select" and facts.multiple:
        return await _select_several(context, nodes, action, spot, own, facts)
    if not facts.menu:
        hint = "click the option" if facts.options else "select needs a drop-down list"
        return ActionError(ErrorCode.NOT_A_LIST, f"{called} is a {facts.tag}", hint)
    if action.also:
        return ActionError(ErrorCode.BAD_ACTION, f"{called} takes one option, not {len(action.also) + 1}")
    labels = [option.text for option in facts.options]
    wanted = option_index(labels, action.text)
    if wanted is None:
        return no_such_option(called, labels, action.text)
    if not facts.options[wanted].open:
        return ActionError(ErrorCode.DISABLED, f"option {shorten(action.text)!r} of {called} is disabled")
    await close_list(context, nodes, own)
    refusal = await focus(context, own, called)
    if refusal:
        return refusal
    if wanted != facts.chosen and not await _choose(context, nodes, own, facts, wanted):
        return ActionError(ErrorCode.NOT_EDITABLE, f"{called} does not take the choice", "click what else chooses it")
    return Effect(spot.point)


async def _select_several(
    context: ActionContext, nodes: Nodes, action: Select, spot: Spot, own: str, facts: ElementFacts
) -> Effect | ActionError:
    """Choose options of a list that takes several.

    A person holds Control and clicks on each, and the page is told of each. So all but one are set without any event, and that one is clicked
    with Control: exactly one trusted ``input`` and ``change``, as with a list that takes one.
    """
    called, labels = _called(spot, facts), [option.text for option in facts.options]
    chosen = {place for place, option in enumerate(facts.options) if option.on}
    wanted = set(chosen) if action.add else set()
    for text in (action.text, *action.also):
        place = option_index(labels, text)
        if place is None:
            return no_such_option(called, labels, text)
        if not facts.options[place].open:
            return ActionError(ErrorCode.DISABLED, f"option {shorten(text)!r} of {called} is disabled")
        wanted.add(place)
    differing = [place for place in sorted(wanted ^ chosen) if facts.options[place].open]
    if not differing:
        return Effect(spot.point)
    last = differing[-1]
    boxes = await _option_boxes(context, nodes, own, last)
    if boxes is None:
        # One row high it is drawn as a drop-down list, whose options are in a window of their own: the events are a script's.
        await nodes.ask(own, "choose", sorted(wanted))
        return Effect(spot.point)
    if not boxes:
        return ActionError(ErrorCode.OFF_SCREEN, f"option {shorten(labels[last])!r} of {called} is not on the screen")
    left, top, right, bottom = boxes[0]
    await nodes.ask(own, "choices", sorted(wanted ^ {last}))
    point = ((left + right) / 2, (top + bottom) / 2)
    clicked = await _click(context, nodes, action, Spot(point, None, None), pointer.Grip(held=(KEYS["Control"],)))
    if isinstance(clicked, ActionError):
        return clicked
    now = {place for place, each in enumerate((await nodes.facts(own)).options) if each.on}
    if now == wanted ^ {last}:
        await nodes.ask(own, "choices", sorted(chosen))
        return ActionError(ErrorCode.NOT_EDITABLE, f"{called} does not take the choice", "click what else chooses it")
    return Effect(point)


async def _option_boxes(context: ActionContext, nodes: Nodes, own: str, place: int) -> list[Box] | None:
    """Where an option is, scrolled into view.

    Returns ``None`` if its list does not draw its options.
    """
    option = await nodes.follow(own, "option", place)
    try:
        await nodes.scroll_to(objectId=option or "")
        boxes = await nodes.boxes(objectId=option or "")
    except BrowserError as error:
        if refused_with(error, NO_BOX):
            return None
        raise
    return [box for box in (in_view(each, context.viewport) for each in boxes) if box]


async def close_list(context: ActionContext, nodes: Nodes, own: str) -> None:
    """Close a drop-down list that a click opened.

    It is a window of its own: screenshots do not show it, and it takes the keys.
    """
    if await nodes.ask(own, "open"):
        await pointer.press(context, Chord((), KEYS["Escape"]))


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


async def check(context: ActionContext, nodes: Nodes, action: Check) -> Effect | ActionError:
    """Click a checkbox, radio button or switch if it is not as wanted."""
    found = await _field(context, nodes, action)
    if isinstance(found, ActionError):
        return found
    spot, _, facts = found
    called = _called(spot, facts)
    if facts.checked is None:
        return ActionError(ErrorCode.NOT_CHECKABLE, f"{called} is a {facts.tag} that is neither on nor off", "click it")
    if facts.disabled:
        return _disabled(called)
    if facts.checked == action.on:
        return Effect()
    if facts.kind == "radio" and not action.on:
        return ActionError(ErrorCode.NOT_CHECKABLE, f"{called} is a radio button", "turn another one of its group on")
    arrived = await _click(context, nodes, action, spot)
    return arrived if isinstance(arrived, ActionError) else Effect(arrived.point)


async def upload(context: ActionContext, nodes: Nodes, action: Upload) -> Effect | ActionError:
    """Put files of the task's folder into a file field or file chooser.

    A file chooser is what a click on the target opens.
    """
    paths = resolve_files(context.files, action.files)
    if isinstance(paths, ActionError):
        return paths
    found = await _field(context, nodes, action)
    if isinstance(found, ActionError):
        return found
    spot, own, facts = found
    called = _called(spot, facts)
    if facts.disabled:
        return _disabled(called)
    if facts.file:
        if len(paths) > 1 and not facts.multiple:
            return ActionError(ErrorCode.BAD_ACTION, f"{called} takes one file, not {len(paths)}")
        await context.cdp.send("DOM.setFileInputFiles", {"files": paths, "objectId": own})
        return Effect(spot.point)
    async with context.intercept.file_choosers() as chosen:
        arrived = await _click(context, nodes, action, spot)
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
    """Absolute paths of files of the task's folder.

    Links and ``..`` do not lead out of it.
    """
    root = folder.resolve() if folder else None
    found = [path for path in root.rglob("*") if path.is_file() and path.resolve().is_relative_to(root)] if root else []
    there = {str(path.relative_to(root)): path for path in sorted(found)} if root else {}
    paths = []
    for name in names:
        # Looked up among the files that are there: nothing outside of the folder can even be asked for.
        if name not in there:
            listed = ", ".join(list(there)[:8]) or "none"
            like = tuple(f'"{each}"' for each in closest_names(name, there))
            hint = f"its files are {listed}"
            return ActionError(ErrorCode.NO_SUCH_FILE, f"the task has no file {shorten(name)!r}", hint, like)
        paths.append(str(there[name].resolve()))
    return paths


async def _field(
    context: ActionContext, nodes: Nodes, action: Type | Select | Check | Upload
) -> tuple[Spot, str, ElementFacts] | ActionError:
    """Where the target is, and the field that it stands for with its facts."""
    spot = await locate(context, nodes, action)
    if isinstance(spot, ActionError):
        return spot
    found = await find_control(nodes, spot)
    return found if isinstance(found, ActionError) else (spot, *found)


async def _click(
    context: ActionContext, nodes: Nodes, target: MaybeTarget, spot: Spot, grip: pointer.Grip = pointer.LEFT
) -> Spot | ActionError:
    """Bring the mouse to a spot of the target and click there."""
    arrived = await move_to_target(context, nodes, target, spot)
    if not isinstance(arrived, ActionError):
        await pointer.click(context, *arrived.point, grip=grip)
    return arrived


async def _choose(context: ActionContext, nodes: Nodes, own: str, facts: ElementFacts, wanted: int) -> bool:
    """Choose an open option that is not the chosen one.

    Returns False if the page refused the key.
    """
    open_ones = [place for place, option in enumerate(facts.options) if option.open]
    before = [place for place in open_ones if place < wanted]
    after = [place for place in open_ones if place > wanted]
    beside, key = (before[-1], "ArrowDown") if before else (after[0], "ArrowUp") if after else (None, "Home")
    if beside is not None:
        await nodes.ask(own, "preset", beside)
    await pointer.press(context, Chord((), KEYS[key]))
    try:
        chosen = (await nodes.facts(own)).chosen
    except BrowserError as error:
        if refused_with(error, NODE_GONE):
            return True  # the choice led to another page
        raise
    if chosen == beside and beside is not None:
        await nodes.ask(own, "preset", facts.chosen)
        return False
    return True


async def _type_date(
    context: ActionContext, spot: Spot, own: str, facts: ElementFacts, action: Type
) -> Effect | ActionError:
    """Date and time fields consist of parts.

    They are typed part by part from the first, in the order of the locale.
    """
    typed = keys_for(facts.kind, action.text, seconds=facts.seconds) if action.text else ""
    if typed is None:
        example = {"date": "2024-05-17", "time": "21:05", "month": "2024-05", "week": "2024-W20"}.get(
            facts.kind, "2024-05-17T21:05"
        )
        return _no_value(facts, action.text, example)
    refusal = await focus(context, own, _called(spot, facts))
    if refusal:
        return refusal
    if typed:
        await pointer.type_keys(context, typed)
    else:
        await pointer.replace_text(context, "")
    if action.enter:
        await pointer.press(context, _ENTER)
    return Effect(spot.point)


_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


async def _set_value(
    context: ActionContext, spot: Spot, nodes: Nodes, own: str, facts: ElementFacts, action: Type
) -> Effect | ActionError:
    """Set a colour or range field, which takes no typed text."""
    called, text = _called(spot, facts), action.text.strip()
    if facts.disabled:
        return _disabled(called)
    if facts.kind == "color":
        if _COLOUR.fullmatch(text) is None:
            return _no_value(facts, text, "#ff8800")
        text = text.lower()
    else:
        low, high, step = await nodes.ask(own, "range")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        steps = (number - low) / step if step else 0.0
        if not low <= number <= high or abs(steps - round(steps)) > STEP_SLACK:
            by = f" in steps of {step:g}" if step else ""
            return _no_value(facts, text, f"a number from {low:g} to {high:g}{by}")
        text = f"{number:.12g}"
    refusal = await focus(context, own, called)
    if refusal:
        return refusal
    before = await nodes.ask(own, "held")
    if facts.kind == "range" and step and text != before:
        # From the value beside it one arrow key gives exactly one trusted `input` and `change`.
        up = number - step >= low
        await nodes.ask(own, "put", f"{number - step if up else number + step:.12g}")
        await pointer.press(context, Chord((), KEYS["ArrowUp" if up else "ArrowDown"]))
    elif text != before:
        await nodes.ask(own, "value", text)
    held = await nodes.ask(own, "held")
    if (float(held) != float(text)) if facts.kind == "range" else (held != text):
        await nodes.ask(own, "put", before)
        return ActionError(ErrorCode.NOT_EDITABLE, f"{called} does not take the value", "use the page's own controls")
    if action.enter:
        await pointer.press(context, _ENTER)
    return Effect(spot.point)


def _no_value(facts: ElementFacts, text: str, example: str) -> ActionError:
    return ActionError(ErrorCode.BAD_ACTION, f"{shorten(text)!r} is no {facts.kind} value", f"write it like {example}")


async def _takes_text(nodes: Nodes) -> bool:
    own = await nodes.focused()
    if own is None:
        return False
    facts = await nodes.facts(own)
    writable = facts.editable and not facts.readonly and not facts.disabled
    return writable or facts.tag in ("iframe", "frame") or await nodes.hides(own)


def _not_editable(spot: Spot, facts: ElementFacts) -> ActionError | None:
    called = _called(spot, facts)
    if facts.disabled:
        return _disabled(called)
    if not facts.editable:
        return ActionError(ErrorCode.NOT_EDITABLE, f"{called} is a {facts.tag}", "click it")
    return ActionError(ErrorCode.NOT_EDITABLE, f"{called} is read-only") if facts.readonly else None


def _disabled(called: str) -> ActionError:
    return ActionError(ErrorCode.DISABLED, f"{called} is disabled", "something else must be done before it can be used")


def _called(spot: Spot, facts: ElementFacts) -> str:
    return handle_name(spot.handle) if spot.handle else f"the {facts.tag} at that point"
