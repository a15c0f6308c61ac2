"""A model turn's text to an action, and back. Reading never raises: what cannot be read is an ``Invalid`` action with its reason.

The form is WebArena's: ``click [3]``, ``type [1] "text"``, ``select [2] "label"``; the text is a JSON string. What precedes the last
``</think>`` is not read, nor is white space around the action.
"""

from __future__ import annotations

import json
import re

from envs.types import Action, Click, Invalid, Select, Type

_FORM = re.compile(r"(?P<name>[a-z_]+) \[(?P<element>\d{1,4})\](?: (?P<text>\".*\"))?", re.DOTALL)
_WITH_TEXT: dict[str, type[Type] | type[Select]] = {"type": Type, "select": Select}


def parse_action(response: str) -> Action:
    """The action that ``response`` names, or ``Invalid`` with why it is none."""
    written = response.rpartition("</think>")[2].strip()
    match = _FORM.fullmatch(written)
    if match is None:
        return Invalid(reason=f'not of the form click [1], type [1] "text" or select [1] "label": {_short(written)}')
    name, element = match["name"], int(match["element"])
    if name == "click":
        return Click(element=element) if match["text"] is None else Invalid(reason="click takes no text")
    if name not in _WITH_TEXT:
        return Invalid(reason=f"no such action: {_short(name)}; there are click, type and select")
    if match["text"] is None:
        return Invalid(reason=f'{name} needs a text: {name} [{element}] "…"')
    try:
        text = json.loads(match["text"], strict=False)
    except json.JSONDecodeError as error:
        return Invalid(reason=f"the text is not a JSON string ({error.msg}): {_short(match['text'])}")
    return _WITH_TEXT[name](element=element, text=text)


def format_action(action: Action) -> str:
    """The response that ``parse_action`` reads as ``action``; the inverse for every valid action."""
    match action:
        case Click():
            return f"click [{action.element}]"
        case Type() | Select():
            return f"{action.type} [{action.element}] {json.dumps(action.text, ensure_ascii=False)}"
        case Invalid():
            raise ValueError(f"an invalid action has no form: {action.reason}")


def _short(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
