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
    """Collapse white space to single spaces; fold the case unless it matters."""
    line = " ".join(text.split())
    return line if case_sensitive else line.casefold()


def comparable(text: str, match: Match, case_sensitive: bool = False) -> str:
    """Return a text in the form that `find_text` compares.

    The case of a pattern is not folded, so that of the searched text is not either (``ß`` would
    become ``ss``).
    """
    return normalize_text(text, case_sensitive or match is Match.REGEX)


def find_text(wanted: str, match: Match, lines: Iterable[str], case_sensitive: bool = False) -> str | None:
    """Return the first text in the lines that matches the wanted one; ``None`` without one.

    Args:
        lines: Lines from `comparable`.

    Raises:
        Undecided: The pattern cannot decide it (`envs.types.patterns.search`).
    """
    if match is Match.REGEX:
        return search(wanted, lines, ignore_case=not case_sensitive)
    wanted = normalize_text(wanted, case_sensitive)
    if match is Match.EXACT:
        return next((line for line in lines if line == wanted), None)
    return next((wanted for line in lines if wanted in line), None)


def number_in(text: str) -> float | None:
    """Return the only number in a text, such as ``1,234.5``, ``$12`` or ``-3e2``.

    It is ``None`` if the text has no number or several different ones, so an answer cannot be right
    by listing every possible number.
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
    """True if ``value op wanted`` holds.

    Unlike in Python, true does not equal 1. Only numbers have an order; any other comparison by
    size is false.
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
    """True if ``url`` matches the address of a `UrlFact`.

    Args:
        wanted: Address of the fact.
        match: Kind of match: ``exact``, ``prefix``, ``contains`` or ``regex``.
    """
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
    """Return the parts of an address; ``None`` if it is no valid address."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _key(parts: SplitResult) -> tuple[object, ...]:
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    return (parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), query, parts.fragment)
