"""Reads the function-call form: ``click(3)``, ``type(1, "text")``, ``click(120, 340)``.

It has a small tokenizer of its own, as model text can overflow the stack of Python's parser.
"""

from __future__ import annotations

import json
import re
from typing import Any

from envs.actions.parsing.names import CLICK_SHARE
from envs.actions.parsing.vocabulary import NamedAction, canonical, read_named, shorten_name
from envs.types import ErrorCode, Invalid
from envs.types.actions import GRID, Actions

_CALL = re.compile(
    r"(?P<tool>(?:pyautogui|computer)\.)?(?P<name>[A-Za-z_][A-Za-z_0-9]{0,39})\((?P<inside>.*)\)", re.DOTALL
)
_NUMBER = r"-?\d{1,20}(?:\.\d{1,20})?"
_STRING = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_ARGUMENT = re.compile(
    rf"""\s*(?:(?P<key>[a-z_]{{1,40}})\s*=\s*)?
    (?: (?P<string>{_STRING}) | (?P<number>{_NUMBER}) | (?P<word>true|false|null|True|False|None)
      | \[\s*(?P<strings>(?:(?:{_STRING})\s*(?:,\s*|(?=\])))*)\]
      | [\[(]\s*(?P<numbers>{_NUMBER}(?:\s*,\s*{_NUMBER}){{1,3}})\s*[\])] )\s*(?:,|$)""",
    re.DOTALL | re.VERBOSE,
)
_TO_LAST_QUOTE = re.compile(
    r"""\s*(?:(?P<key>[a-z_]{1,40})\s*=\s*)?(?P<string>(?P<quote>["'])(?P<text>[^\n]*)(?P=quote))\s*(?:,|$)"""
)
"""Text with unescaped quotes in it (``'What's new'``)."""
_MORE_ARGUMENTS = re.compile(r"""["']\s*(?:\)|,\s*(?:["'\[(\d]|[a-z_]+\s*=))""")
"""End of an argument, which no text holds: another argument or call may follow."""
_WORDS = {"true": True, "false": False, "null": None}

_ORDER = {
    "answer": ("text",),
    "click": ("element", "button", "modifiers"),
    "close_tab": ("tab",),
    "dialog": ("accept", "text"),
    "double_click": ("element", "button", "modifiers"),
    "drag": ("start", "end"),
    "fill": ("element", "text", "enable_autocomplete_menu"),
    "forget": ("key",),
    "goto": ("url",),
    "keyboard_insert_text": ("text",),
    "keyboard_type": ("text",),
    "mouse_drag_and_drop": ("from_x", "from_y", "to_x", "to_y"),
    "new_tab": ("url",),
    "press": ("key",),
    "remember": ("key", "value"),
    "report_infeasible": ("reason",),
    "scroll": ("direction", "amount"),
    "scroll_at": ("x", "y", "delta_x", "delta_y"),
    "select": ("element", "text"),
    "submit": ("html",),
    "switch_tab": ("tab",),
    "terminate": ("status",),
    "triple_click": ("element", "button", "modifiers"),
    "type": ("element", "text"),
    "upload": ("element", "files"),
    "wait": ("seconds",),
}
"""Names of positional arguments, by our name of an action or another scheme's where it differs. An
action that is not here takes an element."""


def read_call(text: str, actions: Actions) -> NamedAction | None:
    """Read ``name(arguments)``; return ``None`` if the text is not of this form."""
    match = _CALL.fullmatch(text.strip())
    if match is None:
        return None
    name = match["name"].lower()
    arguments = _arguments(name, match["inside"].strip(), actions)
    if match["tool"] and not isinstance(arguments, Invalid):
        arguments = _on_screen(name, arguments)
    if isinstance(arguments, Invalid):
        return NamedAction(arguments)
    return read_named(match["name"], arguments, actions)


def _arguments(name: str, inside: str, actions: Actions) -> dict[str, Any] | Invalid:
    values: list[Any] = []
    named: dict[str, Any] = {}
    place = 0
    while place < len(inside):
        match = _argument(inside, place)
        if match is None:
            return Invalid(
                reason=f"{name}: cannot read the argument {shorten_name(inside[place:])}", code=ErrorCode.BAD_ACTION
            )
        if match["key"]:
            named[match["key"]] = _value(match)
        else:
            values.append(_value(match))
        place = match.end()
    return _placed(name, values, actions) | named


