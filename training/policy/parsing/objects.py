"""JSON objects in a text: a whole one, or the last one that names an action."""

from __future__ import annotations

import json
from typing import Any

from envs.types import ErrorCode, Invalid
from envs.types.actions import Actions
from training.policy.parsing.vocabulary import Reading, names_action, read_mapping, short

MOST_TRIES = 256
"""Opening braces that are tried in a text. A turn of 4,096 tokens of prose has a handful; without a bound a hostile one would cost the
square of its length."""


def read_object(text: str, actions: Actions) -> Reading | None:
    """The action of a text that is one JSON object; `Invalid` if it is not."""
    try:
        # Control characters in strings are let through: models write line breaks as they are.
        value = json.loads(text, strict=False, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", None) or str(error)
        return Reading(Invalid(reason=f"not JSON ({short(why)}): {short(text)}", code=ErrorCode.BAD_JSON))
    if not isinstance(value, dict):
        return Reading(Invalid(reason=f"not a JSON object: {short(text)}", code=ErrorCode.BAD_JSON))
    return read_mapping(value, actions)


def last_action_object(text: str, actions: Actions) -> Reading | None:
    """The action of the last JSON object in a text that names one; ``None`` if there is none."""
    decoder = json.JSONDecoder(strict=False, parse_constant=_no_constant)
    found: dict[str, Any] | None = None
    place = text.find("{")
    for _ in range(MOST_TRIES):
        if place < 0:
            break
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            found = value if names_action(value) else found
        place = text.find("{", end)
    return read_mapping(found, actions) if found is not None else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
