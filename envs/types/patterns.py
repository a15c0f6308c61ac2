r"""Regular expressions of rubrics, matched by RE2 in time linear in the text. Pure.

What Python's `re` and RE2 both accept is accepted, and means what it means in `re`: ``\w``, ``\d``,
``\s`` and ``\b`` are Unicode (RE2's own are ASCII), ``{,n}`` is ``{0,n}``. RE2 has no lookarounds
and no backreferences, since those have no linear bound: such a pattern is refused when the rubric
is read. Only two things differ: a letter that Unicode added after Python's tables is a letter, and
`search` raises `Undecided` where a flag within the pattern (``(?i:…)``) would have to fold the
Turkish ``ı`` and ``İ``.
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
"""Meaning of these escapes in `re`, as members of an RE2 class."""
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
"""Tokens that match no character, beside groups and repetitions."""

_TURKISH = "ıİ"
_AS_I = str.maketrans(_TURKISH, "ii")
"""`re` treats i, I, ı and İ as one letter when it ignores case; RE2 only the first two."""
_FLAGS = re.compile(r"(?:\(\?[a-zA-Z]+\))*")
"""Flags of a whole pattern, which `re` accepts only at its beginning."""

_MARKED_MEMORY = 64 << 20
"""Memory limit of a pattern for marked text, in bytes. It is longer than the rubric's own pattern,
for which RE2's 8 MiB are enough."""


class Undecided(Exception):
    """It is unknown if a text matches; the message gives the reason."""


def check_pattern(pattern: str) -> None:
    """Raise ``ValueError`` for a pattern that is malformed, too long, or has no linear bound."""
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
    """Return the first match in the texts (one line each), or ``None``.

    Raises:
        Undecided: A part of the pattern ignores case by a flag of its own, and a text has ``ı`` or
            ``İ``.
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
            if match := plain.search(sought):
                return text[match.start() : match.end()]
        elif match := marked.search(_marked(sought)):
            return text[match.start(1) // 3 : match.end(1) // 3]
    if doubtful:
        raise Undecided(f"{pattern!r} ignores case in a part, where 'ı' and 'İ' of {doubtful[:80]!r} are not known")
    return None


def _ignores_case_within(pattern: str) -> bool:
    groups = (token["group"] or "" for token in _TOKEN.finditer(pattern))
    return any(group.endswith(":") and "i" in group.partition("-")[0] for group in groups)


def _marked(text: str) -> str:
    """Put ``_`` around each word character of the text, and spaces around every other one.

    Between two characters there are then two marks, which are ASCII: RE2's ``\\b`` holds where that
    of `re` holds in the text itself.
    """
    return "".join(f"_{char}_" if char.isalnum() or char == "_" else f" {char} " for char in text)


@lru_cache(1024)
def _compiled(pattern: str, ignore_case: bool, empty: bool = False) -> tuple[Any, Any]:
    """Compile a pattern, and the one for marked text (``None`` without ``\\b`` and ``\\B``, and for
    an empty text).

    Raises:
        ValueError: A class that means something else to RE2.
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
    """Yield the parts of a pattern in RE2's syntax, with True for a character or a class of
    characters.

    Raises:
        ValueError: A class that means something else to RE2.
    """
    members, opened, begun = "", -1, -1  # of the class that is open
    for match in _TOKEN.finditer(pattern):
        token, inside = match[0], bool(members)
        if digits := match["short"] or match["long"]:
            token = f"\\x{{{digits}}}"
        elif inside and (token == r"\W" or (token == "[" and pattern.startswith("[:", match.start()))):
            raise ValueError(f"{pattern!r}: {token} within [ ] is not supported; write [^\\w…], or \\W outside of it")
        elif token in UNICODE:
            token = UNICODE[token] if inside else f"[{UNICODE[token]}]"
        token = OTHERS.get(token, token)
        if token == "[" and not inside:
            members, opened, begun = token, match.start(), match.end() + pattern.startswith("^", match.end())
        elif inside and token == "]" and match.start() > begun:
            listed = pattern[opened : match.end()]
            opening = pattern[opened:begun]
            # In the text ı and İ are i, which is to be listed where they are.
            dotted = ignore_case and bool(re.fullmatch(listed, "i", re.IGNORECASE)) != (opening == "[^")
            yield f"{opening}{'i' * dotted}{members.removeprefix(opening)}]", True
            members = ""
        elif inside:
            members += f"\\{token}" if token in ("]", "-") and match.start() == begun else token
        elif match["most"] is not None:
            yield f"{{0,{match['most']}}}", False
        elif ignore_case and (match[0] in _TURKISH or (digits and chr(int(digits, 16)) in _TURKISH)):
            yield "i", True
        else:
            yield token, match[0] not in _SYNTAX and not (match["times"] or match["group"])
    yield members, False
