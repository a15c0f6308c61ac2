"""Regular expressions of rubrics, matched by RE2 in time linear in the text. Pure.

What Python's `re` and RE2 both accept is accepted, and means what it means in `re`: ``\\w`` and ``\\d`` are Unicode (RE2's own are ASCII),
``{,n}`` is ``{0,n}``. RE2 has no lookarounds and no backreferences, since those have no linear bound: such a pattern is refused when the
rubric is read. RE2's ``\\b`` knows ASCII letters only; where that could make a difference, `search` raises `Undecided` and never guesses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]

MAX_PATTERN = 1000
"""Characters of a pattern."""

UNICODE = {r"\w": r"\p{L}\p{N}_", r"\d": r"\p{Nd}"}
"""What these are in `re`, as members of a class of RE2's."""
OTHERS = {r"\W": r"[^\p{L}\p{N}_]", r"\D": r"\P{Nd}", r"\Z": r"\z"}
BOUNDARIES = (r"\b", r"\B")

_TOKEN = re.compile(r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\{,(\d*)\}|\\?.", re.DOTALL)
_LETTER = re.compile(r"[^\W\x00-\x7f]")
"""A character of a word that is not ASCII."""


class Undecided(Exception):
    """It cannot be said whether a text matches; the message says why."""


def check_pattern(pattern: str) -> None:
    """Raises ``ValueError`` if rubrics may not use the pattern: it is malformed, too long, or has no linear bound."""
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern of {len(pattern)} characters; allowed: {MAX_PATTERN}")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    try:
        _compiled(pattern, False)
    except re2.error as error:
        cause = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise ValueError(
            f"{pattern!r} is not supported: {cause}. Write it without lookarounds, backreferences and possessive repetitions; "
            "two facts, one of them negated, can say what a lookahead says"
        ) from None
    if _LETTER.search(pattern) and _translated(pattern)[1] != _translated(pattern)[0]:
        raise ValueError(
            f"{pattern!r}: \\b and \\B know ASCII letters only; write (^|\\W)été(\\W|$) in place of \\bété\\b"
        )


def search(pattern: str, texts: Iterable[str], *, ignore_case: bool = False) -> str | None:
    """The first match in the texts, each of one line; ``None`` if there is none in any of them.

    Raises:
        Undecided: it hangs on a ``\\b`` beside a letter that is not ASCII.
    """
    exact, loose = _compiled(pattern, ignore_case)
    doubtful = ""
    for text in texts:
        text = text.encode(errors="replace").decode()  # half a surrogate pair has no UTF-8
        found = exact.search(text)
        if loose is None or not _LETTER.search(text):
            if found:
                return str(found[0])
        elif found and not _LETTER.search(text[max(0, found.start() - 1) : found.end() + 1]):
            return str(found[0])
        elif loose.search(text):
            doubtful = text
    if doubtful:
        raise Undecided(
            f"{pattern!r} has \\b or \\B, which know ASCII letters only, and is searched in {doubtful[:80]!r}"
        )
    return None


@lru_cache(1024)
def _compiled(pattern: str, ignore_case: bool) -> tuple[Any, Any]:
    """The pattern, and without its ``\\b`` and ``\\B`` (``None`` if it has none)."""
    options = re2.Options()
    options.case_sensitive, options.never_capture, options.log_errors = not ignore_case, True, False
    exact, loose = _translated(pattern)
    return re2.compile(exact, options), None if loose == exact else re2.compile(loose, options)


def _translated(pattern: str) -> tuple[str, str]:
    """The pattern as RE2 writes it; and that without ``\\b`` and ``\\B``, which matches wherever it does.

    Raises:
        ValueError: a class that means something else to RE2.
    """
    exact, loose, inside, begun = list[str](), list[str](), False, -1
    for found in _TOKEN.finditer(pattern):
        token, (short, long, most) = found[0], found.groups()
        if short or long:
            token = f"\\x{{{short or long}}}"
        elif most is not None and not inside:
            token = f"{{0,{most}}}"
        elif inside and (token == r"\W" or (token == "[" and pattern.startswith("[:", found.start()))):
            raise ValueError(f"{pattern!r}: {token} within [ ] is not supported; write [^\\w…], or \\W outside of it")
        elif token in UNICODE:
            token = UNICODE[token] if inside else f"[{UNICODE[token]}]"
        elif token in OTHERS:
            token = OTHERS[token]
        elif token == "[" and not inside:
            inside, begun = True, found.end() + pattern.startswith("^", found.end())
        elif token == "]" and found.start() > begun:
            inside = False
        exact.append(token)
        loose.append("(?:)" if token in BOUNDARIES and not inside else token)
    return "".join(exact), "".join(loose)
