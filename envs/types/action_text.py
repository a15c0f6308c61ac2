"""Reads actions from their arguments, formats them as model text, and names the formats."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter, ValidationError

from envs.types.actions import ACTIONS, MAX_REASON, Action, Actions, Click, Invalid, Select, Type
from envs.types.error_codes import ErrorCode


class ActionFormat(StrEnum):
    """Format in which a turn was read; metrics use these values.

    See the table of `envs.actions.parsing`.
    """

    BRACKETS = "brackets"
    WEBARENA = "webarena"
    JSON = "json"
    TOOL_CALL = "tool_call"
    LAST_TOOL_CALL = "last_tool_call"
    CALL = "call"
    TAG = "tag"
    FENCE = "fence"
    PROSE = "prose"
    LAST_LINE = "last_line"
    CUSTOM = "custom"
    """Read by a parser of the user's own (`envs.actions.parsing.extensions`)."""
    NONE = "none"


STRICT = frozenset({ActionFormat.BRACKETS, ActionFormat.JSON, ActionFormat.TOOL_CALL, ActionFormat.CUSTOM})
"""Forms that policies are asked for; all others but ``none`` are fallbacks."""

_TAGS = re.compile(r"<(?=/?(?:think|tool_call|action)>)")

_ADAPTER: TypeAdapter[Action] = TypeAdapter(Action)


def read_action(data: dict[str, Any], actions: Actions = ACTIONS) -> Action:
    """Read ``{"type": name, **arguments}`` as one of ``actions``. Never raises.

    What is wrong is said by an `Invalid`.
    """
    name = data.get("type")
    if not isinstance(name, str) or name not in actions:
        known = ", ".join(actions)
        return Invalid(reason=f"no such action: {_short(name)}; there are {known}", code=ErrorCode.UNKNOWN_ACTION)
    try:
        return _ADAPTER.validate_python(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        problems = "; ".join(_path(one["loc"]) + one["msg"].removeprefix("Value error, ") for one in details[:3])
        return Invalid(reason=f"{name}: {problems}"[:MAX_REASON], code=ErrorCode.BAD_ACTION)


def format_action(action: Action, form: ActionFormat = ActionFormat.BRACKETS) -> str:
    """Write the response that ``parse_action`` reads as ``action``: its inverse for valid actions.

    Args:
        form: ``json``, ``tool_call`` or ``brackets`` (the three actions of the tiny policy on
            numbered elements; JSON for all others).
    """
    if isinstance(action, Invalid):
        raise ValueError(f"an invalid action has no form: {action.reason}")
    short = _brackets(action) if form == ActionFormat.BRACKETS else None
    if short is not None:
        return short
    arguments = _arguments(action)
    if form == ActionFormat.TOOL_CALL:
        return f"<tool_call>\n{_json({'name': action.type, 'arguments': arguments})}\n</tool_call>"
    if form not in (ActionFormat.BRACKETS, ActionFormat.JSON):
        raise ValueError(f"actions are written as brackets, json or tool_call, not as {form}")
    return _json({"action": action.type, **arguments})


def _brackets(action: Action) -> str | None:
    match action:
        case Click(element=int(), button="left", modifiers=()):
            return f"click [{action.element}]"
        case Type(element=int(), clear=True, enter=False) | Select(element=int(), also=(), add=False):
            return f"{action.type} [{action.element}] {_json(action.text)}"
    return None


def _arguments(action: Action) -> dict[str, Any]:
    arguments = action.model_dump(mode="json", exclude={"type"})
    if isinstance(action, Type) and not action.is_named:
        arguments["clear"] = action.clear  # its default depends on the target
    return arguments


def _json(value: Any) -> str:
    # A text may hold the tags that enclose thoughts and actions; parsers do not see escaped ones.
    return _TAGS.sub(r"\\u003c", json.dumps(value, ensure_ascii=False))


def _path(location: tuple[int | str, ...]) -> str:
    """Write a location as ``start.element: ``, without its first part, the union's tag."""
    names = [str(part) for part in location[1:] if not str(part).startswith(("constrained-", "function-"))]
    return ".".join(names) + ": " if names else ""


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
