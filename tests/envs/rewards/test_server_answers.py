"""What the server said is kept with the episode, and facts are graded from it."""

from __future__ import annotations

from typing import Any

import pytest

from envs.rewards import GradingEvidence, grade_by_program, read_rubric, record_answers
from envs.rewards.server_answers import value_at
from envs.types import ServerAnswer, SiteError
from tests.builders import make_rubric

from .played import DONE

QUERY = "SELECT product, quantity FROM basket"
RUBRIC = read_rubric(
    {
        "fact_groups": [
            {
                "name": "order",
                "facts": [
                    {"id": "rows", "type": "server_sql", "query": QUERY, "rows": [[7, 2], [9, 1]]},
                    {"id": "city", "type": "server_http", "path": "/api/orders/12", "at": ["city"], "value": "Marlow"},
                    {"id": "line", "type": "server_http", "path": "/api/orders/12", "at": ["lines", 0], "value": 7},
                    {"id": "gone", "type": "server_http", "path": "/api/orders/13", "value": None},
                ],
            }
        ]
    }
)


class State:
    """A server that says this, and counts how often it is asked."""

    def __init__(self, rows: Any = ((9, 1), (7, 2)), order: Any = None) -> None:
        self.rows = rows
        self.order = {"city": "Marlow", "lines": [7]} if order is None else order
        self.asked: list[str] = []

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]:
        self.asked.append(query)
        if isinstance(self.rows, Exception):
            raise self.rows
        return list(self.rows)

    async def get_json(self, path: str) -> Any:
        self.asked.append(path)
        return self.order if path.endswith("12") else None


async def recorded(state: State) -> GradingEvidence:
    evidence = GradingEvidence(final=DONE, server=await record_answers(RUBRIC, state))
    return GradingEvidence.model_validate_json(evidence.model_dump_json())


@pytest.mark.parametrize(
    ("state", "values"),
    [
        (State(), [1, 1, 1, 1]),
        (State(rows=[(7, 2)]), [0, 1, 1, 1]),
        (State(rows=[]), [0, 1, 1, 1]),
        (State(order={"city": "marlow", "lines": []}), [1, 0, 0, 1]),
        (State(rows=SiteError("no such table: basket")), [None, 1, 1, 1]),
    ],
)
async def test_facts_are_graded_from_what_was_kept(state: State, values: list[float | None]) -> None:
    kept = grade_by_program(RUBRIC, await recorded(state))
    assert [part.value for part in kept.parts] == values


@pytest.mark.parametrize(("at", "value"), [(0, 7), (1, 8), (2, None), (-1, 8), (-2, 7), (-3, None)])
def test_a_position_beyond_a_list_has_nothing(at: int, value: int | None) -> None:
    assert value_at({"lines": [7, 8]}, ("lines", at)) == value


async def test_each_question_is_asked_once() -> None:
    state = State()
    await recorded(state)
    assert sorted(state.asked) == ["/api/orders/12", "/api/orders/13", QUERY]


async def test_a_question_that_failed_says_why() -> None:
    reward = grade_by_program(RUBRIC, await recorded(State(rows=SiteError("no such table: basket"))))
    assert "no such table" in reward.parts[0].evidence and reward.score == 1.0 and reward.binary is None


def test_what_was_not_asked_is_not_known() -> None:
    without = grade_by_program(RUBRIC, GradingEvidence(final=DONE))
    assert [part.value for part in without.parts] == [None] * 4
    other = GradingEvidence(final=DONE, server=(ServerAnswer(database="", asked="SELECT 1", rows=((1,),)),))
    reward = grade_by_program(RUBRIC, other)
    assert [part.value for part in reward.parts] == [None] * 4
    assert "was not asked" in reward.parts[0].evidence


async def test_only_what_facts_are_about_is_kept() -> None:
    """A page behind a log-in says much else, and answers are stored with the episode."""
    order = {"city": "Marlow", "lines": [7], "card": "4111", "all": {"card": "4111"}}
    facts = [
        {"id": "city", "type": "server_http", "path": "/api/orders/12", "at": ["city"], "value": "Marlow"},
        {"id": "all", "type": "server_http", "path": "/api/orders/12", "at": ["all"], "value": "4111", "op": "ne"},
        {"id": "lines", "type": "server_http", "path": "/api/orders/12", "at": ["lines"], "value": 7},
        {"id": "whole", "type": "server_http", "path": "/api/orders/12", "value": None},
    ]
    rubric = make_rubric(*facts)
    state = State(order=order)
    answers = await record_answers(rubric, state)
    assert state.asked == ["/api/orders/12"]
    assert {answer.at: answer.value for answer in answers} == {
        ("city",): "Marlow",
        ("all",): {},
        ("lines",): [],
        (): {},
    }
    kept = grade_by_program(rubric, GradingEvidence(final=DONE, server=answers))
    assert [part.value for part in kept.parts] == [1, 1, 0, 0]
    assert "4111" not in str(answers)


def test_answers_that_were_kept_whole_are_read_as_before() -> None:
    whole = ServerAnswer(asked="/api/orders/12", value={"city": "Marlow", "lines": [7]})
    reward = grade_by_program(RUBRIC, GradingEvidence(final=DONE, server=(whole,)))
    assert [part.value for part in reward.parts] == [None, 1, 1, None]
    emptied = ServerAnswer(
        asked="/api/orders/12", value={}
    )  # kept for a fact about the whole answer: of its parts nothing is known
    reward = grade_by_program(RUBRIC, GradingEvidence(final=DONE, server=(emptied,)))
    assert [part.value for part in reward.parts] == [None] * 4
