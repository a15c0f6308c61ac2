"""Executes an action in a page, or returns why it was not carried out.

A mistake of the policy comes back as an `ActionError`. An exception out of `execute` is a
`BrowserError` of a broken browser or connection and ends the episode. Every action ends within the
context's deadline, and as soon as a dialog of the page opens.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from envs.actions import choices, fields, mouse, navigate, text
from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import Nodes
from envs.actions.errors import ActionError, shorten
from envs.actions.pace import KEY_SECONDS
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


async def execute(context: ActionContext, action: Action) -> Effect | ActionError:
    """Carry out an action that `check_action` did not refuse.

    Raises:
        BrowserError: The browser or the connection failed.
    """
    match action:
        case Answer():
            return Effect(stop=StopReason.ANSWER, said=action.text)
        case Terminate():
            return Effect(stop=StopReason.TERMINATED, said=action.status)
        case Submit():
            return Effect(stop=StopReason.SUBMITTED)
        case Dialog():
            return await _answer_dialog(context, action)
        case Type():
            keys = min(len(action.text), text.MAX_KEYS)
            context = replace(context, deadline=context.deadline + KEY_SECONDS * keys)
    pending = context.dialogs.pending
    if pending is not None:
        what = f"the page waits for an answer to its {pending.kind} {shorten(pending.message)!r}"
        return ActionError(ErrorCode.DIALOG_OPEN, what, "use dialog with accept true or false")
    # A dialog that opens keeps the page from taking input, so the rest of the gesture is given up.
    scope = CancelScope(context.deadline)
    try:
        async with scope:
            with context.dialogs.calling(scope.cancel):
                return await _act(context, action)
    except TimeoutError:
        return Effect() if scope.was_cancelled else _not_taken(context, action)


async def _act(context: ActionContext, action: Action) -> Effect | ActionError:
    nodes = Nodes(context.cdp, context.clock.activity, context.seen)
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


async def _perform(context: ActionContext, nodes: Nodes, action: Action) -> Effect | ActionError:
    match action:
        case Click() | DoubleClick() | TripleClick() | Hover():
            return await mouse.point_at(context, nodes, action)
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
            return await fields.press_key(context, nodes, action)
        case Scroll():
            return await mouse.scroll(context, nodes, action)
        case Drag():
            return await mouse.drag(context, nodes, action)
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


async def _answer_dialog(context: ActionContext, action: Dialog) -> Effect | ActionError:
    """Answer the open dialog."""
    pending = context.dialogs.pending
    if pending is None:
        return ActionError(ErrorCode.NO_DIALOG, "no dialog is open")
    if action.text is not None and pending.kind != "prompt":
        return ActionError(ErrorCode.BAD_ACTION, f"the {pending.kind} takes no text", "leave the text out")
    try:
        async with asyncio.timeout(context.deadline):
            await context.dialogs.answer(action.accept, action.text)
    except TimeoutError:
        return _not_taken(context, action)
    return Effect()


def _not_taken(context: ActionContext, action: Action) -> ActionError:
    what = f"the page did not take the {action.type} within {context.deadline:g} s"
    return ActionError(ErrorCode.TIMEOUT, what, "wait, or go somewhere else")
