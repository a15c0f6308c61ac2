"""Types text into fields, as one piece: a line break or a tab is a character, never a key.

A page gets key events for all other characters (masks, autocomplete, shortcuts), and no Enter.
``enter`` or a ``press`` sends where Enter sends. Ways to enter a line break, found by trials in
Chromium 156:

- The editing command of Shift and Enter, given with a key that has no name, writes it into text
  areas and editable elements. (``Input.insertText`` makes a new paragraph in an editable element,
  which editors such as ProseMirror take for Enter.)
- An editor with an ``EditContext`` knows no commands: there ``Input.insertText`` writes it, as it
  does tabs everywhere.
- A single-line field holds no line breaks. We replace them with spaces, as a paste does. A break
  alone would submit its form.

A focused element that takes no text (a page, a canvas, a grid) gets keys only: Enter and Tab are
keys there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import Nodes
from envs.actions.errors import ActionError, disabled_error, shorten
from envs.actions.fields import BACKSPACE, Field, find_field, read_after
from envs.actions.keyboard import (
    KEYS,
    Chord,
    events,
    press_enter,
    select_all,
    send_keys,
    stroke,
    type_keys,
    typed,
)
from envs.actions.mouse import click_spot
from envs.actions.pace import HAND_MS, KEY_MS, share
from envs.actions.values import PICKED, set_value
from envs.types import Clear, ErrorCode, Type

MAX_KEYS = 500
"""Maximum number of characters, at the end of a text, that are typed key by key. Those before are
inserted, to end within an action's deadline."""

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
"""Text that a number field of the locale en-US takes as it is typed."""

SCRIPTS = "ScriptDuration"
"""Counter of ``Performance.getMetrics``: seconds in all callbacks of scripts."""

TO_END = Chord((KEYS["Control"],), KEYS["End"])

_LINE_BREAK: list[dict[str, Any]] = [
    {"type": "rawKeyDown", "key": "Unidentified", "commands": ["insertLineBreak"]},
    {"type": "keyUp", "key": "Unidentified"},
]


@dataclass(frozen=True)
class Stroke:
    """Input of one character of a text: key events or an insertion."""

    keys: Sequence[dict[str, Any]] = ()
    """Key events; none for a character that is inserted."""
    text: str = ""
    """Character; empty for one that is never inserted."""


async def type_text(context: ActionContext, nodes: Nodes, action: Type) -> Effect | ActionError:
    """Click a field and write into it, or write into the focused element."""
    field = await find_field(context, nodes, action) if action.is_named else await _focused(nodes)
    if isinstance(field, ActionError):
        return field
    text = re.sub(r"\r\n?", "\n", action.text)
    # UI-TARS asks for Enter by a line break at the end; Enter is pressed once.
    text = text.removesuffix("\n") if action.enter else text
    if field is not None and field.spot is not None and _is_written(field):
        arrived = await click_spot(context, nodes, action, field.spot)
        if isinstance(arrived, ActionError):
            return arrived
        # A page may make a field writable, or a date field, when it gets the focus.
        field = Field(field.own, await nodes.facts(field.own), arrived)
    refusal = None if field is None else _not_editable(field)
    if field is None or (refusal is not None and field.spot is None):
        await type_keys(context, text)
        if action.enter:
            await press_enter(context)
        what = f"the {field.facts.tag}" if field and field.facts.tag not in ("body", "html") else "the page"
        return Effect(notice=f"no text field has the focus: the keys went to {what}")
    if refusal is not None:
        return refusal
    if _is_picked(field):
        return await set_value(context, nodes, field, action)
    if field.facts.tag == "input":
        text = text.strip("\n").replace("\n", " ")
    await _write(context, nodes, field, text, clear=action.clear)
    refused = await _native_refusal(nodes, field, text, clear=action.clear)
    if refused is not None:
        return refused
    if action.enter:
        await press_enter(context)
    return field.effect


async def clear(context: ActionContext, nodes: Nodes, action: Clear) -> Effect | ActionError:
    """Empty a field."""
    return await type_text(context, nodes, Type(element=action.element, mark=action.mark, at=action.at, text=""))


async def _write(context: ActionContext, nodes: Nodes, field: Field, text: str, *, clear: bool) -> None:
    """Replace the content of the focused field, or write to its end."""
    facts = field.facts
    await context.clock.give(HAND_MS)
    before = select_all() if clear else events(TO_END)
    if facts.edit_context:
        await send_keys(context, before)
        await nodes.ask(field.own, "select", clear)
        before = []
    if clear and not text:
        before = [*before, *stroke(BACKSPACE.key)]
    head, tail = text[:-MAX_KEYS], text[-MAX_KEYS:]
    if head or not tail:
        await send_keys(context, before)
        before = []
    for place, line in enumerate(head.split("\n") if facts.rich else [head] if head else []):
        await send_keys(context, _LINE_BREAK if place else [])
        await context.cdp.send("Input.insertText", {"text": line})
    if tail:
        first, *rest = _strokes(tail, inserted="\n\t" if facts.edit_context else "\t")
        if before and not first.keys:
            await send_keys(context, before)
            before = []
        await _type_strokes(context, [Stroke([*before, *first.keys], first.text), *rest])


