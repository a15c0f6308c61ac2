"""Regular expressions of rubrics, with a bound on the work that they can cause. Pure.

Python's matcher tries one way after the other and cannot be told to stop, so a rubric's pattern on a page's text could hold a worker for
hours. Here a pattern is taken apart when the rubric is read. What has no bound worth the name is refused: a repetition inside of a
repetition, a reference to a group. Of the rest, the most ways that there are on a text of n characters are estimated as
``ways * n**power / power!``, and a text is searched up to the length at which they come to `MOST_STEPS`.

``power`` counts the place where a match begins (unless it is ``^``), and the repetitions that overlap with what follows them: ``\\d+ `` does not (no
digit is a space, so where it ends is decided), ``.*total`` does. All those of the first kind together count as one more, as they have to be
walked along.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MOST_PATTERN = 1000
"""Characters of a pattern."""
MOST_STEPS = 5e7
"""Steps on one text: 0.1 to 2 s, measured on texts that never match."""
MOST_STEPS_OF_ALL = 1e8
"""Steps on all lines of the pages that a fact looks at."""
LONGEST = 100_000
"""Characters of a text that are searched by the plainest pattern."""
SHORTEST = 100
"""A pattern that could search less of a text than this is refused."""

Chars = frozenset[int]
ABOVE = 256
WORD, SPACE, REST = range(ABOVE, ABOVE + 3)
"""Stand for all characters above the first 256: those of words, those that are white space, and the rest."""
OTHERS = frozenset({WORD, SPACE, REST})
ALL: Chars = frozenset(range(ABOVE)) | OTHERS
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_SINGLE = (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY)
_CATEGORIES = {sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_SPACE: r"\s", sre.CATEGORY_WORD: r"\w"}
_NOT_CATEGORIES = {sre.CATEGORY_NOT_DIGIT: r"\d", sre.CATEGORY_NOT_SPACE: r"\s", sre.CATEGORY_NOT_WORD: r"\w"}

_BEGIN = ((sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_BEGINNING_STRING))

Item = tuple[Any, Any]
"""Operator and argument, as Python's own parser gives them."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much work a pattern can be."""

    ways: float
    power: int

    def steps(self, length: int) -> float:
        """At most, on a text of so many characters."""
        return float(self.ways * length**self.power / math.factorial(self.power))

    @property
    def longest(self) -> int:
        """Characters of a text that are searched."""
        most = (MOST_STEPS * math.factorial(self.power) / self.ways) ** (1 / self.power)
        return min(LONGEST, int(most))


@cache
def bounds(pattern: str) -> Bounds:
    """The bounds of a pattern.

    Raises:
        ValueError: it is no regular expression, or one without a bound worth the name.
    """
    if len(pattern) > MOST_PATTERN:
        raise ValueError(f"a pattern of {len(pattern)} characters; allowed: {MOST_PATTERN}")
    try:
        re.compile(pattern)
        items = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    try:
        ways, loose, walked = _cost(_flat(items))
    except _Unbounded as error:
        raise ValueError(f"{pattern!r} could take forever on some texts: {error}") from None
    anchored = items[0] in _BEGIN if len(items) else False
    found = Bounds(ways, max(1, int(not anchored) + loose + int(walked)))
    if found.longest < SHORTEST:
        raise ValueError(
            f"{pattern!r} has too many repetitions that overlap with what follows them: it could search no more than "
            f"{found.longest} characters. Say what stands between them, as [^,]*, in place of .*"
        )
    return found


def search(pattern: str, texts: Iterable[str], *, ignore_case: bool = False) -> str | None:
    """The first match in the texts, as far as they may be searched (see the module); ``None`` without one."""
    compiled, bound = re.compile(pattern, re.IGNORECASE if ignore_case else 0), bounds(pattern)
    left = MOST_STEPS_OF_ALL
    for text in texts:
        left -= bound.steps(min(len(text), bound.longest))
        if left < 0:
            return None
        if found := compiled.search(text, 0, bound.longest):
            return found[0]
    return None


class _Unbounded(Exception):
    pass


def _flat(items: Iterable[Item]) -> list[Item]:
    """Without the brackets that only group."""
    flat: list[Item] = []
    for operator, argument in items:
        if operator is sre.SUBPATTERN:
            flat += _flat(argument[3])
        elif operator is sre.ATOMIC_GROUP:
            flat += _flat(argument)
        else:
            flat.append((operator, argument))
    return flat


