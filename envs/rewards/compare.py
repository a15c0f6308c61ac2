"""Compares texts, numbers, values and addresses. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from urllib.parse import SplitResult, parse_qsl, urlsplit

from envs.types.patterns import search
from envs.types.rubrics import Compare, Match

_NUMBER = re.compile(
    r"(?<![\w.,])[-+−]?(?:[$€£¥]\s*)?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?!\w)(?!\.\d)(?!,\d)"
)


def normalize_text(text: str, case_sensitive: bool = False) -> str:
    """White space as single spaces, and without case unless it counts."""
    line = " ".join(text.split())
    return line if case_sensitive else line.casefold()


def comparable(text: str, match: Match, case_sensitive: bool = False) -> str:
    """A text as `find_text` compares it.

    A pattern is not folded, so the text it is searched in is not either (``ß`` would be ``ss``).
    """
    return normalize_text(text, case_sensitive or match is Match.REGEX)


def find_text(wanted: str, match: Match, lines: Iterable[str], case_sensitive: bool = False) -> str | None:
    """The first of the lines (each from `comparable`) that is, contains or matches the wanted text; ``None`` without one.

    Raises:
        Undecided: it hangs on what a pattern cannot say (`envs.types.patterns.search`).
    """
    if match is Match.REGEX:
        return search(wanted, lines, ignore_case=not case_sensitive)
    wanted = normalize_text(wanted, case_sensitive)
    if match is Match.EXACT:
        return next((line for line in lines if line == wanted), None)
    return next((wanted for line in lines if wanted in line), None)


def number_in(text: str) -> float | None:
    """The only number of a text, as ``1,234.5``, ``$12`` or ``-3e2``; ``None`` if it has none or several different ones.

    So an answer cannot be right by naming every number that might be.
    """
    numbers = set(_numbers(text))
    return numbers.pop() if len(numbers) == 1 else None


def _numbers(text: str) -> Iterator[float]:
    for match in _NUMBER.finditer(text):
        plain = re.sub(r"[$€£¥,\s]", "", match[0]).replace("−", "-")
        value = float(plain)
        if math.isfinite(value):
            yield value


def compare(value: object, op: Compare, wanted: object) -> bool:
    """True if a value and another one compare as ``op`` says.

    True is not 1 here. A value without an order is neither above nor below another one.
    """
    if op in (Compare.EQ, Compare.NE):
        return (isinstance(value, bool) == isinstance(wanted, bool) and value == wanted) == (op is Compare.EQ)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(wanted, int | float):
        return False
    if op is Compare.GT:
        return value > wanted
    if op is Compare.GTE:
        return value >= wanted
    return value < wanted if op is Compare.LT else value <= wanted


def same_page(wanted: str, match: str, url: str) -> bool:
    """True if an address matches that of a `UrlFact`."""
    if match == "regex":
        return search(wanted, [url]) is not None
    if match == "contains":
        return wanted in url
    parts = _split(url)
    if parts is None:
        return False
    relative = wanted.startswith("/")
    if match == "prefix":
        return (parts._replace(scheme="", netloc="").geturl() if relative else url).startswith(wanted)
    other = _split(wanted)
    if other is None:
        return False
    if relative:
        parts = parts._replace(scheme="", netloc="")
    return _key(parts) == _key(other)


def _split(url: str) -> SplitResult | None:
    """The parts of an address; ``None`` if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _key(parts: SplitResult) -> tuple[object, ...]:
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    return (parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), query, parts.fragment)
