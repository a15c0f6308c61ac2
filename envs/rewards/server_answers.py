"""Asks a site's server for a rubric's SQL and HTTP facts.

The questions are asked at the end of the episode and the answers are stored, so that the facts can
be graded when the server's state is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from envs.types import Rubric, ServerAnswer, SiteError
from envs.types.evidence import ServerState
from envs.types.rubrics import HttpFact, SqlFact


async def record_answers(rubric: Rubric, state: ServerState) -> tuple[ServerAnswer, ...]:
    """Ask a site's server all questions of a rubric and return the answers.

    Each question is asked once, and all at the same time. Of a JSON answer only the values that a
    fact needs are stored, because pages behind a log-in hold much else. A question that fails is
    stored with its error; its fact is then not available.
    """
    facts: dict[_Question, list[SqlFact | HttpFact]] = {}
    for fact in rubric.facts():
        if isinstance(fact, SqlFact | HttpFact):
            facts.setdefault(_key(fact), []).append(fact)
    answers = await asyncio.gather(*(_ask(alike, state) for alike in facts.values()))
    return tuple(answer for group in answers for answer in group)


def find_answer(fact: SqlFact | HttpFact, answers: Sequence[ServerAnswer]) -> ServerAnswer | None:
    """Return the answer to a fact's question, if it was asked."""
    key, path = _key(fact), fact.at if isinstance(fact, HttpFact) else ()
    candidates = [answer for answer in answers if (answer.database, answer.asked) == key]
    # An answer that failed or was stored whole serves all facts of its path. One with an empty
    # value may have been emptied by `_scalar`.
    exact = [answer for answer in candidates if answer.at == path]
    whole = [answer for answer in candidates if not answer.at and answer.value not in ({}, [])]
    return next(iter((*exact, *whole)), None)


def value_at(value: Any, path: Sequence[str | int]) -> Any:
    """Return the part of a JSON value at a path, or ``None``."""
    for key in path:
        if isinstance(value, dict):
            value = value.get(str(key))
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def question_of(fact: SqlFact | HttpFact) -> str:
    """Return a fact's question: the query, or the path."""
    return fact.query if isinstance(fact, SqlFact) else fact.path


_Question = tuple[str | None, str]


def _key(fact: SqlFact | HttpFact) -> _Question:
    return (fact.database if isinstance(fact, SqlFact) else None), question_of(fact)


async def _ask(facts: Sequence[SqlFact | HttpFact], state: ServerState) -> list[ServerAnswer]:
    """Ask one question; return the answers to its facts."""
    fact = facts[0]
    database, question = _key(fact)
    try:
        if isinstance(fact, SqlFact):
            rows = tuple(tuple(row) for row in await state.sql(fact.query, fact.database))
            return [ServerAnswer(database=database, asked=question, rows=rows)]
        answer = await state.get_json(fact.path)
    except SiteError as error:
        return [ServerAnswer(database=database, asked=question, error=str(error))]
    paths = dict.fromkeys(fact.at for fact in facts if isinstance(fact, HttpFact))
    return [ServerAnswer(asked=question, at=path, value=_scalar(value_at(answer, path))) for path in paths]


def _scalar(value: Any) -> Any:
    """Return a value, but empty a list or an object: no fact can equal one."""
    return [] if isinstance(value, list) else {} if isinstance(value, dict) else value