def _cost(items: Sequence[Item]) -> tuple[float, int, bool]:
    """Ways by what is bounded; how many unbounded repetitions overlap with what follows; whether there is one that does not."""
    ways, loose, walked = 1.0, 0, False
    for at, (operator, argument) in enumerate(items):
        if operator in _REPEATS:
            low, high, inner = argument[0], argument[1], _flat(argument[2])
            if high > 1:
                _check_repeated(inner)
            decided = not _first(inner) & _first(items[at + 1 :], at_end=_zero_width(items[at + 1 :]))
            if high is sre.MAXREPEAT:
                walked = walked or decided
                loose += not decided
            elif not decided:
                ways *= high - low + 1
            if high == 1:  # an optional part of any form
                inside = _cost(inner)
                ways, loose, walked = ways * inside[0], loose + inside[1], walked or inside[2]
        elif operator is sre.BRANCH:
            costs = [_cost(_flat(each)) for each in argument[1]]
            ways *= sum(cost[0] for cost in costs)
            loose += max(cost[1] for cost in costs)
            walked = walked or any(cost[2] for cost in costs)
        elif operator in (sre.ASSERT, sre.ASSERT_NOT):
            inside = _cost(_flat(argument[1]))
            ways, loose, walked = ways * inside[0], loose + inside[1], walked or inside[2]
        elif operator in (sre.GROUPREF, sre.GROUPREF_EXISTS):
            raise _Unbounded("it refers to one of its groups")
    return ways, loose, walked


def _check_repeated(items: Sequence[Item]) -> None:
    """What is repeated must be of one form only, so that there is one way to divide a text into it."""
    for operator, argument in items:
        if operator in _REPEATS:
            low, high, inner = argument[0], argument[1], _flat(argument[2])
            if low != high:
                raise _Unbounded("a repetition (+, *, ? or {m,n}) inside of a repetition; write the inner one as {n}")
            _check_repeated(inner)
        elif operator is sre.BRANCH:
            firsts = [_first(_flat(each)) or ALL for each in argument[1]]
            if sum(map(len, firsts)) != len(frozenset[int]().union(*firsts)):
                raise _Unbounded("a repeated choice, of which two can begin alike")
            for each in argument[1]:
                _check_repeated(_flat(each))
        elif operator not in (*_SINGLE, sre.AT):
            raise _Unbounded("a repetition of what looks around or back")


def _zero_width(items: Sequence[Item]) -> bool:
    """Whether something is asked for, but no character."""
    return bool(items) and all(operator in (sre.AT, sre.ASSERT, sre.ASSERT_NOT) for operator, _ in items)


def _first(items: Sequence[Item], at_end: bool = False) -> Chars:
    """Characters that the items can begin with; all of them ``at_end`` of what can fail there."""
    found: Chars = ALL if at_end else frozenset()
    for operator, argument in items:
        if operator in _SINGLE:
            return found | _chars(operator, argument)
        if operator is sre.BRANCH:
            return found.union(*(_first(_flat(each)) or ALL for each in argument[1]))
        if operator in _REPEATS:
            found |= _first(_flat(argument[2]))
            if argument[0] > 0:
                return found
        elif operator is not sre.AT:
            return ALL
    return found


def _chars(operator: Any, argument: Any) -> Chars:
    if operator is sre.ANY:
        return ALL
    if operator is sre.LITERAL:
        return _cases(frozenset({_class(argument)}))
    if operator is sre.NOT_LITERAL:
        return ALL - ({argument} - OTHERS)
    found: Chars = frozenset()
    negated = False
    for kind, value in argument:
        if kind is sre.NEGATE:
            negated = True
        elif kind is sre.LITERAL:
            found |= {_class(value)}
        elif kind is sre.RANGE:
            found |= {*range(value[0], min(value[1], ABOVE - 1) + 1), *(OTHERS if value[1] >= ABOVE else ())}
        elif kind is sre.CATEGORY:
            found |= _category(value)
    # What is left out above the first 256 may be a part of its class only.
    return ALL - (found - OTHERS) if negated else _cases(found)


def _class(code: int) -> int:
    """The character itself, or the class that stands for it."""
    if code < ABOVE:
        return code
    return WORD if re.fullmatch(r"\w", chr(code)) else SPACE if re.fullmatch(r"\s", chr(code)) else REST


def _category(value: Any) -> Chars:
    if value in _CATEGORIES:
        above = {SPACE} if value is sre.CATEGORY_SPACE else {WORD}  # digits are characters of words
        return frozenset(n for n in range(ABOVE) if re.fullmatch(_CATEGORIES[value], chr(n))) | above
    of = _NOT_CATEGORIES[value]
    above = {WORD, REST} if of == r"\s" else {SPACE, REST} if of == r"\w" else {*OTHERS}
    return frozenset(n for n in range(ABOVE) if not re.fullmatch(of, chr(n))) | above


def _cases(found: Chars) -> Chars:
    """In both cases: whether case counts is not the pattern's to say."""
    other = (chr(n).swapcase() for n in found if n < ABOVE)
    return found | {_class(ord(char)) for char in other if len(char) == 1}
