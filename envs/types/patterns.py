r"""Regular expressions of rubrics, matched by RE2 in time linear in the text. Pure.

What Python's `re` and RE2 both accept is accepted, and means what it means in `re`: ``\w``, ``\d``, ``\s`` and ``\b`` are Unicode
(RE2's own are ASCII), ``{,n}`` is ``{0,n}``. RE2 has no lookarounds and no backreferences, since those have no linear bound: such a
pattern is refused when the rubric is read. Only two things differ: a letter that Unicode added after Python's tables is a letter, and
`search` raises `Undecided` where a flag within the pattern (``(?i:…)``) would have to fold the Turkish ``ı`` and ``İ``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]

MAX_PATTERN = 1000
"""Characters of a pattern."""

_SPACES = r"\t-\r\x1c-\x20\x85\p{Z}"
_NO_SPACES = (
    r"\x00-\x08\x0e-\x1b\x21-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}"
)
UNICODE = {r"\w": r"\p{L}\p{N}_", r"\d": r"\p{Nd}", r"\s": _SPACES, r"\S": _NO_SPACES}
"""What these are in `re`, as members of a class of RE2's."""
OTHERS = {r"\W": r"[^\p{L}\p{N}_]", r"\D": r"\P{Nd}", r"\Z": r"\z"}
BOUNDARIES = (r"\b", r"\B")

_TOKEN = re.compile(
    r"""\\u(?P<short>[0-9a-fA-F]{4}) | \\U(?P<long>[0-9a-fA-F]{8})
    | \{,(?P<most>\d*)\} | (?P<times>\{\d+(?:,\d*)?\})
    | (?P<group>\((?:\?(?:P<\w+>|[a-zA-Z-]*[:)]))?)
    | \\x[0-9a-fA-F]{2} | \\[0-7]{1,3} | \\?.""",
    re.DOTALL | re.VERBOSE,
)
_SYNTAX = frozenset({"^", "$", "|", ")", "*", "+", "?", r"\A", r"\Z", *BOUNDARIES})
"""What stands for no character, beside groups and numbers of times."""

_TURKISH = "ıİ"
_AS_I = str.maketrans(_TURKISH, "ii")
"""With case ignored `re` takes i, I, ı and İ for one letter, and RE2 only the first two."""
_FLAGS = re.compile(r"(?:\(\?[a-zA-Z]+\))*")
"""Those of a whole pattern, which `re` only takes at its beginning."""

_MARKED_MEMORY = 64 << 20
"""Bytes that a pattern for marked text may take: it is longer than what a rubric writes, which RE2 gives 8 MiB."""


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


def search(pattern: str, texts: Iterable[str], *, ignore_case: bool = False) -> str | None:
    """The first match in the texts, each of one line; ``None`` if there is none in any of them.

    Raises:
        Undecided: a part of the pattern ignores case by a flag of its own, and a text has ``ı`` or ``İ``.
    """
    flags = _FLAGS.match(pattern)
    ignore_case = ignore_case or (flags is not None and "i" in flags[0])
    doubtful = ""
    for text in texts:
        sought = text.encode(errors="replace").decode()  # half a surrogate pair has no UTF-8
        if sought.translate(_AS_I) != sought:
            if ignore_case:
                sought = sought.translate(_AS_I)
            elif _ignores_case_within(pattern):
                doubtful = text
                continue
        plain, marked = _compiled(pattern, ignore_case, not sought)
        if marked is None or sought.isascii():
            if found := plain.search(sought):
                return text[found.start() : found.end()]
        elif found := marked.search(_marked(sought)):
            return text[found.start(1) // 3 : found.end(1) // 3]
    if doubtful:
        raise Undecided(f"{pattern!r} ignores case in a part, where 'ı' and 'İ' of {doubtful[:80]!r} are not known")
    return None


def _ignores_case_within(pattern: str) -> bool:
    groups = (found["group"] or "" for found in _TOKEN.finditer(pattern))
    return any(group.endswith(":") and "i" in group.partition("-")[0] for group in groups)


def _marked(text: str) -> str:
    """The text with ``_`` around each character of a word and spaces around each other one.

    Between two characters there are then two marks, which are ASCII: RE2's ``\\b`` holds where that of `re` holds in the text itself.
    """
    return "".join(f"_{each}_" if each.isalnum() or each == "_" else f" {each} " for each in text)


@lru_cache(1024)
def _compiled(pattern: str, ignore_case: bool, empty: bool = False) -> tuple[Any, Any]:
    """The pattern, and the one for marked text; ``None`` if it has no ``\\b`` or ``\\B``, or is for a text that is empty.

    Raises:
        ValueError: a class that means something else to RE2.
    """
    options = re2.Options()
    options.case_sensitive, options.never_capture, options.log_errors = not ignore_case, True, False
    pieces = list(_pieces(pattern, ignore_case))
    if empty:  # where neither of them holds in `re`
        pieces = [(r"\b" if piece in BOUNDARIES else piece, character) for piece, character in pieces]
    plain = re2.compile("".join(piece for piece, _ in pieces), options)
    if empty or not any(piece in BOUNDARIES for piece, _ in pieces):
        return plain, None
    options.never_capture, options.max_mem = False, _MARKED_MEMORY
    marked = "".join(f"(?:[_ ]{piece}[_ ])" if character else piece for piece, character in pieces)
    # Whole characters go before the match, so that it cannot begin at a mark.
    return plain, re2.compile(rf"\A(?s:...)*?({marked})", options)


def _pieces(pattern: str, ignore_case: bool) -> Iterator[tuple[str, bool]]:
    """The parts of a pattern as RE2 writes them, and whether each is a character or a class of characters.

    Raises:
        ValueError: a class that means something else to RE2.
    """
    members, opened, begun = "", -1, -1  # of the class that is open
    for found in _TOKEN.finditer(pattern):
        token, inside = found[0], bool(members)
        if digits := found["short"] or found["long"]:
            token = f"\\x{{{digits}}}"
        elif inside and (token == r"\W" or (token == "[" and pattern.startswith("[:", found.start()))):
            raise ValueError(f"{pattern!r}: {token} within [ ] is not supported; write [^\\w…], or \\W outside of it")
        elif token in UNICODE:
            token = UNICODE[token] if inside else f"[{UNICODE[token]}]"
        token = OTHERS.get(token, token)
        if token == "[" and not inside:
            members, opened, begun = token, found.start(), found.end() + pattern.startswith("^", found.end())
        elif inside and token == "]" and found.start() > begun:
            listed = pattern[opened : found.end()]
            opening = pattern[opened:begun]
            # In the text ı and İ are i, which is to be listed where they are.
            dotted = ignore_case and bool(re.fullmatch(listed, "i", re.IGNORECASE)) != (opening == "[^")
            yield f"{opening}{'i' * dotted}{members.removeprefix(opening)}]", True
            members = ""
        elif inside:
            members += f"\\{token}" if token in ("]", "-") and found.start() == begun else token
        elif found["most"] is not None:
            yield f"{{0,{found['most']}}}", False
        elif ignore_case and (found[0] in _TURKISH or (digits and chr(int(digits, 16)) in _TURKISH)):
            yield "i", True
        else:
            yield token, found[0] not in _SYNTAX and not (found["times"] or found["group"])
    yield members, False
