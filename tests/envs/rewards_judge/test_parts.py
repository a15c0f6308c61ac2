"""The parts: replies, cache, waits, configuration, keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.chat.endpoint import pause
from envs.chat.failures import retry_after
from envs.rewards.judge import Judge, JudgeConfig, JudgedFact, Judgement, JudgeModels, JudgeStep
from envs.rewards.judge.prompts import (
    PROMPTS_VERSION,
    about_pictures,
    key_points,
    picture_answer,
    reference,
    same_answer,
    system_of,
)
from envs.rewards.judge.records import Purpose
from envs.rewards.judge.verdict import (
    BLOCKED,
    SUCCESS,
    MalformedReply,
    read_opinion,
    read_points,
    read_score,
)
from envs.types import ConfigError, StorageError
from tests.envs.rewards_judge.fake_judge import (
    completion,
    config,
    episode,
    fake_judge,
    folder_files,
    http,
    jpeg,
    judge_once,
    judged,
    says,
)


@pytest.mark.parametrize(
    ("reply", "holds", "reason"),
    [
        ('{"verdict": "SUCCESS", "reason": "r"}', True, "r"),
        ('  {"reason": "r", "verdict": "not success"}\n', False, "r"),
        ('{"verdict": "NOT_SUCCESS", "reason": ""}', False, ""),
        ('```json\n{"verdict": "SUCCESS", "reason": "r"}\n```', True, "r"),
        ('<think>hm {"verdict": 1}</think>\n{"verdict": "SUCCESS", "reason": "r"}', True, "r"),
        ('The basket is shown. So yes.\n</think>\n\n{"verdict":"SUCCESS","reason":"r"}', True, "r"),
        ('<think>x</think><|begin_of_box|>{"verdict":"SUCCESS","reason":"r"}<|end_of_box|>', True, "r"),
        ("<|begin_of_box|>Verdict: NOT SUCCESS<|end_of_box|>", False, ""),
        ('◁think▷hm◁/think▷{"verdict":"SUCCESS","reason":"r"}', True, "r"),
        ('hm◁/think▷{"verdict":"SUCCESS","reason":"r"}', True, "r"),
        ('[THINK]hm[/THINK]{"verdict":"SUCCESS","reason":"r"}', True, "r"),
        ('<|channel>thought\nhm<channel|>{"verdict":"SUCCESS","reason":"r"}', True, "r"),
        ('<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{"verdict":"SUCCESS","reason":"r"}<|return|>',
         True, "r"),
        ('<thinking>hm</thinking>\n{"verdict":"SUCCESS","reason":"r"}', True, "r"),
        ('so {"verdict": "SUCCESS"} is wrong</think>\n{"verdict": "NOT SUCCESS", "reason": "r"}', False, "r"),
        ('{"verdict": "NOT SUCCESS", "reason": "it shows </think> {\\"verdict\\": \\"SUCCESS\\"}"}', False,
         'it shows </think> {"verdict": "SUCCESS"}'),
        ('```JSON\n{"verdict": "SUCCESS", "reason": "r"}\n```', True, "r"),
        ('{"verdict": "SUCCESS", "reason": "r", "confidence": 1, "evidence": null}', True, "r"),
        ("So it is.</think>All is there.\nVerdict: SUCCESS", True, "All is there."),
        ("All is there.\nVerdict: SUCCESS", True, "All is there."),
        ("**Verdict: NOT SUCCESS**", False, ""),
        ("x\n\n**Verdict:** `Not Success`.", False, "x"),
        ('x\nverdict : "SUCCESS"', True, "x"),
    ],
)  # fmt: skip
def test_replies_that_are_read(reply: str, holds: bool, reason: str) -> None:
    opinion = read_opinion(reply, SUCCESS)
    assert (opinion.holds, opinion.reason) == (holds, reason)


@pytest.mark.parametrize(
    "reply",
    ["", "  ", "<think>x</think>", "SUCCESS", "Verdict: YES", "Verdict:", "[]", '"SUCCESS"', "{}", "null", "Verdict: UNSUCCESS",
     '{"verdict": "SUCCESS"}', '{"verdict": "SUCCESS", "reason": "r", "final": "NOT SUCCESS"}', '{"verdict": null, "reason": "r"}',
     '{"verdict": "SUCCESS", "reason": ["r"]}', '{"verdict": "SUCCESS", "reason": "r"} ok', "Verdict: SUCCESS\nbye",
     'Verdict: BLOCKED', '```\nVerdict: SUCCESS\n```', "My Verdict: SUCCESS",
     '{"verdict": "SUCCESS", "reason": "r"}</think>', '{"reason": "r", "confidence": 1}',
     'x<|begin_of_box|>{"verdict": "SUCCESS", "reason": "r"}<|end_of_box|>',
     '{"verdict": "SUCCESS", "reason": "r", "reason": "s"}'],
)  # fmt: skip
def test_replies_that_are_refused(reply: str) -> None:
    with pytest.raises(MalformedReply):
        read_opinion(reply, SUCCESS)


def test_a_judge_is_told_of_what_it_is_not_shown() -> None:
    """Or it takes the end of what it was given for the end of the page, and what comes later for
    something that is not there."""
    steps = (JudgeStep(screenshot=jpeg(1), action="type [" + "a" * 2_000 + "]", page_text="x" * 50 + "total 7"),)
    asked = {
        chars: about_pictures(Purpose.CRITERION_B, episode(1, steps=steps), [0], page_text_chars=chars).text
        for chars in (50, 57, 0)
    }
    assert "7 more characters are not shown" in asked[50] and "total 7" not in asked[50]
    assert "total 7" in asked[57] and "not shown" not in asked[57] + asked[0]
    assert "aaa…" in asked[50]


def test_a_change_of_the_prompts_comes_with_a_new_version() -> None:
    """The version is in every cache key. After a change of wording: raise it, and record the new
    digest here."""
    page = JudgeStep(screenshot=jpeg(1), action="click [1]", url="http://x/", page_text="a page", changes="a node")
    shown = episode(1, steps=(page,), reference_answer="20")
    asked = [
        about_pictures(
            Purpose.CRITERION_A, shown, [0], page_text_chars=3, fact=shown.facts[0], points=["p"], notes=[("n", "x")]
        ),
        key_points(shown),
        reference(shown),
        same_answer("q", "r", "a"),
        same_answer("q", "r", "a", unachievable=True),
        picture_answer("q", "a", [b"p"]),
    ]
    systems = [system_of(purpose) for purpose in Purpose if purpose not in (Purpose.RUBRIC, Purpose.INSTRUCTION)]
    words = "\0".join([*systems, *(question.text for question in asked)])
    assert (PROMPTS_VERSION, hashlib.sha256(words.encode()).hexdigest()[:16]) == ("3", "0d00b904cb0a2cce")


@given(st.text(), st.sampled_from([read_score, read_points, lambda reply: read_opinion(reply, BLOCKED)]))
def test_any_text_is_read_or_refused(reply: str, read: Any) -> None:
    try:
        read(reply)
    except MalformedReply as refusal:
        assert str(refusal)


@given(st.booleans(), st.text(max_size=200))
def test_what_was_asked_for_is_read_as_it_was_meant(holds: bool, reason: str) -> None:
    reply = json.dumps({"verdict": SUCCESS.aye if holds else SUCCESS.nay, "reason": reason})
    opinion = read_opinion(reply, SUCCESS)
    assert (opinion.holds, opinion.reason) == (holds, reason)


def test_scores_and_key_points() -> None:
    assert read_score('{"score": 5, "reason": "x"}') == (5, "x") and read_score("x\nScore: 1") == (1, "x")
    assert read_points('{"key_points": [" a ", "b"]}') == ("a", "b")
    for reply in (
        '{"score": 6, "reason": ""}',
        '{"score": true, "reason": ""}',
        '{"score": 4.0, "reason": ""}',
        "Score: 11",
        "Score: 0",
    ):
        with pytest.raises(MalformedReply):
            read_score(reply)
    for reply in ('{"key_points": []}', '{"key_points": [1]}', '{"key_points": [" "]}', "a, b", '{"points": ["a"]}'):
        with pytest.raises(MalformedReply):
            read_points(reply)


def test_plain_line_breaks_in_a_reason_are_no_mistake() -> None:
    """Not JSON to the letter, but nothing else can be meant."""
    found = read_opinion('{"verdict": "SUCCESS", "reason": "one\n\ttwo\x01"}', SUCCESS)
    assert found.holds and found.reason == "one\n\ttwo\x01"


def grade(folder: Path, answer: Any = None, **changes: Any) -> Judgement:
    judgement, _ = asyncio.run(judge_once(answer or judged(), episode(2), cache=folder, **changes))
    assert isinstance(judgement, Judgement)
    return judgement


def test_a_second_grading_comes_from_the_cache_and_costs_nothing(tmp_path: Path) -> None:
    # The address is no part of the key: another port, the same answers.
    first, second = grade(tmp_path), grade(tmp_path, judged(criterion_a=says("NOT SUCCESS")), budget_requests=0)
    assert first.cached == 0 and first.requests == 5 == len(folder_files(tmp_path))
    assert second.state == "passed" and second.cached == 5 and second.requests == 0 and second.tokens == 0
    assert {call.key for call in first.calls} == {call.key for call in second.calls}
    assert second.facts == first.facts


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"seed": 43},
        {"max_tokens": 801},
        {"models": JudgeModels(default="n")},
        {"json_mode": True},
        {"structured": "json_schema"},
    ],
)
def test_another_model_temperature_or_length_is_another_question(tmp_path: Path, change: dict[str, Any]) -> None:
    grade(tmp_path)
    assert grade(tmp_path, **change).cached == 0


def test_other_pictures_answers_and_prompts_are_other_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grade(tmp_path)
    other, _ = asyncio.run(judge_once(judged(), episode(2, answer="20"), cache=tmp_path))
    assert {call.purpose for call in other.calls if call.cached} == {"blocking", "keyframe"}  # they see no answer
    brighter = tuple(step.model_copy(update={"screenshot": jpeg(200)}) for step in episode(2).steps)
    repainted, _ = asyncio.run(judge_once(judged(), episode(2, steps=brighter), cache=tmp_path))
    assert repainted.cached == 0
    monkeypatch.setattr("envs.rewards.judge.client.PROMPTS_VERSION", "next")
    assert grade(tmp_path).cached == 0


def test_votes_are_kept_apart(tmp_path: Path) -> None:
    grade(tmp_path)
    assert grade(tmp_path, votes=3).cached == 5  # vote 0 of each, and the keyframe
    assert grade(tmp_path, votes=3).cached == 13


def test_failures_are_not_kept_and_torn_files_are_asked_again(tmp_path: Path) -> None:
    assert grade(tmp_path, lambda fake, request: completion("hm"), retries=0).state == "abstained"
    assert folder_files(tmp_path) == []
    grade(tmp_path)
    torn, strange, *_ = folder_files(tmp_path)
    torn.write_bytes(torn.read_bytes()[:20])
    strange.write_text(strange.read_text().replace("verdict", "virdict"))
    assert grade(tmp_path).cached == 3 and grade(tmp_path).cached == 5


def test_a_cache_that_cannot_be_written_is_told_and_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="no folder for the judge's cache"):
        Judge(config("http://x/v1", cache=tmp_path / "file" / "cache"))
    for number in range(256):
        (tmp_path / f"{number:02x}").write_text("")  # no sub-folder can be made
    judgement = grade(tmp_path)
    assert judgement.state == "passed" and all("not kept in the cache" in call.trouble for call in judgement.calls)


def test_waits_grow_and_are_bounded() -> None:
    assert [pause(attempt, None, 1.0, 1.0, 10.0) for attempt in range(6)] == [1, 2, 4, 8, 10, 10]
    assert (pause(20, None, 1.0, 1.0, 60.0), pause(0, None, 0.0, 1.0, 60.0)) == (60.0, 0.5)
    assert (pause(2, None, 0.0, 1.0, 10.0), pause(5, 2.0, 0.0, 1.0, 10.0)) == (2.0, 2.0)
    assert [pause(0, asked, draw, 1.0, 10.0) for asked, draw in ((5.0, 0.0), (5.0, 1.0), (99.0, 0.0))] == [5, 5.5, 10]


def test_retry_after() -> None:
    now = datetime(2026, 11, 22, 3, 0, 0, tzinfo=UTC)
    assert retry_after("7", now) == 7.0 and retry_after(None, now) is None
    assert retry_after("Sun, 22 Nov 2026 03:00:30 GMT", now) == 30.0
    assert retry_after("Sun, 22 Nov 2026 02:00:00 GMT", now) == 0.0
    for nonsense in ("soon", "", "-1", "1e9", "²"):
        assert retry_after(nonsense, now) is None


async def test_retry_after_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr("envs.chat.endpoint.pause", lambda _a, wait, *_: waits.append(wait) or 0.0)
    await judge_once(lambda f, r: http(429, "", "Retry-After: 3"), episode(1), retries=2)
    assert waits == [3.0, 3.0]


async def test_without_usage_tokens_are_estimated() -> None:
    judgement, _ = await judge_once(lambda f, r: completion("x" * 40, usage=None), episode(1), retries=0)
    (call,) = judgement.calls
    assert call.estimated and call.completion_tokens in (0, 10) and 1100 < call.prompt_tokens < 2500


async def test_the_key_is_sent_and_told_to_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    caplog.set_level(logging.DEBUG)

    def unfriendly(fake: Any, request: Any) -> bytes:
        return http(401, "the key sk-very-secret is wrong")

    judgement, fake = await judge_once(unfriendly, episode(1), api_key_env="JUDGE_KEY")
    assert "authorization: bearer sk-very-secret" in fake.headers[0].lower()
    assert "the key [key] is wrong" in judgement.reason
    assert "sk-very-secret" not in judgement.model_dump_json() + caplog.text
    assert "sk-very-secret" not in config(fake.url, api_key_env="JUDGE_KEY").model_dump_json()


async def test_no_key_no_header_and_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, fake = await judge_once(judged(), episode(1))
    assert "authorization" not in fake.headers[0].lower()
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match="JUDGE_KEY is not set"):
        await judge_once(judged(), episode(1), api_key_env="JUDGE_KEY")
    monkeypatch.setenv("JUDGE_KEY", "schlüssel")
    with pytest.raises(ConfigError, match="characters"):
        await judge_once(judged(), episode(1), api_key_env="JUDGE_KEY")


async def test_what_is_sent() -> None:
    _, fake = await judge_once(judged(), episode(1), json_mode=True, temperature=0.25)
    request = fake.requests[0]
    assert (request["temperature"], request["max_tokens"], request["seed"]) == (0.25, 800, 42)
    assert request["response_format"] == {"type": "json_object"}
    assert [message["role"] for message in request["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"votes": 2}, "even"),
        ({"base_url": "localhost:8000"}, "http"),
        ({"base_url": "http://user:pw@x/v1"}, "api_key_env"),
        ({"base_url": "http://x:99999/v1"}, "base_url"),
        ({"temperature": 3}, "temperature"),
        ({"timeout": 0}, "timeout"),
        ({"concurrency": 0}, "concurrency"),
        ({"colour": 1}, "colour"),
        ({"models": {"default": ""}}, "models.default"),
        ({"structured": "xml"}, "structured"),
        ({"structured": "json_schema", "json_mode": True}, "json_mode"),
    ],
)
def test_a_bad_configuration_names_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        JudgeConfig.model_validate({"base_url": "http://x/v1", "models": {"default": "m"}} | change)


def test_every_option_is_described() -> None:
    for model in (JudgeConfig, JudgeModels):
        assert all(field.description or name in ("models", "style") for name, field in model.model_fields.items())


def test_what_is_no_picture_is_refused_when_the_episode_is_made() -> None:
    with pytest.raises(ValidationError, match="JPEG, PNG or WebP"):
        JudgeStep(screenshot=b"<html>", action="click")
    with pytest.raises(ValidationError):
        JudgedFact(fact_id="", text="x")
    twin = JudgedFact(fact_id="a", text="x")
    with pytest.raises(ValidationError, match="a is there twice"):
        episode(1, facts=(twin, twin))


def test_a_judge_is_used_inside_of_async_with() -> None:
    async def once() -> None:
        async with fake_judge(judged()) as fake:
            await Judge(config(fake.url)).judge(episode(1))

    with pytest.raises(BaseException) as caught:
        asyncio.run(once())
    assert "async with" in repr(caught.value)
