"""What a rubric asks of a site's server, asked at the end of the episode and kept, so that it can be graded after the state is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from envs.types import Rubric, ServerAnswer, SiteError
from envs.types.rubrics import HttpFact, SqlFact


class Asked(Protocol):
    """As `envs.rewards.ServerState`."""

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]: ...
    async def get_json(self, path: str) -> Any: ...


async def record_answers(rubric: Rubric, state: Asked) -> tuple[ServerAnswer, ...]:
    """Ask everything that the rubric wants to know of the server, each question once and all at once.

    A question that fails is kept with its error: its fact is not available then.
    """
    facts: dict[tuple[str | None, str], SqlFact | HttpFact] = {}
    for fact in rubric.facts():
        if isinstance(fact, SqlFact | HttpFact):
            facts.setdefault(_key(fact), fact)
    return tuple(await asyncio.gather(*(_ask(fact, state) for fact in facts.values())))


def find_answer(fact: SqlFact | HttpFact, answers: Sequence[ServerAnswer]) -> ServerAnswer | None:
    """The answer to a fact's question, if it was asked."""
    key = _key(fact)
    return next((answer for answer in answers if (answer.database, answer.asked) == key), None)


def asked(fact: SqlFact | HttpFact) -> str:
    """A fact's question: the query, or the path."""
    return fact.query if isinstance(fact, SqlFact) else fact.path


def _key(fact: SqlFact | HttpFact) -> tuple[str | None, str]:
    return (fact.database if isinstance(fact, SqlFact) else None), asked(fact)


async def _ask(fact: SqlFact | HttpFact, state: Asked) -> ServerAnswer:
    database, question = _key(fact)
    try:
        if isinstance(fact, SqlFact):
            rows = tuple(tuple(row) for row in await state.sql(fact.query, fact.database))
            return ServerAnswer(database=database, asked=question, rows=rows)
        return ServerAnswer(asked=question, value=await state.get_json(fact.path))
    except SiteError as error:
        return ServerAnswer(database=database, asked=question, error=str(error))
