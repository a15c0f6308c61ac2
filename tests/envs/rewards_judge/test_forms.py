"""Schemas of replies: what obeys one is read as an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.rewards.judge import JudgeStyle, Purpose
from envs.rewards.judge.schemas import REASON_CHARS, response_format, schema_of, words_of
from envs.rewards.judge.verdict import MalformedReply, read_opinion, read_points, read_score
from envs.tasks.authoring.draft import read_draft
from tests.envs.rewards_judge.fake_judge import episode, judge_once, judged, purpose_of

READERS: dict[Purpose, Any] = {
    Purpose.KEY_POINTS: read_points,
    Purpose.RELEVANCE: read_score,
    Purpose.RUBRIC: read_draft,
    Purpose.INSTRUCTION: json.loads,  # what it may say depends on the task
}


def instances(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Everything that obeys a schema of ours."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "string":
        # A text of blanks is none; a server cannot be told so.
        words = st.text(st.characters(exclude_categories=["Cs"]), max_size=min(20, schema.get("maxLength", 20) - 1))
        return words.map(lambda text: f"x{text}")
    if schema["type"] == "array":
        return st.lists(instances(schema["items"]), min_size=1, max_size=min(3, schema.get("maxItems", 3)))
    assert schema["type"] == "object" and schema["required"] == list(schema["properties"])
    assert schema["additionalProperties"] is False
    return st.fixed_dictionaries({name: instances(each) for name, each in schema["properties"].items()})


@pytest.mark.parametrize("purpose", Purpose)
@settings(max_examples=20)
@given(data=st.data())
def test_a_reply_that_obeys_its_schema_is_read(purpose: Purpose, data: st.DataObject) -> None:
    reply = json.dumps(data.draw(instances(schema_of(purpose, 800))))
    read = READERS.get(purpose) or (lambda text: read_opinion(text, words_of(purpose)))
    assert read(reply)


def test_the_verdicts_of_a_schema_are_those_of_its_question() -> None:
    assert schema_of(Purpose.BLOCKING, 800)["properties"]["verdict"]["enum"] == ["BLOCKED", "NOT BLOCKED"]
    assert schema_of(Purpose.CRITERION_A, 800)["properties"]["verdict"]["enum"] == ["SUCCESS", "NOT SUCCESS"]
    with pytest.raises(MalformedReply):
        read_opinion('{"verdict": "SUCCESS", "reason": "x"}', words_of(Purpose.BLOCKING))


def test_a_reason_is_short_enough_for_the_length_of_a_reply() -> None:
    def most(max_tokens: int) -> int:
        return int(schema_of(Purpose.VERDICT, max_tokens)["properties"]["reason"]["maxLength"])

    assert (most(100), most(800), most(4000)) == (50, 400, REASON_CHARS)


@pytest.mark.parametrize("style", JudgeStyle)
async def test_every_question_of_a_style_is_sent_with_its_schema(style: JudgeStyle) -> None:
    judgement, fake = await judge_once(judged(), episode(2), structured="json_schema", style=style)
    assert judgement.state == "passed" and fake.requests
    for request in fake.requests:
        assert request["response_format"] == response_format(Purpose(purpose_of(request)), 800)
    plain, fake = await judge_once(judged(), episode(2), style=style)
    assert plain.state == "passed" and not any("response_format" in each for each in fake.requests)
