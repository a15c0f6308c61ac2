"""Output of a template: instruction wordings, facts and the solution."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from envs.bundled.generate.moves import Plan
from envs.types import Fact, FactGroup
from envs.types.rubrics import AnswerFact, Match, SqlFact, TextFact, UrlFact

PASS_THRESHOLD = 1.0
"""Share of facts that must hold. All, since programs check them and none is a matter of degree."""


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """A task before it has an id, a split and a chosen wording."""

    wordings: tuple[str, ...]
    """The same request in several wordings. The first one identifies the request."""
    groups: tuple[FactGroup, ...]
    plan: Plan
    """Moves after which every fact and gate holds."""
    gates: tuple[Fact, ...] = ()
    """Facts that nothing else was changed."""
    path: str = "/"


DraftFunction = Callable[[Any, random.Random], TaskDraft | None]
"""Function (world, random source) -> draft; ``None`` if this world has none."""


@dataclass(frozen=True, slots=True)
class Template:
    """A family of tasks on one site."""

    kind: str
    """Unique name, ``<site>-<what>``."""
    site: str
    difficulty: int
    """Number of facts of its tasks, or of most of them where they differ."""
    draw: DraftFunction


def group(name: str, description: str, *facts: Fact, after: Iterable[str] = ()) -> FactGroup:
    """Group facts that belong together; ``after`` names the groups that must be reached before."""
    return FactGroup(name=name, description=description, facts=facts, after=tuple(after))


def url_fact(name: str, path: str, description: str, match: Literal["exact", "prefix"] = "exact") -> UrlFact:
    """Check that the last page is this one."""
    return UrlFact(id=name, url=path, match=match, description=description)


def answer_fact(name: str, *expected: str, description: str) -> AnswerFact:
    """Check that the answer is one of these texts, in any case."""
    return AnswerFact(id=name, expected=expected, description=description)


def number_fact(name: str, number: float, description: str) -> AnswerFact:
    """Check that the answer has this number and no other."""
    return AnswerFact(id=name, expected=(f"{number:g}",), match="number", description=description)


def rows_fact(name: str, query: str, wanted: Iterable[tuple[int | str, ...]], description: str) -> SqlFact:
    """Check that the query gives these rows."""
    return SqlFact(id=name, query=query, rows=tuple(wanted), description=description)


def line_fact(name: str, text: str) -> TextFact:
    """Check that the last page has this line.

    The page's own statement is checked, not the settings of its lists: these may have been set
    without being applied.
    """
    return TextFact(id=name, text=text, match=Match.EXACT, description=f"The page says: {text}")


def sql_literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def join_words(things: Iterable[str]) -> str:
    """Join words as ``a, b and c``."""
    *first, last = things
    return f"{', '.join(first)} and {last}" if first else last
