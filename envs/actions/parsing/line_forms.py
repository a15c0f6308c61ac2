"""Reads actions on a line: in brackets, ``click [3]``, or as a call, ``click(3)``.

Brackets are the form of the tiny policy, after WebArena's: ``click [3]``, ``type [1] "text"``,
``select [2] "label"``; the text is a JSON string. Other actions are similar: ``hover [3]``, ``press
[Enter]``, ``scroll [down]``, ``goto "http://…"``, ``back``, ``answer "42"``. Calls are
``click(3)``, ``type(1, "text")``, ``click(120, 340)``; they have a small tokenizer of their own, as
model text can overflow the stack of Python's parser.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any

from envs.actions.parsing.names import CLICK_SHARE
from envs.actions.parsing.vocabulary import canonical, halfwidth, read_named, shorten_name
from envs.types import Action, Click, ErrorCode, Invalid, Select, Type
from envs.types.action_text import ActionFormat
from envs.types.actions import GRID, Actions

MAX_HALFWIDTH = 2_000
"""Maximum number of characters of a line that is tried with ASCII brackets, too: pieces of a long
turn are tried from many places."""

MAX_ELEMENT_DIGITS = 4
"""Maximum number of digits of an element's number: no page shows 10,000 elements."""

_FORM = re.compile(
    rf"(?P<name>[A-Za-z_]+) ?\[(?P<element>\d{{1,{MAX_ELEMENT_DIGITS}}})\](?: (?P<text>\".*\"))?", re.DOTALL
)
_WIDE = re.compile(
    r"(?P<name>[a-z_]+|[A-Za-z_]+(?= ?\[))(?: ?\[(?P<word>[^\[\]\"\s][^\[\]\"\n]{0,2000})\])?(?: (?P<text>\".*\"))?",
    re.DOTALL,
)
_WEBARENA = (
    re.compile(r"(?P<name>[Tt]ype) ?\[(?P<element>[\w.-]{1,80})\] ?\[(?P<text>.*?)\](?: ?\[(?P<enter>[01])\])?"),
    re.compile(r"(?P<name>[Aa]nswer|[Gg]oto) ?\[(?P<word>.+)\]"),
    re.compile(r"(?P<name>[Ss]top) ?\[(?P<word>.*)\]"),
    re.compile(r"(?P<name>[Ss]croll) (?P<word>up|down|left|right)"),
)
"""WebArena's forms that are not ours: texts without quotes, which may hold quotes and brackets."""

_WITH_TEXT: dict[str, type[Type] | type[Select]] = {"type": Type, "select": Select}

_ALONE = frozenset({"back", "forward", "refresh", "new_tab", "close_tab", "wait", "terminate", "scroll"})
"""Actions that may stand without any argument."""

_TEXTS = {
    "answer": "text",
    "goto": "url",
    "new_tab": "url",
    "press": "key",
    "remember": "value",
    "select": "text",
    "terminate": "status",
    "type": "text",
    "upload": "files",
    "scroll": "direction",
}
"""Argument that the quoted text is, by action."""

_KEYED = frozenset({"remember", "forget"})
"""Actions whose word in brackets is a key, even beside a quoted text: ``remember [total] "42.50"``.
"""

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
_CONSTANTS = {"true": True, "false": False, "null": None}

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

_NEVER_IN_BRACKETS = frozenset({"dialog", "drag", "submit"})
"""Actions whose first argument no word in brackets can be."""


def read_line(text: str, actions: Actions) -> tuple[ActionFormat, Action] | None:
    """Read an action in brackets or a call, perhaps with full-width brackets and quotes; ``None``
    if the text is neither."""
    line = _read_form(text, actions)
    if line is not None and not isinstance(line[1], Invalid):
        return line
    narrow = halfwidth(text) if len(text) <= MAX_HALFWIDTH else text
    other = _read_form(narrow, actions) if narrow != text else None
    return other if line is None or (other is not None and not isinstance(other[1], Invalid)) else line


def _read_form(text: str, actions: Actions) -> tuple[ActionFormat, Action] | None:
    for form, read in _READERS:
        reading = read(text, actions)
        if reading is not None:
            return form, reading
    return None


