"""What a template returns: instruction wordings, facts and the solution."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from envs.tasks.generate.moves import Plan
from envs.types import Fact, FactGroup
from envs.types.rubrics import AnswerFact, Match, SqlFact, TextFact, UrlFact

PASS_THRESHOLD = 1.0
"""Everything that was asked for: each fact is checked by program, and none of them is a matter of degree."""


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """A task before it has an id, a split and a wording."""

    wordings: tuple[str, ...]
    """The same request said in several ways; the first one is what tells requests apart."""
    groups: tuple[FactGroup, ...]
    plan: Plan
    """Moves after which every fact and gate holds."""
    gates: tuple[Fact, ...] = ()
    """Nothing else was changed."""
    path: str = "/"


DraftFunction = Callable[[Any, random.Random], TaskDraft | None]
"""(world, source of chance) -> one of the template's drafts; ``None`` if this world has none."""


@dataclass(frozen=True, slots=True)
class Template:
    """A family of tasks on one site."""

    kind: str
    """``<site>-<what>``, unique."""
    site: str
    difficulty: int
    """Facts of its tasks; where they differ, of most."""
    draw: DraftFunction


def group(name: str, description: str, *facts: Fact, after: Iterable[str] = ()) -> FactGroup:
    """Facts that belong together; ``after`` names the groups without which they cannot be reached."""
    return FactGroup(name=name, description=description, facts=facts, after=tuple(after))


def at(name: str, path: str, description: str, match: Literal["exact", "prefix"] = "exact") -> UrlFact:
    """The last page is this one."""
    return UrlFact(id=name, url=path, match=match, description=description)


def answer_fact(name: str, *expected: str, description: str) -> AnswerFact:
    """The answer is one of these, in any case."""
    return AnswerFact(id=name, expected=expected, description=description)


def number_fact(name: str, number: float, description: str) -> AnswerFact:
    """The answer has this number and no other."""
    return AnswerFact(id=name, expected=(f"{number:g}",), match="number", description=description)


def rows(name: str, query: str, wanted: Iterable[tuple[int | str, ...]], description: str) -> SqlFact:
    """The query gives these rows."""
    return SqlFact(id=name, query=query, rows=tuple(wanted), description=description)


def line(name: str, text: str) -> TextFact:
    """The last page has this line.

    What a page says it shows is asked for, not what its lists are set to: those may have been set without being applied.
    """
    return TextFact(id=name, text=text, match=Match.EXACT, description=f"The page says: {text}")


def sql_literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def join_words(things: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = things
    return f"{', '.join(first)} and {last}" if first else last