def _strokes(text: str, *, inserted: str) -> list[Stroke]:
    """Return the strokes of the characters; some are inserted."""
    strokes: list[Stroke] = []
    for run in re.split(r"([\n\t])", text):
        if run in ("\n", "\t"):
            strokes.append(Stroke((), run) if run in inserted else Stroke(_LINE_BREAK))
        else:
            keys = [*typed(run[:1]), *typed(run[1:])]  # releases Shift after the first: the rest may be inserted
            strokes += [Stroke(of_one, char) for char, of_one in zip(run, keys, strict=True)]
    return strokes


async def _type_strokes(context: ActionContext, strokes: Sequence[Stroke]) -> None:
    """Type into a text field, with a person's time between the strokes.

    Giving that time costs a round trip a key, and only code of the page can notice it. So the first
    stroke is sent alone. If no script ran for it, the page is given the time of the whole text. If
    none ran in that either (a timer, an animation frame), nothing listens to keys, input, selection
    or changes, nor will anything before the text is there. Then the rest is inserted at once.
    Chromium counts all callbacks of all frames, so this does not depend on how a page may listen.
    """
    clock, pause, rest = context.clock, share(KEY_MS, len(strokes)), strokes[1:]
    before = await clock.activity.read()
    await _send_stroke(context, strokes[0])
    if not rest:
        return
    quiet = _same(before, await clock.activity.read())
    await clock.give(pause * len(rest) if quiet else pause)
    if quiet and _same(before, await clock.activity.read()):
        for inserted, run in groupby(rest, key=lambda stroke: bool(stroke.text)):
            if inserted:
                await _send_stroke(context, Stroke(text="".join(stroke.text for stroke in run)))
            else:
                await send_keys(context, [key for stroke in run for key in stroke.keys])
        return
    for number, following in enumerate(rest):
        if number:
            await clock.give(pause)
        await _send_stroke(context, following)


def _same(before: dict[str, float], after: dict[str, float]) -> bool:
    """Return True if no script ran between two readings of the page's counters."""
    return bool(before) and before.get(SCRIPTS) == after.get(SCRIPTS)


async def _send_stroke(context: ActionContext, stroke: Stroke) -> None:
    if stroke.keys:
        await send_keys(context, stroke.keys)
    else:
        await context.cdp.send("Input.insertText", {"text": stroke.text})


async def _focused(nodes: Nodes) -> Field | None:
    """Return the focused element as a field, ``None`` if there is none."""
    own = await nodes.focused()
    return None if own is None else Field(own, await nodes.facts(own))


async def _native_refusal(nodes: Nodes, field: Field, text: str, *, clear: bool) -> ActionError | None:
    """Return the error of a number, or of a text with a maximum length, that Chromium did not take.

    A text that the page changes (masks, capitals, chips, boxes that pass on the focus) is no error:
    the observation shows it.
    """
    facts = field.facts
    number = facts.kind == "number" and facts.tag == "input"
    over = facts.limit >= 0 and len(text.encode("utf-16-le")) // 2 + (0 if clear else facts.length) > facts.limit
    if not text or not (over or (number and _NUMBER.fullmatch(text.strip()) is None)):
        return None
    held = await read_after(nodes, field.own, "held")
    if held is None or (held == text if clear else held.endswith(text)):
        return None
    takes, hint = ("a number", "it like 1234.5") if number else (f"{facts.limit} characters", "a shorter text")
    now = "" if facts.kind == "password" else f': it holds "{shorten(held)}", not "{shorten(text)}"'
    return ActionError(ErrorCode.BAD_ACTION, f"{field.called} takes {takes}{now}", f"write {hint}")


def _is_picked(field: Field) -> bool:
    return field.facts.tag == "input" and field.facts.kind in PICKED


def _is_written(field: Field) -> bool:
    return field.facts.editable and not field.facts.disabled and not _is_picked(field)


def _not_editable(field: Field) -> ActionError | None:
    facts = field.facts
    if facts.disabled:
        return disabled_error(field.called)
    if not facts.editable and not _is_picked(field):
        return ActionError(ErrorCode.NOT_EDITABLE, f"{field.called} is a {facts.tag}", "click it")
    return ActionError(ErrorCode.NOT_EDITABLE, f"{field.called} is read-only") if facts.readonly else None
