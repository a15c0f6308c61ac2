"""Executes an action in a page, or returns why it was refused.

A mistake of the policy comes back as an `ActionError`. An exception out of `execute` is a
`BrowserError` of a broken browser or connection and ends the episode. Every action ends within the
context's deadline, and as soon as a dialog of the page opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from envs.actions import choices, fields, navigate, pointer, text
from envs.actions.arrive import HOVER_MS, move_to_target
from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import Nodes
from envs.actions.errors import ActionError, closest_names, shorten
from envs.actions.keyboard import key_names, parse_chord, pastes
from envs.actions.locate import locate, pixels
from envs.actions.pace import KEY_SECONDS
from envs.actions.validate import check_action, find_target
from envs.cancel_scope import CancelScope
from envs.cdp.messages import NODE_GONE, refused_with
from envs.types import (
    Action,
    Answer,
    Back,
    BrowserError,
    Check,
    Clear,
    Click,
    CloseTab,
    Dialog,
    DoubleClick,
    Drag,
    ErrorCode,
    Forget,
    Forward,
    Goto,
    Hover,
    Invalid,
    NewTab,
    Press,
    Refresh,
    Remember,
    Scroll,
    Select,
    StopReason,
    Submit,
    SwitchTab,
    Terminate,
    TripleClick,
    Type,
    Upload,
    Wait,
)

Outcome = Effect | ActionError


async def execute(context: ActionContext, action: Action) -> Outcome:
    """Carry out an action.

    Raises:
        BrowserError: The browser or the connection failed.
    """
    match action:
        case Answer():
            return Effect(stop=StopReason.ANSWER, said=action.text)
        case Terminate():
            return Effect(stop=StopReason.TERMINATED, said=action.status)
        case Submit():
            return check_action(action, context.handles, context.offers) or Effect(stop=StopReason.SUBMITTED)
        case Dialog():
            return await _within(context, _answer_dialog(context, action), action)
    if isinstance(action, Type):
        keys = min(len(action.text), text.MAX_KEYS)
        context = replace(context, deadline=context.deadline + KEY_SECONDS * keys)
    refusal = check_action(action, context.handles) or _waiting_dialog(context)
    return refusal or await _until_dialog(context, _act(context, action), action)


async def _act(context: ActionContext, action: Action) -> Outcome:
    nodes = Nodes(context.cdp, context.clock, context.seen)
    try:
        outcome = await _perform(context, nodes, action)
    except BrowserError as error:
        if not refused_with(error, NODE_GONE):
            raise
        outcome = ActionError(ErrorCode.STALE_ELEMENT, "the page changed during the action", "look at it as it is now")
    # An action that was given up does not come here: a page that hangs would not answer. The next
    # release frees its objects too.
    await nodes.release()
    return outcome


async def _perform(context: ActionContext, nodes: Nodes, action: Action) -> Outcome:
    match action:
        case Click() | DoubleClick() | TripleClick() | Hover():
            return await _point(context, nodes, action)
        case Type():
            return await text.type_text(context, nodes, action)
        case Clear():
            return await text.clear(context, nodes, action)
        case Select():
            return await choices.select(context, nodes, action)
        case Check():
            return await fields.check(context, nodes, action)
        case Upload():
            return await fields.upload(context, nodes, action)
        case Press():
            return await _press(context, nodes, action)
        case Scroll():
            return await _scroll(context, nodes, action)
        case Drag():
            return await _drag(context, nodes, action)
        case Goto():
            return await navigate.goto(context, action)
        case Back() | Forward() | Refresh():
            return await navigate.through_history(context, action)
        case NewTab() | SwitchTab() | CloseTab():
            return await navigate.use_tabs(context, action)
        case Wait():
            return Effect(wait_ms=action.seconds * 1000.0)
        case Answer() | Terminate() | Submit() | Dialog() | Remember() | Forget() | Invalid():
            raise AssertionError(f"{action.type} is handled before")


_TIMES = {Click: 1, DoubleClick: 2, TripleClick: 3}


async def _point(context: ActionContext, nodes: Nodes, action: Click | DoubleClick | TripleClick | Hover) -> Outcome:
    spot = await locate(context, nodes, action)
    if isinstance(spot, ActionError):
        return spot
    if isinstance(action, Hover):
        await pointer.move_at_once(context.cdp, *spot.point)
        await context.clock.give(HOVER_MS)
    else:
        spot = await move_to_target(context, nodes, action, spot)
        if isinstance(spot, ActionError):
            return spot
        await pointer.click(context, *spot.point, times=_TIMES[type(action)], grip=pointer.Grip.of(action))
    return Effect(spot.point, spot.handle.backend_node_id if spot.handle is not None else None)


async def _press(context: ActionContext, nodes: Nodes, action: Press) -> Outcome:
    chord = parse_chord(action.key)
    if chord is None:
        suggestions = closest_names(action.key.rpartition("+")[2], key_names())
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
        field = await fields.find_field(context, nodes, action)
        if isinstance(field, ActionError):
            return field
        refusal = await fields.focus(context, field.own, field.called, "press without a target")
        if refusal:
            return refusal
        effect = field.effect
    await pointer.press(context, chord)
    return effect


async def _scroll(context: ActionContext, nodes: Nodes, action: Scroll) -> Outcome:
    width, height = context.viewport
    point = (width / 2, height / 2)
    if action.is_named:
        spot = await locate(context, nodes, action)
        if isinstance(spot, ActionError):
            return spot
        point = spot.point
    sign = 1.0 if action.direction in ("down", "right") else -1.0
    vertical = action.direction in ("up", "down")
    length = sign * action.amount * (height if vertical else width) * context.scale
    async with context.drawn_whole():
        await pointer.wheel(context.cdp, *point, *((0.0, length) if vertical else (length, 0.0)))
    await nodes.next_frame()
    return Effect(point)


async def _drag(context: ActionContext, nodes: Nodes, action: Drag) -> Outcome:
    start = await locate(context, nodes, action.start)
    if isinstance(start, ActionError):
        return start
    handle = find_target(action.end, context.handles)
    if handle is not None and not isinstance(handle, ActionError):
        await nodes.scroll_least(handle.backend_node_id)
    end = await locate(context, nodes, action.end)
    if isinstance(end, ActionError):
        return end
    start = await locate(context, nodes, action.start, scroll=False)  # it may have moved
    if isinstance(start, ActionError):
        what = "the two ends of the drag are not on the screen together"
        return ActionError(ErrorCode.OFF_SCREEN, what, "scroll, or drag in two parts")
    arrived = await move_to_target(context, nodes, action.start, start)
    if isinstance(arrived, ActionError):
        return arrived
    if arrived is not start:  # the page has reacted, so its end may be elsewhere now
        start, end = arrived, await locate(context, nodes, action.end, scroll=False)
        if isinstance(end, ActionError):
            return end
    way = [start.point, *(pixels(point, context.viewport) for point in action.via), end.point]
    await pointer.drag(context, way, pointer.Grip.of(action))
    return Effect(end.point)


async def _answer_dialog(context: ActionContext, action: Dialog) -> Outcome:
    pending = context.dialogs.pending
    if pending is None:
        return ActionError(ErrorCode.NO_DIALOG, "no dialog is open")
    if action.text is not None and pending.kind != "prompt":
        return ActionError(ErrorCode.BAD_ACTION, f"the {pending.kind} takes no text", "leave the text out")
    await context.dialogs.answer(action.accept, action.text)
    return Effect()


def _waiting_dialog(context: ActionContext) -> ActionError | None:
    pending = context.dialogs.pending
    if pending is None:
        return None
    what = f"the page waits for an answer to its {pending.kind} {shorten(pending.message)!r}"
    return ActionError(ErrorCode.DIALOG_OPEN, what, "use dialog with accept true or false")


async def _until_dialog(context: ActionContext, work: Coroutine[Any, Any, Outcome], action: Action) -> Outcome:
    """Await ``work``, or until a dialog opens.

    An open dialog keeps the page from taking input, so the rest of the gesture is given up.
    """
    scope = CancelScope(context.deadline)
    try:
        async with scope:
            with context.dialogs.calling(scope.cancel):
                return await work
    except TimeoutError:
        return Effect() if scope.was_cancelled else _not_taken(context, action)


async def _within(context: ActionContext, work: Coroutine[Any, Any, Outcome], action: Action) -> Outcome:
    try:
        async with asyncio.timeout(context.deadline):
            return await work
    except TimeoutError:
        return _not_taken(context, action)


def _not_taken(context: ActionContext, action: Action) -> ActionError:
    what = f"the page did not take the {action.type} within {context.deadline:g} s"
    return ActionError(ErrorCode.TIMEOUT, what, "wait, or go somewhere else")
