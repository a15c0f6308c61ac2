"""Parsers of model text by name: those of the project, installed ones, and ``module:function``.

A parser is a function of the text that returns an action, a dictionary such as ``{"type": "click",
"element": 1}``, or ``None`` if the text names no action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envs.actions.parsing.objects import read_value
from envs.actions.parsing.turn import Parsed, parse
from envs.types import ConfigError, Invalid, Record, read_action
from envs.types.action_text import ActionFormat
from envs.types.actions import ACTIONS, Actions
from envs.types.extensions import Extensions

DEFAULT = "default"

Parser = Callable[[str], Any]
"""Function from a text to an action, a dictionary of one, or ``None``."""

Reader = Callable[[str, Actions], Parsed]
"""Function from a text and the actions that it may name to `Parsed`, as the rest of the code calls
it."""

PARSERS: Extensions[Any] = Extensions("action parser", "rollwright.parsers", {DEFAULT: parse})
"""Parsers by name."""


def as_parsed(parser: str | Parser) -> Reader:
    """Return a parser as the rest of the code calls it.

    Args:
        parser: A function, or its name: ``default``, an entry point of ``rollwright.parsers``, or
            ``module:function``.

    Raises:
        ConfigError: There is no such parser, or it cannot be imported in this process.
    """
    if parser == DEFAULT:
        return parse
    function: Any = PARSERS.find(parser) if isinstance(parser, str) else parser
    if not callable(function):
        raise ConfigError(f"action parser {parser!r} is {function!r}; expected a function of a text")
    name = parser if isinstance(parser, str) else getattr(parser, "__qualname__", "the parser")

    def read(text: str, actions: Actions = ACTIONS) -> Parsed:
        try:
            value = function(text)
        except Exception as error:
            raise ConfigError(f"action parser {name} failed: {type(error).__name__}: {error}") from error
        if isinstance(value, Parsed):
            return value
        if value is None:
            return Parsed(Invalid(reason="the text names no action"), ActionFormat.NONE)
        if isinstance(value, Mapping):
            given = dict(value)
            action = read_action(given, actions) if "type" in given else read_value(given, actions)
            return Parsed(action, ActionFormat.CUSTOM)
        if isinstance(value, Record) and getattr(value, "type", None) in {*actions, "invalid"}:
            return Parsed(value, ActionFormat.CUSTOM)  # type: ignore[arg-type]
        raise ConfigError(f"action parser {name} gave {value!r}; expected an action, a dictionary, or None")

    return read


def read_turn(action: object, reader: Reader) -> tuple[Parsed, str]:
    """Return an action that was given in any form, and the text that it was read from.

    Args:
        action: An action, a dictionary, or a model's text.
        reader: Reader of texts.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(action, str):
        return reader(action, ACTIONS), action
    if isinstance(action, Mapping):
        given = dict(action)
        known = given.get("type") in ACTIONS and "action" not in given
        return Parsed(read_action(given) if known else read_value(given, ACTIONS), ActionFormat.JSON), ""
    if isinstance(action, Record) and hasattr(action, "type"):
        return Parsed(action, ActionFormat.JSON), ""  # type: ignore[arg-type]
    raise ConfigError(
        f"{action!r} is no action; give one of envs (Click(element=1)), a dictionary, or the text of a model"
    )
