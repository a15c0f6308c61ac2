"""The function-call form: ``click(3)``, ``type(1, "text")``, ``scroll(direction="down")``, ``click(120, 340)``.

Read with a small tokenizer of its own: Python's parser can be made to overflow its stack by what a model writes.
"""

from __future__ import annotations

import json
import re
from typing import Any

from envs.types import ErrorCode, Invalid
from envs.types.actions import Actions
from training.policy.parsing.vocabulary import Reading, canonical, read_named, short

_CALL = re.compile(r"(?P<name>[a-z_]{1,40})\((?P<inside>.*)\)", re.DOTALL)
_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_ARGUMENT = re.compile(
    rf"""\s*(?:(?P<key>[a-z_]{{1,40}})\s*=\s*)?
    (?: (?P<double>"(?:[^"\\]|\\.)*") | '(?P<single>(?:[^'\\]|\\.)*)' | (?P<number>{_NUMBER})
      | (?P<word>true|false|null|True|False|None)
      | [\[(]\s*(?P<x>{_NUMBER})\s*,\s*(?P<y>{_NUMBER})\s*[\])] )\s*(?:,|$)""",
    re.DOTALL | re.VERBOSE,
)
_WORDS = {"true": True, "false": False, "null": None}

_ORDER = {
    "answer": ("text",),
    "close_tab": ("tab",),
    "dialog": ("accept", "text"),
    "drag": ("start", "end"),
    "forget": ("key",),
    "goto": ("url",),
    "new_tab": ("url",),
    "press": ("key",),
    "remember": ("key", "value"),
    "scroll": ("direction", "amount"),
    "select": ("element", "text"),
    "submit": ("html",),
    "switch_tab": ("tab",),
    "terminate": ("status",),
    "type": ("element", "text"),
    "upload": ("element", "files"),
    "wait": ("seconds",),
}
"""Names of positional arguments; one that is not here takes an element."""


def read_call(text: str, actions: Actions) -> Reading | None:
    """``name(arguments)``; ``None`` if the text is not of this form."""
    match = _CALL.fullmatch(text.strip())
    if match is None:
        return None
    arguments = _arguments(canonical(match["name"], actions), match["inside"].strip(), actions)
    if isinstance(arguments, Invalid):
        return Reading(arguments)
    return read_named(match["name"], arguments, actions)


def _arguments(name: str, inside: str, actions: Actions) -> dict[str, Any] | Invalid:
    values: list[Any] = []
    named: dict[str, Any] = {}
    place = 0
    while place < len(inside):
        match = _ARGUMENT.match(inside, place)
        if match is None:
            return Invalid(
                reason=f"{name}: cannot read the argument {short(inside[place:])}", code=ErrorCode.BAD_ACTION
            )
        if match["key"]:
            named[match["key"]] = _value(match)
        else:
            values.append(_value(match))
        place = match.end()
    return _placed(name, values, actions) | named


def _placed(name: str, values: list[Any], actions: Actions) -> dict[str, Any]:
    """Positional arguments by name. Two numbers where an element is meant are a point; `press(3, "Enter")` has an element first."""
    order: tuple[str, ...] = _ORDER.get(name, ("element",) if name in actions else ())
    if order[:1] == ("element",) and len(values) >= 2 and all(isinstance(value, int | float) for value in values[:2]):
        order, values = ("at", *order[1:]), [values[:2], *values[2:]]
    if name == "press" and len(values) == 2:
        order = ("element", "key")
    # Too many are told by an argument that no action has.
    extra = (f"argument {number}" for number in range(len(order) + 1, len(values) + 1))
    return dict(zip((*order, *extra), values, strict=False))


def _value(match: re.Match[str]) -> Any:
    if match["double"] is not None:
        try:
            return json.loads(match["double"], strict=False)
        except ValueError:
            return match["double"][1:-1]
    if match["single"] is not None:
        return re.sub(
            r"\\(.)", lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], escape[1]), match["single"], flags=re.DOTALL
        )
    if match["number"] is not None:
        return float(match["number"]) if "." in match["number"] else int(match["number"])
    if match["x"] is not None:
        return [float(match["x"]), float(match["y"])]
    return _WORDS.get(match["word"].lower())
