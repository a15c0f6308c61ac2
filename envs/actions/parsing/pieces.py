"""Finds the whole actions of a turn that begin a line or are enclosed, to tell an action from what is quoted after it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

LABEL = r"[*`]*(?:next[ ])?action[ *]*[:：][ *]*"

LINE = re.compile(
    rf"(?:^|</think>)\s*(?:<action>|<tool_call>|```(?:[a-z_]*\n)?)?\s*(?:{LABEL})?", re.MULTILINE | re.IGNORECASE
)
"""What stands before a piece that is read as a whole: the beginning of a line, perhaps a tag or a fence, perhaps a label."""

_WITHIN = re.compile(
    r"""^(?:(?!\b(?:says|said|tells|told|asks|wants|shows|reads|contains|answers|answered)\b)[^"'“”‘’「«:：<>`{}()\[\]\n])+
    (?P<open><action>|<tool_call>|```(?:[a-z_]*\n)?)\s*""",
    re.MULTILINE | re.VERBOSE,
)
"""What stands before an enclosed piece within a line: words that report nothing, without quotation marks."""
_CLOSER = {"<action>": "</action>", "<tool_call>": "</tool_call>"}

OBSERVED = re.compile(r"[ \t*]*(?:</?tool_response>|(?:observation|user|human|assistant)[ *]*[:：])", re.IGNORECASE)
"""How an invented next turn begins."""

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
"""What may stand between two actions that are done one after the other."""

_OPENER = re.compile(r"(?:`{3}[a-z_]*|<action>|<tool_call>|[ \n])+\Z")
_COLON = re.compile(r"[:：](?:\s|`{3}[a-z_]*|<action>|<tool_call>)*\Z")

_FIRST_TRIES, _LAST_TRIES = 32, 224
"""Lines that are tried from either end: a bound for hostile turns."""

IsAction = Callable[[Any], bool]
"""Of a line or a JSON value: it is read as an action that can be done."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A whole action that begins a line, or is enclosed within one."""

    start: int
    end: int
    strong: bool
    """It is no quotation by its looks: no colon stands before it, or an invented next turn follows it."""


def separate_action(text: str, start: int, is_action: IsAction, *, words_follow: bool) -> bool:
    """Whether another action stands before the one at ``start``, with words between: one of the two is quoted.

    Which of them cannot be known, unless the first looks like a quotation.

    Args:
        words_follow: Words follow the one at ``start``: then it may be quoted also where none stand before it.
    """
    pieces = list(whole_actions(_OPENER.sub("", text[:start]), is_action))
    return any(
        piece.strong and (words_follow or not joined(text, [*pieces[number:], Piece(start, start, True)]))
        for number, piece in enumerate(pieces)
    )


def joined(text: str, pieces: list[Piece]) -> bool:
    """Nothing but tags, fences, labels and space stands between actions; one that looks like a quotation counts as words."""
    return all(not _BETWEEN.sub("", text[one.end : other.start]) and other.strong for one, other in pairwise(pieces))


def only_actions(text: str, is_action: IsAction) -> bool:
    """A text is whole actions and nothing else."""
    pieces = list(whole_actions(text, is_action))
    edges = [Piece(0, 0, True), *pieces, Piece(len(text), len(text), True)]
    return bool(pieces) and joined(text, edges)


def whole_actions(text: str, is_action: IsAction) -> Iterator[Piece]:
    """Actions that begin a line, perhaps in a tag, a fence or after a label, or that a tag or fence encloses after plain words.

    JSON within a sentence is none, nor what stands after a colon, a quotation mark or a word such as ``says``. One without tag, fence or label may
    end within its line only in the first and in the last line of the text.
    """
    starts = sorted([*LINE.finditer(text), *_WITHIN.finditer(text)], key=re.Match.end)
    if len(starts) > _FIRST_TRIES + _LAST_TRIES:
        starts = [*starts[:_FIRST_TRIES], *starts[-_LAST_TRIES:]]
    last = 0
    for found in starts:
        if found.start() < last or found.end() < last:
            continue
        begin = found.end()
        ticked = text[begin : begin + 1] == "`" != text[begin + 1 : begin + 2]
        enclosed = ticked or found.group().strip() not in ("", "</think>")
        end = _end(text, begin + ticked, is_action)
        if end is None:
            continue
        within = found.re is _WITHIN
        if within and not _is_closed(text, found, end):
            continue
        rest, line_ends, _ = text[end:].partition("\n")
        if (
            line_ends
            and not enclosed
            and text[: found.end()].strip()
            and text[found.end()] not in "{["
            and _BETWEEN.sub("", rest)
        ):
            continue
        last = end
        quoted = _COLON.search(text, max(0, found.start() - 100), found.start()) is not None
        yield Piece(
            found.start("open") if within else found.start(),
            end,
            not quoted or _OBSERVED_NEXT.match(text, end) is not None,
        )


def _is_closed(text: str, opened: re.Match[str], end: int) -> bool:
    """A piece that ends there is all that stands in its tag or fence, which is in no other fence."""
    rest, closer = text[end:].lstrip(), _CLOSER.get(opened["open"], "```")
    return (not rest or rest.startswith(closer)) and text.count("```", 0, opened.start("open")) % 2 == 0


def _end(text: str, start: int, is_action: IsAction) -> int | None:
    """Where the action that begins at ``start`` ends; ``None`` if none does."""
    if text[start : start + 1] in ("{", "["):
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except (ValueError, RecursionError):
            return None
        return end if is_action(value) else None
    shape = _SHAPE.match(text, start)
    if shape is not None and is_action(shape.group()):
        return shape.end()
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    tag = _TAGS.search(text, start, end)
    end = tag.start() if tag is not None else end
    return end if is_action(text[start:end].strip("`*. \t")) else None
