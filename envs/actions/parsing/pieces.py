"""Finds the whole actions of a turn, to tell an action from a quotation after it.

A whole action begins a line or is enclosed in a tag or fence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from envs.actions.parsing.line_forms import read_line
from envs.actions.parsing.objects import read_value
from envs.types import Invalid
from envs.types.actions import Actions

LABEL = r"[*`]*(?:next[ ])?action[ *]*[:：][ *]*"

LINE = re.compile(
    rf"(?:^|</think>)\s*(?:<action>|<tool_call>|```(?:[a-z_]*\n)?)?\s*(?:{LABEL})?", re.MULTILINE | re.IGNORECASE
)
"""Text before a piece that is read as a whole: the beginning of a line, perhaps a tag or a fence,
perhaps a label."""

_WITHIN = re.compile(
    r"""^(?:(?!\b(?:says|said|tells|told|asks|wants|shows|reads|contains|answers|answered)\b)[^"'“”‘’「«:：<>`{}()\[\]\n])+
    (?P<open><action>|<tool_call>|```(?:[a-z_]*\n)?)\s*""",
    re.MULTILINE | re.VERBOSE,
)
"""Text before an enclosed piece within a line: words that report nothing, without quotation marks.
"""
_CLOSER = {"<action>": "</action>", "<tool_call>": "</tool_call>"}

OBSERVED = re.compile(r"[ \t*]*(?:</?tool_response>|(?:observation|user|human|assistant)[ *]*[:：])", re.IGNORECASE)
"""Beginning of an invented next turn."""

_OBSERVED_NEXT = re.compile(rf"(?:</(?:action|tool_call)>|```|\s)*^{OBSERVED.pattern}", re.IGNORECASE | re.MULTILINE)

_SHAPE = re.compile(
    r"""[A-Za-z_.][A-Za-z_.0-9]{0,39}(?:[ ]?\[[^\[\]"\n]{1,200}\](?:(?:[ ]?\[[^\[\]\n]{0,2000}\]){1,2}|[ ]"(?:[^"\\]|\\.)*")?
    |(?=\s)
    |\((?:[^"'()]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\([^"'()]*\))*+\))""",
    re.DOTALL | re.VERBOSE,
)
"""An action in brackets, a call or a word alone, whatever follows it."""

_TAGS = re.compile(r"</?(?:action|tool_call|think)>|```")
_BETWEEN = re.compile(rf"</?(?:action|tool_call)>|```[a-z_]*|{LABEL}|[\s*`.,;]", re.IGNORECASE)
"""Text that may stand between two actions that are done one after the other."""

_OPENER = re.compile(r"(?:`{3}[a-z_]*|<action>|<tool_call>|[ \n])+\Z")
_COLON = re.compile(r"[:：](?:\s|`{3}[a-z_]*|<action>|<tool_call>)*\Z")

_FIRST_TRIES, _LAST_TRIES = 32, 224
"""Numbers of lines that are tried at the two ends: a bound for hostile turns."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole action that begins a line, or is enclosed within one."""

    start: int
    end: int
    unquoted: bool
    """True when it does not look like a quotation: no colon stands before it, or an invented next
    turn follows it."""


def is_action(piece: Any, actions: Actions) -> bool:
    """Return True if a line or a JSON value is an action that can be done."""
    if not isinstance(piece, str):
        return not isinstance(read_value(piece, actions), Invalid)
    reading = read_line(piece, actions)
    return reading is not None and not isinstance(reading[1], Invalid)


def separate_action(text: str, start: int, actions: Actions, *, words_follow: bool) -> bool:
    """Return True if another action stands before the one at ``start``, with words between.

    One of the two is quoted then. Which one cannot be known, unless the first looks like a
    quotation.

    Args:
        words_follow: True if words follow the action at ``start``. Then it may be quoted even if no
            words stand before it.
    """
    pieces = list(_whole_actions(_OPENER.sub("", text[:start]), actions))
    return any(
        piece.unquoted and (words_follow or not joined(text, [*pieces[number:], Piece(start, start, True)]))
        for number, piece in enumerate(pieces)
    )


def joined(text: str, pieces: list[Piece]) -> bool:
    """Return True if only tags, fences, labels and space stand between actions.

    An action that looks like a quotation counts as words.
    """
    return all(not _BETWEEN.sub("", text[one.end : other.start]) and other.unquoted for one, other in pairwise(pieces))


def only_actions(text: str, actions: Actions) -> bool:
    """Return True if a text is whole actions and nothing else."""
    pieces = list(_whole_actions(text, actions))
    edges = [Piece(0, 0, True), *pieces, Piece(len(text), len(text), True)]
    return bool(pieces) and joined(text, edges)


def _whole_actions(text: str, actions: Actions) -> Iterator[Piece]:
    """Yield the actions that begin a line, or that a tag or fence encloses after plain words.

    At the beginning of a line they may be in a tag, in a fence or after a label. JSON within a
    sentence is no such action, nor is one after a colon, a quotation mark or a word such as
    ``says``. An action without tag, fence or label may end within its line only in the first and in
    the last line of the text.
    """
    openings = sorted([*LINE.finditer(text), *_WITHIN.finditer(text)], key=re.Match.end)
    if len(openings) > _FIRST_TRIES + _LAST_TRIES:
        openings = [*openings[:_FIRST_TRIES], *openings[-_LAST_TRIES:]]
    last = 0
    for opening in openings:
        if opening.start() < last or opening.end() < last:
            continue
        begin = opening.end()
        ticked = text[begin : begin + 1] == "`" != text[begin + 1 : begin + 2]
        enclosed = ticked or opening.group().strip() not in ("", "</think>")
        end = _end(text, begin + ticked, actions)
        if end is None:
            continue
        within = opening.re is _WITHIN
        if within and not _is_closed(text, opening, end):
            continue
        rest, line_ends, _ = text[end:].partition("\n")
        if (
            line_ends
            and not enclosed
            and text[: opening.end()].strip()
            and text[opening.end()] not in "{["
            and _BETWEEN.sub("", rest)
        ):
            continue
        last = end
        quoted = _COLON.search(text, max(0, opening.start() - 100), opening.start()) is not None
        yield Piece(
            opening.start("open") if within else opening.start(),
            end,
            not quoted or _OBSERVED_NEXT.match(text, end) is not None,
        )


def _is_closed(text: str, opened: re.Match[str], end: int) -> bool:
    """Return True if a piece that ends at ``end`` is all content of its tag or fence.

    The tag or fence may not be in another fence.
    """
    rest, closer = text[end:].lstrip(), _CLOSER.get(opened["open"], "```")
    return (not rest or rest.startswith(closer)) and text.count("```", 0, opened.start("open")) % 2 == 0


def _end(text: str, start: int, actions: Actions) -> int | None:
    """Return the end of the action that begins at ``start``; ``None`` if there is none."""
    if text[start : start + 1] in ("{", "["):
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except (ValueError, RecursionError):
            return None
        return end if is_action(value, actions) else None
    shape = _SHAPE.match(text, start)
    if shape is not None and is_action(shape.group(), actions):
        return shape.end()
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    tag = _TAGS.search(text, start, end)
    end = tag.start() if tag is not None else end
    return end if is_action(text[start:end].strip("`*. \t"), actions) else None
