"""Calls with literal arguments in a text, found as BrowserGym's own parser does, and never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn


class MappingError(ValueError):
    """A text that is no action of BrowserGym's, or one without a counterpart; says why."""


MAX_PARSES = 2000
"""Parses of one text in search of calls: one for each closing bracket of a call."""

CALL = re.compile(r"#[^\n]*|[A-Za-z_]\w*\(")


def chat_message(call: ast.Call) -> tuple[str, str] | None:
    """Return role and text of the chat message that a call sends; ``None`` if it sends none."""
    role = {"send_msg_to_user": "assistant", "report_infeasible": "infeasible"}.get(name_of(call))
    if role is None:
        return None
    (text,) = (ast.literal_eval(argument) for argument in [*call.args, *(word.value for word in call.keywords)])
    return role, text


def name_of(call: ast.Call) -> str:
    """Return the name of the function that is called."""
    assert isinstance(call.func, ast.Name)
    return call.func.id


def string(value: Any) -> str:
    """Return an argument that has to be a text."""
    if not isinstance(value, str):
        raise MappingError(f"expected a string, got {value!r}")
    return value


def key_name(chord: str) -> str:
    """Return our name of a key or chord."""
    return string(chord).replace("ControlOrMeta", "Control")


def keys(modifiers: Sequence[str]) -> Any:
    """Return our names of modifier keys."""
    return tuple(key_name(modifier) for modifier in modifiers)


def no_counterpart(name: str, instead: str) -> NoReturn:
    """Refuse an action that has no counterpart."""
    raise MappingError(f"{name} has no counterpart in this environment; use {instead}")


def find_calls(text: str) -> Iterator[ast.Call]:
    """Yield the calls with literal arguments in a text, in order; comments are left out."""
    position, parses = 0, 0
    while (match := CALL.search(text, position)) is not None:
        position = match.end()
        if match[0].startswith("#"):
            continue
        end = text.find(")", match.end())
        while end >= 0 and parses < MAX_PARSES:
            parses += 1
            if (call := _call(text[match.start() : end + 1])) is not None:
                yield call
                position = end + 1
                break
            end = text.find(")", end + 1)


def _call(code: str) -> ast.Call | None:
    """Return the call that the code is, if all its arguments are literals."""
    try:
        parsed = ast.parse(code, mode="eval").body
        if not (isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name)):
            return None
        for argument in [*parsed.args, *(word.value for word in parsed.keywords)]:
            ast.literal_eval(argument)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return parsed if all(word.arg for word in parsed.keywords) else None
