"""Reads JSON objects and lists of them: a whole text, or the end of one."""

from __future__ import annotations

import json
from typing import Any

from envs.actions.parsing.vocabulary import read_mapping, shorten_name
from envs.types import Action, ErrorCode, Invalid
from envs.types.actions import Actions


def read_object(text: str, actions: Actions) -> Action:
    """Return the action of a text that is one JSON value; `Invalid` if it is not."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", None) or str(error)
        return Invalid(reason=f"not JSON ({shorten_name(why)}): {shorten_name(text)}", code=ErrorCode.BAD_JSON)
    return read_value(value, actions)


def read_value(value: Any, actions: Actions) -> Action:
    """Return the action of a JSON value; in a list it is the last one, as in all forms."""
    if isinstance(value, list) and value:
        value = value[-1]
    if not isinstance(value, dict):
        return Invalid(reason=f"not a JSON object: {shorten_name(repr(value))}", code=ErrorCode.BAD_JSON)
    return read_mapping(value, actions)


def json_at_end(text: str, start: int) -> Any:
    """Return the JSON object, or list that ends with one, from ``start`` to the end of a text.

    The answer is ``None`` if there is none.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    last = value[-1] if isinstance(value, list) and value else value
    return value if end == len(text) and isinstance(last, dict) else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)
"""Decoder that accepts control characters in strings: models write line breaks unescaped."""
