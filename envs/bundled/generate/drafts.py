"""Output of a template, and its builders: instruction wordings, facts and the solution."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from envs.bundled.generate.moves import Fill, Follow, Move, Plan, Push
from envs.types import Fact, FactGroup
from envs.types.rubrics import AnswerFact, HttpFact, Match, SqlFact, TextFact, UrlFact

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
    difficulty: int
    """Number of facts of its tasks, or of most of them where they differ."""
    draw: DraftFunction

    @property
    def site(self) -> str:
        """Bundled site of its tasks."""
        return self.kind.partition("-")[0]


def draft(
    *wordings: str, groups: FactGroup | Iterable[FactGroup], plan: Iterable[Move], gates: Iterable[Fact]
) -> TaskDraft:
    """Make a draft: an instruction in several wordings, what must hold, and how it is solved."""
    groups = (groups,) if isinstance(groups, FactGroup) else tuple(groups)
    return TaskDraft(wordings, groups, tuple(plan), tuple(gates))


def find(name: str, section: str, search: str, source: random.Random) -> Plan:
    """Return moves from any page to a named thing, through its section or the search."""
    if source.random() < 0.5:
        return (Follow(section), Follow(name))
    return (Fill(search, name), Push("Search"), Follow(name))


def group(name: str, description: str, *facts: Fact, after: Iterable[str] = ()) -> FactGroup:
    """Group facts that belong together; ``after`` names the groups that must be reached before."""
    return FactGroup(name=name, description=description, facts=facts, after=tuple(after))


def page_group(description: str, path: str, place: str) -> FactGroup:
    """Check that the last page is the one of ``path``."""
    return group("page", description, url_fact(path, place))


def answer_group(description: str, wanted: str | float, value: str) -> FactGroup:
    """Check the answer: a text in any case, or a number and no other."""
    if isinstance(wanted, str):
        fact = AnswerFact(id="answer", expected=(wanted,), description=value)
    else:
        fact = AnswerFact(id="answer", expected=(f"{wanted:g}",), match="number", description=value)
    return group("answer", description, fact)


def url_fact(path: str, place: str, match: Literal["exact", "prefix"] = "exact") -> UrlFact:
    """Check that the last page is this one."""
    return UrlFact(id="at", url=path, match=match, description=f"At {place}")


def field_fact(path: str, name: str, value: int | str, description: str) -> HttpFact:
    """Check a field of the JSON object that the site answers at ``path``."""
    return HttpFact(id=name, path=path, at=(name,), value=value, description=description)


def row_fact(name: str, query: str, wanted: int | str, description: str) -> SqlFact:
    """Check that the query gives one row with this value."""
    return rows_fact(name, query, [(wanted,)], description)


def no_rows_fact(name: str, query: str, description: str) -> SqlFact:
    """Check that the query gives no rows."""
    return rows_fact(name, query, (), description)


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
