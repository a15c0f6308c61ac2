"""The forms of a model turn, and the order in which they are tried."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from envs.types import Action, ErrorCode, Invalid
from envs.types.actions import ACTIONS, Actions
from envs.types.text import writable
from training.policy.parsing.brackets import read_brackets, read_webarena
from training.policy.parsing.calls import read_call
from training.policy.parsing.objects import last_action_object, read_object
from training.policy.parsing.vocabulary import Reading, short

_LANGUAGE = re.compile(r"[a-zA-Z_]*\n")
_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_PREFIX = re.compile(r"(?:[Nn]ext )?[Aa]ction\s*:\s*")


class Form(StrEnum):
    """How a turn was read; appears as it is in metrics. See the package's table."""

    BRACKETS = "brackets"
    WEBARENA = "webarena"
    JSON = "json"
    TOOL_CALL = "tool_call"
    FIRST_TOOL_CALL = "first_tool_call"
    CALL = "call"
    TAG = "tag"
    FENCE = "fence"
    PROSE = "prose"
    LAST_LINE = "last_line"
    NONE = "none"


STRICT = frozenset({Form.BRACKETS, Form.JSON, Form.TOOL_CALL})
"""Forms that policies are asked for; all others but ``none`` are fallbacks."""


@dataclass(frozen=True)
class Parsed:
    """What a model turn says."""

    action: Action
    form: Form
    renamed: tuple[str, ...] = ()
    """Names of other schemes that were translated, e.g. ``left_click``, ``coordinate``."""


def parse_action(response: str, actions: Actions = ACTIONS) -> Action:
    """The action that ``response`` names, or ``Invalid`` with why it is none."""
    return parse(response, actions).action


def parse(response: str, actions: Actions = ACTIONS) -> Parsed:
    """The action of ``actions`` that ``response`` names, or ``Invalid``, with how it was read."""
    written = writable(response).rpartition("</think>")[2].strip()
    if not written.startswith("<think>"):
        for form, read in _READERS:
            reading = read(written, actions)
            if reading is not None:
                return Parsed(reading.action, form, reading.renamed)
    return Parsed(_unread(written, actions), Form.NONE)


def _tool_call(text: str, actions: Actions) -> Reading | None:
    return _first_call(text, actions) if text.count(_CALL_OPEN) == 1 else None


def _first_call(text: str, actions: Actions) -> Reading | None:
    # The closing tag is optional: some engines stop there and leave it out.
    _, opened, rest = text.partition(_CALL_OPEN)
    return read_object(rest.partition(_CALL_CLOSE)[0].strip(), actions) if opened else None


def _tag(text: str, actions: Actions) -> Reading | None:
    before, closed, _ = text.rpartition("</action>")
    _, opened, inside = before.rpartition("<action>")
    return _any_of(inside.strip(), actions) if opened and closed else None


def _fence(text: str, actions: Actions) -> Reading | None:
    parts = text.split("```")
    if len(parts) < 3:
        return None
    # Outside, inside, outside, …: the last inside that is closed.
    block = parts[-2] if len(parts) % 2 else parts[-3]
    language = _LANGUAGE.match(block)
    return _any_of(block[language.end() :].strip() if language else block.strip(), actions)


def _any_of(text: str, actions: Actions) -> Reading | None:
    return (
        read_brackets(text, actions)
        or read_webarena(text, actions)
        or _whole_object(text, actions)
        or read_call(text, actions)
    )


def _whole_object(text: str, actions: Actions) -> Reading | None:
    return read_object(text, actions) if text.startswith("{") and text.endswith("}") else None


def _json(text: str, actions: Actions) -> Reading | None:
    reading = _whole_object(text, actions)
    # What only begins and ends like JSON may still hold some: `{a} … {"action": …}`.
    broken = reading is not None and isinstance(reading.action, Invalid) and reading.action.code == ErrorCode.BAD_JSON
    return None if broken else reading


def _last_line(text: str, actions: Actions) -> Reading | None:
    line = _PREFIX.sub("", text.rpartition("\n")[2].strip(), count=1).strip("`* ")
    return read_brackets(line, actions) or read_webarena(line, actions) or read_call(line, actions)


_READERS: tuple[tuple[Form, Callable[[str, Actions], Reading | None]], ...] = (
    (Form.BRACKETS, read_brackets),
    (Form.WEBARENA, read_webarena),
    (Form.JSON, _json),
    (Form.TOOL_CALL, _tool_call),
    (Form.FIRST_TOOL_CALL, _first_call),
    (Form.CALL, read_call),
    (Form.TAG, _tag),
    (Form.FENCE, _fence),
    (Form.PROSE, last_action_object),
    (Form.LAST_LINE, _last_line),
)


def _unread(written: str, actions: Actions) -> Invalid:
    if written.startswith("<think>"):
        return Invalid(reason="the thought has no end; close it with </think> and write an action")
    if written.startswith("{"):
        reading = read_object(written, actions)
        if reading is not None and isinstance(reading.action, Invalid):
            return reading.action
    return Invalid(reason=f'not of the form click [1], type [1] "text" or select [1] "label": {short(written)}')
