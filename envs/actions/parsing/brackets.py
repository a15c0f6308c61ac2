"""Reads actions in bracket form: ``click [3]``, ``type [1] "text"``.

It is the form of the tiny policy, after WebArena's: ``click [3]``, ``type [1] "text"``, ``select
[2] "label"``; the text is a JSON string. Other actions are similar: ``hover [3]``, ``press
[Enter]``, ``scroll [down]``, ``goto "http://…"``, ``back``, ``answer "42"``.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any

from envs.actions.parsing.vocabulary import NamedAction, canonical, read_named, shorten_name
from envs.types import Click, ErrorCode, Invalid, Select, Type
from envs.types.actions import Actions

MAX_DIGITS = 4
"""Maximum number of digits of an element's number: no page shows 10,000 elements."""

_FORM = re.compile(rf"(?P<name>[A-Za-z_]+) ?\[(?P<element>\d{{1,{MAX_DIGITS}}})\](?: (?P<text>\".*\"))?", re.DOTALL)
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

_WORDS = {
    "answer": "text",
    "close_tab": "tab",
    "forget": "key",
    "goto": "url",
    "new_tab": "url",
    "press": "key",
    "remember": "key",
    "scroll": "direction",
    "switch_tab": "tab",
    "terminate": "status",
    "wait": "seconds",
}
"""Argument that the word in brackets is, by action; for all others it is the element."""


def read_brackets(text: str, actions: Actions) -> NamedAction | None:
    """Read ``name [element] "text"``; return ``None`` if the text is not of this form."""
    match = _FORM.fullmatch(text)
    if match is None or (
        match["name"].lower() not in ("click", *_WITH_TEXT) and canonical(match["name"], actions) in actions
    ):
        return _read_wide(text, actions)
    name, element = match["name"].lower(), int(match["element"])
    if name == "click":
        return NamedAction(Click(element=element) if match["text"] is None else Invalid(reason="click takes no text"))
    if name not in _WITH_TEXT:
        return NamedAction(
            Invalid(
                reason=f"no such action: {shorten_name(name)}; there are {', '.join(actions)}",
                code=ErrorCode.UNKNOWN_ACTION,
            )
        )
    if match["text"] is None:
        return NamedAction(Invalid(reason=f'{name} needs a text: {name} [{element}] "…"'))
    value = _string(match["text"])
    return NamedAction(value if isinstance(value, Invalid) else _WITH_TEXT[name](element=element, text=value))


def read_webarena(text: str, actions: Actions) -> NamedAction | None:
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
            arguments = {_WORDS[canonical(name, actions)]: groups["word"]}
        return read_named(name, arguments, actions)
    return None


def _balanced(text: str | None) -> bool:
    """Return True if no bracket closes that was not opened.

    ``a] because it says [b`` is more than a text in brackets.
    """
    depths = accumulate({"[": 1, "]": -1}.get(char, 0) for char in text or "")
    return min(depths, default=0) >= 0


def _read_wide(text: str, actions: Actions) -> NamedAction | None:
    match = _WIDE.fullmatch(text)
    if match is None:
        return None
    name, word, quoted = canonical(match["name"], actions), match["word"], match["text"]
    if name not in actions or (word is None and quoted is None and name not in _ALONE):
        return None
    both = quoted is not None and name not in _KEYED
    # `press [Enter]` names a key, `press [3] "Enter"` an element; so with scroll.
    meaning = "element" if both else _WORDS.get(name, "element")
    if meaning == "element" and word is not None and word.isdigit() and len(word) > MAX_DIGITS:
        return None
    arguments: dict[str, Any] = {}
    if quoted is not None:
        if name not in _TEXTS:
            return NamedAction(Invalid(reason=f"{name} takes no text", code=ErrorCode.BAD_ACTION))
        value = _string(quoted)
        if isinstance(value, Invalid):
            return NamedAction(value)
        arguments[_TEXTS[name]] = value
    if word is not None:
        arguments[meaning] = word.removeprefix("direction=") if meaning == "direction" else word
    return read_named(match["name"], arguments, actions)


def _string(quoted: str) -> str | Invalid:
    try:
        return str(json.loads(quoted, strict=False))
    except ValueError as error:
        why = getattr(error, "msg", str(error))
        return Invalid(reason=f"the text is not a JSON string ({why}): {shorten_name(quoted)}")