def _read_brackets(text: str, actions: Actions) -> Action | None:
    """Read ``name [element] "text"``; return ``None`` if the text is not of this form."""
    match = _FORM.fullmatch(text)
    if match is None or (
        match["name"].lower() not in ("click", *_WITH_TEXT) and canonical(match["name"], actions) in actions
    ):
        return _read_wide(text, actions)
    name, element = match["name"].lower(), int(match["element"])
    if name == "click":
        return Click(element=element) if match["text"] is None else Invalid(reason="click takes no text")
    if name not in _WITH_TEXT:
        return Invalid(
            reason=f"no such action: {shorten_name(name)}; there are {', '.join(actions)}",
            code=ErrorCode.UNKNOWN_ACTION,
        )
    if match["text"] is None:
        return Invalid(reason=f'{name} needs a text: {name} [{element}] "…"')
    value = _json_string(match["text"])
    return value if isinstance(value, Invalid) else _WITH_TEXT[name](element=element, text=value)


def _read_webarena(text: str, actions: Actions) -> Action | None:
    """Read WebArena's own forms: ``type [id] [text] [1]``, ``stop [say "no"]``, ``scroll down``.

    Enter is pressed after ``type`` unless the last number is 0.
    """
    for form in _WEBARENA:
        match = form.fullmatch(text)
        if match is None or not all(map(_balanced, match.groups())):
            continue
        name, groups = match["name"].lower(), match.groupdict()
        if "element" in groups:
            arguments = {"element": groups["element"], "text": groups["text"], "enter": groups["enter"] != "0"}
        else:
            arguments = {_word(canonical(name, actions)): groups["word"]}
        return read_named(name, arguments, actions)
    return None


def _balanced(text: str | None) -> bool:
    """Return True if no bracket closes that was not opened.

    ``a] because it says [b`` is more than a text in brackets.
    """
    depths = accumulate({"[": 1, "]": -1}.get(char, 0) for char in text or "")
    return min(depths, default=0) >= 0


def _read_wide(text: str, actions: Actions) -> Action | None:
    match = _WIDE.fullmatch(text)
    if match is None:
        return None
    name, word, quoted = canonical(match["name"], actions), match["word"], match["text"]
    if name not in actions or (word is None and quoted is None and name not in _ALONE):
        return None
    both = quoted is not None and name not in _KEYED
    # `press [Enter]` names a key, `press [3] "Enter"` an element; so with scroll.
    meaning = "element" if both else _word(name)
    if meaning == "element" and word is not None and word.isdigit() and len(word) > MAX_ELEMENT_DIGITS:
        return None
    arguments: dict[str, Any] = {}
    if quoted is not None:
        if name not in _TEXTS:
            return Invalid(reason=f"{name} takes no text", code=ErrorCode.BAD_ACTION)
        value = _json_string(quoted)
        if isinstance(value, Invalid):
            return value
        arguments[_TEXTS[name]] = value
    if word is not None:
        arguments[meaning] = word.removeprefix("direction=") if meaning == "direction" else word
    return read_named(match["name"], arguments, actions)


def _word(name: str) -> str:
    """Return the argument that the word in brackets is."""
    return "element" if name in _NEVER_IN_BRACKETS else _ORDER.get(name, ("element",))[0]


def _json_string(quoted: str) -> str | Invalid:
    try:
        return str(json.loads(quoted, strict=False))
    except ValueError as error:
        why = getattr(error, "msg", str(error))
        return Invalid(reason=f"the text is not a JSON string ({why}): {shorten_name(quoted)}")


def _read_call(text: str, actions: Actions) -> Action | None:
    """Read ``name(arguments)``; return ``None`` if the text is not of this form."""
    match = _CALL.fullmatch(text.strip())
    if match is None:
        return None
    name = match["name"].lower()
    arguments = _arguments(name, match["inside"].strip(), actions)
    if match["tool"] and not isinstance(arguments, Invalid):
        arguments = _on_screen(name, arguments)
    if isinstance(arguments, Invalid):
        return arguments
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
    return _CONSTANTS.get(match["word"].lower())


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


_READERS = (
    (ActionFormat.BRACKETS, _read_brackets),
    (ActionFormat.WEBARENA, _read_webarena),
    (ActionFormat.CALL, _read_call),
)
