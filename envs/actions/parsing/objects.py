"""JSON objects and lists of them: a whole text, or what a text ends with."""

from __future__ import annotations

import json
from typing import Any

from envs.actions.parsing.vocabulary import NamedAction, read_mapping, shorten_name
from envs.types import ErrorCode, Invalid
from envs.types.actions import Actions


def read_object(text: str, actions: Actions) -> NamedAction:
    """The action of a text that is one JSON value; `Invalid` if it is not."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", None) or str(error)
        return NamedAction(
            Invalid(reason=f"not JSON ({shorten_name(why)}): {shorten_name(text)}", code=ErrorCode.BAD_JSON)
        )
    return read_value(value, actions)


def read_value(value: Any, actions: Actions) -> NamedAction:
    """The action of a JSON value; of a list it is the last one, as of several actions in any form."""
    if isinstance(value, list) and value:
        value = value[-1]
    if not isinstance(value, dict):
        return NamedAction(Invalid(reason=f"not a JSON object: {shorten_name(repr(value))}", code=ErrorCode.BAD_JSON))
    return read_mapping(value, actions)


def json_at_end(text: str, start: int) -> Any:
    """The JSON object, or list that ends with one, from ``start`` to the end of a text; ``None`` if there is none."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    last = value[-1] if isinstance(value, list) and value else value
    return value if end == len(text) and isinstance(last, dict) else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)
"""Control characters in strings are let through: models write line breaks as they are."""
