"""Sets fields whose value is picked, not written: dates, times, colours, ranges.

The value is set as HTML writes it, in three moves. First the value beside the wanted one is set
without any event. Then one arrow key gives exactly one trusted ``input`` and ``change``. Then the
value is compared. Typing the parts of a date would depend on which part has the focus, on what
``min`` and ``max`` do to them (findings/datetime-local-keys.sh), and on the locale. Where no key
leads to the value (colours, ranges without steps, a page that takes no keys), a script sends both
events.
"""

from __future__ import annotations

from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import Nodes
from envs.actions.errors import ActionError, shorten
from envs.actions.fields import Field, close_picker, focus, read_after
from envs.actions.keyboard import KEYS, Chord, press, press_enter
from envs.cdp.messages import UNFOCUSABLE, send_unless
from envs.types import ErrorCode, Type

PICKED = {
    "date": "2024-05-17",
    "time": "21:05",
    "datetime-local": "2024-05-17T21:05",
    "month": "2024-05",
    "week": "2024-W20",
    "color": "#ff8800",
    "range": "",
}
"""Example value of each of these types of inputs, as HTML writes it."""

_PARTS = {"date": "day", "time": "minute", "datetime-local": "minute", "month": "month", "week": "week"}
"""Part of a date or time field that the arrow key changes."""


async def set_value(context: ActionContext, nodes: Nodes, field: Field, action: Type) -> Effect | ActionError:
    """Set a date, time, colour or range field; an empty text clears a date or time."""
    own, kind, text = field.own, field.facts.kind, action.text.strip()
    before, wanted = await nodes.ask(own, "canonical", text)
    if wanted is None or (not text and kind not in _PARTS):
        return await _no_value(nodes, field, text)
    refusal = await focus(context, own, field.called)
    if refusal:
        return refusal
    if wanted != before:
        await _focus_part(context, field)
        await close_picker(context, nodes, own)
        beside, key = await nodes.ask(own, "beside", wanted)
        if key:
            await press(context, Chord((), KEYS[key]))
        held = await read_after(nodes, own, "spelled", wanted)
        if held == beside:
            await nodes.ask(own, "put", before)
            await nodes.ask(own, "pick", wanted)
            held = await read_after(nodes, own, "spelled", wanted)
        if held is not None and held != wanted:
            what = f'{field.called} does not take the value: it holds "{shorten(held)}"'
            return ActionError(ErrorCode.NOT_EDITABLE, what, "use the page's own controls")
    if not wanted:
        await read_after(nodes, own, "empty")  # the parts of a date that are still filled
    if action.enter:
        await press_enter(context)
    return field.effect


async def _focus_part(context: ActionContext, field: Field) -> None:
    """Give the focus to the part of a date field that the arrow key changes.

    If it is read-only, the key will change nothing.
    """
    name = f"-webkit-datetime-edit-{_PARTS.get(field.facts.kind)}-field"
    if field.facts.kind not in _PARTS:
        return
    nodes = [(await context.cdp.send("DOM.describeNode", {"objectId": field.own, "depth": -1, "pierce": True}))["node"]]
    while nodes:
        node = nodes.pop()
        if name in node.get("attributes", ()):
            await send_unless(UNFOCUSABLE, context.cdp, "DOM.focus", {"backendNodeId": node["backendNodeId"]})
            return
        nodes += [*node.get("shadowRoots", ()), *node.get("children", ())]


async def _no_value(nodes: Nodes, field: Field, text: str) -> ActionError:
    example = PICKED[field.facts.kind]
    if field.facts.kind == "range":
        low, high, step = await nodes.ask(field.own, "range")
        example = f"a number from {low:g} to {high:g}" + (f" in steps of {step:g}" if step else "")
    what = f"{shorten(text)!r} is no {field.facts.kind} value"
    return ActionError(ErrorCode.BAD_ACTION, what, f"write it like {example}")