def _argument(inside: str, place: int) -> re.Match[str] | None:
    """Match the next argument.

    A text that its own quotes end too early goes to the last quote, unless that may belong to
    another argument.
    """
    match = _ARGUMENT.match(inside, place)
    if match and (match.end() == len(inside) or not match["string"] or _ARGUMENT.match(inside, match.end())):
        return match
    longer = _TO_LAST_QUOTE.match(inside, place)
    return longer if longer and not _MORE_ARGUMENTS.search(longer["text"] + longer["quote"]) else match


def _on_screen(name: str, arguments: dict[str, Any]) -> dict[str, Any] | Invalid:
    """Convert arguments of pyautogui's calls.

    Kimi's points are fractions. Others are pixels of a picture whose size is unknown here.
    """
    arguments = {key: value for key, value in arguments.items() if key not in ("duration", "interval", "logScreenshot")}
    point = arguments.get("at") or [arguments[axis] for axis in ("x", "y") if axis in arguments]
    if not all(isinstance(part, int | float) and 0 <= part <= 1 for part in point):
        return Invalid(reason=f"{name}: write the point as fractions of the picture, 0 to 1", code=ErrorCode.BAD_ACTION)
    if point:
        arguments = {key: value for key, value in arguments.items() if key not in ("x", "y")} | {
            "at": [float(part) for part in point]
        }
    turned = arguments.pop("direction", arguments.pop("clicks", None)) if name in ("scroll", "hscroll") else None
    if isinstance(turned, int | float):
        arguments["pixels"] = turned * CLICK_SHARE * GRID  # upwards, as in Qwen's scheme
    if name == "press" and isinstance(arguments.get("key"), list):
        return Invalid(reason="press: these keys are pressed one after the other; name one", code=ErrorCode.BAD_ACTION)
    return arguments


def _placed(name: str, values: list[Any], actions: Actions) -> dict[str, Any]:
    """Return positional arguments by name.

    Two numbers where an element is meant are a point; `press(3, "Enter")` has an element first.
    """
    ours = canonical(name, actions)
    order: tuple[str, ...] = _ORDER.get(name) or _ORDER.get(ours, ("element",) if ours in actions else ())
    texts = ours in ("type", "select") and len(values) == 2  # an element and its text
    if (
        order[:1] == ("element",)
        and len(values) >= 2
        and not texts
        and all(isinstance(value, int | float) for value in values[:2])
    ):
        order, values = ("at", *order[1:]), [values[:2], *values[2:]]
    if name == "hotkey" and values and all(isinstance(value, str) for value in values):
        values = ["+".join(values)]
    if ours == "press" and len(values) == 2:
        order = ("element", "key")
    if name == "scroll" and len(values) == 2 and all(isinstance(value, int | float) for value in values):
        order = ("delta_x", "delta_y")  # BrowserGym's
    # An argument too many gets a name that no action has, so that the error names it.
    extra = (f"argument {number}" for number in range(len(order) + 1, len(values) + 1))
    return dict(zip((*order, *extra), values, strict=False))


def _value(match: re.Match[str]) -> Any:
    if match["string"] is not None:
        return _string(match["string"])
    if match["number"] is not None:
        return _number(match["number"])
    if match["numbers"] is not None:
        return [_number(part) for part in match["numbers"].split(",")]
    if match["strings"] is not None:
        return [_string(part) for part in re.findall(_STRING, match["strings"], re.DOTALL)]
    return _WORDS.get(match["word"].lower())


def _number(text: str) -> float | str:
    if text[0] == "0" and text.isdigit() and text != "0":
        return text  # a ZIP code
    return float(text) if "." in text else int(text)


def _string(quoted: str) -> str:
    if quoted[0] == '"':
        try:
            return str(json.loads(quoted, strict=False))
        except ValueError:
            return quoted[1:-1]
    return re.sub(
        r"\\(.)", lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], escape[1]), quoted[1:-1], flags=re.DOTALL
    )
