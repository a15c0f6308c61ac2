"""WebArena's comparisons. Pure; each is a yes or no."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

from envs.types.webarena import INEQUALITY

OR = " |OR| "
"""Separator of alternatives."""

TOLERANCE = 1e-8
"""VisualWebArena's, of bounds."""

_TOKEN = re.compile(r"\w+(?:[.,:/'-]\w+)*|\S")
"""Words and numbers (``3.5``, ``10:30``), and each other sign alone. The benchmark uses NLTK's
tokenizer for this one purpose."""


def clean(answer: str) -> str:
    """Strip outer space and one pair of outer quotes, and lower the case."""
    answer = answer.strip()
    if len(answer) > 1 and answer[0] == answer[-1] and answer[0] in "'\"":
        answer = answer[1:-1]
    return answer.lower()


def exact_match(reference: str, text: str) -> bool:
    """Equal after cleaning."""
    return clean(reference) == clean(text)


def must_include(reference: str, text: str, *, alone: bool = False, words: bool = False) -> bool:
    """The text contains the reference.

    Args:
        alone: It is the only one of its list. A single sign must then be a word of the text: ``0``
            is not in ``10``.
        words: So must any single word (VisualWebArena).
    """
    needle, hay = clean(reference), clean(text)
    if (alone and len(needle) == 1) or (words and len(_TOKEN.findall(needle)) == 1):
        return needle in _TOKEN.findall(hay)
    return needle in hay


def includes_one(references: str, text: str, *, alone: bool = False, words: bool = False) -> bool:
    """One of the alternatives ``a |OR| b`` is in the text."""
    return any(must_include(one, text, alone=alone, words=words) for one in references.split(OR))


def has_one_of(references: Sequence[str], text: str) -> bool:
    """One of the references is a part of the text (VisualWebArena)."""
    return any(clean(one) in clean(text) for one in references)


def within(bounds: str, text: str, *, fractions: bool = False) -> bool:
    """The text is a whole number, and one of the alternatives ``< 3 |OR| >= 9`` holds of it.

    As in VisualWebArena, thousands may be separated by commas, any other text fails, and each bound
    has a tolerance, so that 3 is ``< 3`` too.

    Args:
        fractions: The number may have one: a program gave it, no text of a page.
    """
    plain = clean(text).strip().replace(",", "")
    try:
        number = float(plain) if fractions else int(plain)
    except ValueError:
        return False
    return any(_holds(bound, number) for bound in bounds.split(OR))


def _holds(bound: str, number: float) -> bool:
    parts = INEQUALITY.fullmatch(bound)
    assert parts is not None, "checked when the task was read"
    limit = float(parts[2])
    return {
        "<": number < limit + TOLERANCE,
        "<=": number <= limit + TOLERANCE,
        "==": abs(number - limit) <= TOLERANCE,
        ">=": number >= limit - TOLERANCE,
        ">": number > limit - TOLERANCE,
    }[parts[1]]


def same_url(references: str, url: str, *, exact: bool) -> bool:
    """VisualWebArena's comparison: one of the alternatives is the address, but for a last slash, or
    (not ``exact``) a part of it."""
    wanted, shown = [one.removesuffix("/") for one in references.split(OR)], url.removesuffix("/")
    return shown in wanted if exact else any(one in shown for one in wanted)


def url_match(references: str, url: str) -> bool:
    """``GOLD in PRED``: host and path of one alternative are a part of the address, and so are all
    query parameters.

    As in the benchmark, a parameter may have the value of any alternative, scheme and fragment do
    not count, and parameters that the reference does not name are free.

    Args:
        references: Addresses separated by `` |OR| ``.
    """
    wanted: dict[str, set[str]] = {}
    bases: list[str] = []
    for reference in references.split(OR):
        base, query = _split(reference.strip())
        bases.append(base)
        for name, values in query.items():
            wanted.setdefault(name, set()).update(values)
    base, query = _split(url)
    return any(one in base for one in bases) and all(
        values & set(query.get(name, [])) for name, values in wanted.items()
    )


def _split(url: str) -> tuple[str, dict[str, list[str]]]:
    try:
        parts = urlsplit(url.strip().rstrip("/"))
    except ValueError:  # "http://[": no address, so nothing of it can match but itself
        return url.strip(), {}
    return parts.netloc + parts.path, parse_qs(parts.query)
