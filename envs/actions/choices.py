"""Chooses options of lists by the labels that a person sees.

A native list is never opened: it would be a window of its own, which gets none of the page's input.
The keyboard goes from option to option, and the page gets an event for each. So the list is first
set, without any event, to the option beside the wanted one. One arrow key then gives exactly one
trusted ``input`` and ``change``, however long the list is. In a list that the page draws
(``appearance: base-select``) arrow keys only move: it is opened, and Enter takes the option and
closes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import ElementFacts, Nodes, Option
from envs.actions.errors import ActionError, closest_names, disabled_error, shorten
from envs.actions.fields import ENTER, Field, close_picker, find_field, focus, read_after
from envs.actions.keyboard import KEYS, Chord, press
from envs.actions.mouse import Grip, click_spot
from envs.actions.pace import FRAME_MS
from envs.actions.target import Box, Spot, in_view
from envs.cdp.messages import NO_BOX, refused_with
from envs.types import BrowserError, ErrorCode, Select
from envs.types.options import find_options, option_names


async def select(context: ActionContext, nodes: Nodes, action: Select) -> Effect | ActionError:
    """Choose an option, or several of a list that takes them."""
    field = await find_field(context, nodes, action)
    if isinstance(field, ActionError):
        return field
    called, facts = field.called, field.facts
    if facts.disabled:
        return disabled_error(called)
    if facts.tag != "select":
        return ActionError(ErrorCode.NOT_A_LIST, f"{called} is a {facts.tag}", "select needs a drop-down list")
    if facts.multiple:
        return await _select_several(context, nodes, action, field)
    if action.also:
        return ActionError(ErrorCode.BAD_ACTION, f"{called} takes one option, not {len(action.also) + 1}")
    wanted = find_option(called, facts.options, action.text)
    if isinstance(wanted, ActionError):
        return wanted
    await close_picker(context, nodes, field.own)
    refusal = await focus(context, field.own, called)
    if refusal:
        return refusal
    if wanted != facts.chosen and not await _choose(context, nodes, field.own, facts, wanted):
        return ActionError(ErrorCode.NOT_EDITABLE, f"{called} does not take the choice", "click what else chooses it")
    return field.effect


def find_option(called: str, options: Sequence[Option], text: str) -> int | ActionError:
    """Return the place of the option that a text names.

    Options that the list does not show have no name.
    """
    shown = [place for place, option in enumerate(options) if option.shown]
    labels = tuple((options[place].label, options[place].group) for place in shown)
    hits, names = find_options(labels, text), option_names(labels)
    if len(hits) == 1:
        option = options[shown[hits[0]]]
        if option.open:
            return shown[hits[0]]
        return ActionError(ErrorCode.DISABLED, f"option {shorten(text)!r} of {called} is disabled")
    listed = ", ".join(shorten(name, 24) for name in names[:8]) + (", …" if len(names) > 8 else "")
    closest = tuple(names[hit] for hit in hits) or closest_names(text, names)
    suggestions = tuple(f'"{shorten(name)}"' for name in closest)
    what = f"{called} has {f'{len(hits)} options' if hits else 'no option'} {shorten(text)!r}"
    return ActionError(ErrorCode.NO_SUCH_OPTION, what, f"it has {listed or 'none'}", suggestions)


async def _choose(context: ActionContext, nodes: Nodes, own: str, facts: ElementFacts, wanted: int) -> bool:
    """Choose an open option that is not the chosen one.

    Returns False if the page refused the keys.
    """
    usable = [place for place, option in enumerate(facts.options) if option.open and option.shown]
    before = [place for place in usable if place < wanted]
    after = [place for place in usable if place > wanted]
    beside, key = (before[-1], "ArrowDown") if before else (after[0], "ArrowUp") if after else (None, "Home")
    if beside is not None:
        await nodes.ask(own, "preset", beside)
    await nodes.ask(own, "listen")
    if facts.drawn:
        await press(context, Chord((), KEYS["ArrowDown"]))
    await press(context, Chord((), KEYS[key]))
    if facts.drawn:
        await press(context, ENTER)
    if await read_after(nodes, own, "heard") is not False:
        return True
    await close_picker(context, nodes, own)
    await nodes.ask(own, "preset", facts.chosen)
    return False


async def _select_several(context: ActionContext, nodes: Nodes, action: Select, field: Field) -> Effect | ActionError:
    """Choose options of a list that takes several.

    A person holds Control and clicks on each, and the page gets an event for each. So all but one
    are set without any event, and that one is clicked with Control. This gives exactly one trusted
    ``input`` and ``change``, as in a list that takes one.
    """
    called, own, options = field.called, field.own, field.facts.options
    chosen = {place for place, option in enumerate(options) if option.on}
    wanted = set(chosen) if action.add else set()
    for text in (action.text, *action.also):
        place = find_option(called, options, text)
        if isinstance(place, ActionError):
            return place
        wanted.add(place)
    differing = [place for place in sorted(wanted ^ chosen) if options[place].open and options[place].shown]
    if not differing:
        return field.effect
    last = differing[-1]
    await nodes.ask(own, "choices", sorted(wanted ^ {last}))
    await context.clock.give(FRAME_MS)  # the list scrolls to the chosen option
    boxes = await _option_boxes(context, nodes, own, last)
    if boxes is None:
        # A list of one row is drawn as a drop-down list, whose options are in a window of their
        # own. So a script sends the events.
        await nodes.ask(own, "choose", sorted(wanted))
        return field.effect
    if not boxes:
        await nodes.ask(own, "choices", sorted(chosen))
        what = f"option {shorten(options[last].label)!r} of {called} is not on the screen"
        return ActionError(ErrorCode.OFF_SCREEN, what)
    left, top, right, bottom = boxes[0]
    point = ((left + right) / 2, (top + bottom) / 2)
    held = Grip(held=(KEYS["Control"],))
    clicked = await click_spot(context, nodes, action, Spot(point, None, None), held)
    if isinstance(clicked, ActionError):
        return clicked
    now = await read_after(nodes, own, "facts")
    if now is not None and {place for place, option in enumerate(now["options"]) if option["on"]} == wanted ^ {last}:
        await nodes.ask(own, "choices", sorted(chosen))
        return ActionError(ErrorCode.NOT_EDITABLE, f"{called} does not take the choice", "click what else chooses it")
    return Effect(point)


async def _option_boxes(context: ActionContext, nodes: Nodes, own: str, place: int) -> list[Box] | None:
    """Scroll an option into view and return its boxes.

    The answer is ``None`` if its list does not draw its options.
    """
    option = await nodes.follow(own, "option", place)
    try:
        await nodes.scroll_to(objectId=option or "")
        boxes = await nodes.boxes(objectId=option or "")
    except BrowserError as error:
        if refused_with(error, NO_BOX):
            return None
        raise
    return [box for box in (in_view(whole, context.viewport) for whole in boxes) if box]
