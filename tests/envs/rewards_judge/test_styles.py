"""The flows: what is asked, in which order, of which model, with which pictures, and what it comes
to."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from envs.rewards.judge import Judge, Judgement, JudgeModels, Purpose
from envs.rewards.judge.webjudge import chosen
from tests.envs.rewards_judge.fake_judge import (
    FakeJudge,
    completion,
    config,
    episode,
    fake_judge,
    images_of,
    judge_once,
    judged,
    purpose_of,
    says,
    text_of,
)


def run(answer: Any, shown: Any, **changes: Any) -> tuple[Judgement, FakeJudge]:
    return asyncio.run(judge_once(answer, shown, **changes))


def asked(fake: FakeJudge) -> Counter[str]:
    return Counter(map(purpose_of, fake.requests))


def fact(name: str, no: str) -> Any:
    return lambda fake, request: says(
        "NOT SUCCESS" if no in request["messages"][1]["content"][0]["text"].split("BEGIN DATA")[0] else "SUCCESS", name
    )


def test_webgym_asks_for_all_and_counts_calls_and_tokens() -> None:
    judgement, fake = run(judged(), episode(4, reference_answer="19.99"))
    assert judgement.state == "passed" and judgement.score == 1.0
    assert asked(fake) == {"blocking": 1, "keyframe": 3, "criterion_b": 1, "criterion_a": 2, "reference": 1}
    assert purpose_of(fake.requests[0]) == "blocking"
    assert judgement.requests == len(fake.requests) == len(judgement.calls) == 8
    assert judgement.tokens == 8 * 110 and judgement.cached == 0
    assert judgement.facts == {"sorted": True, "price": True}
    assert all(call.seconds >= 0 and not call.estimated for call in judgement.calls)


def test_partial_credit_is_the_share_of_what_holds() -> None:
    judgement, _ = run(judged(criterion_a=fact("no", "first price")), episode(2, reference_answer="19.99"))
    assert judgement.state == "failed" and judgement.score == pytest.approx(2 / 3)
    assert judgement.facts == {"sorted": True, "price": False} and judgement.reason == "criterion_a price: no"


def test_early_exit_asks_no_more_and_gives_no_score() -> None:
    judgement, fake = run(judged(criterion_a=fact("no", "sorted by price")), episode(2), early_exit=True)
    assert judgement.state == "failed" and judgement.score is None and asked(fake)["criterion_a"] == 1
    passed, _ = run(judged(), episode(2), early_exit=True)
    assert passed.state == "passed" and passed.score == 1.0


def test_an_invented_answer_is_zero_and_its_facts_are_not_asked_for() -> None:
    judgement, fake = run(judged(criterion_b=says("NOT SUCCESS", "no 19.99 anywhere")), episode(2))
    assert (judgement.state, judgement.score) == ("failed", 0.0) and "no 19.99" in judgement.reason
    assert "criterion_a" not in asked(fake) and judgement.facts == {}


def test_a_shut_site_is_an_abstention_also_without_an_answer() -> None:
    for answer in ("19.99", None):
        judgement, fake = run(judged(blocking=says("BLOCKED", "a captcha")), episode(5, answer=answer))
        assert judgement.state == "abstained" and judgement.blocked and judgement.reason == "blocked: a captcha"
        assert asked(fake) == {"blocking": 1}


def test_no_answer_is_a_failure_where_the_site_was_open() -> None:
    judgement, fake = run(judged(), episode(5, answer=None))
    assert (judgement.state, judgement.score) == ("failed", 0.0) and asked(fake) == {"blocking": 1}
    judgement, fake = run(judged(), episode(5, answer=None), style="webvoyager")
    assert (judgement.state, judgement.score) == ("failed", 0.0) and not fake.requests


def test_an_empty_answer_is_an_answer() -> None:
    assert run(judged(), episode(1, answer=""))[0].state == "passed"


def test_an_episode_without_steps_abstains() -> None:
    judgement, fake = run(judged(), episode(0))
    assert judgement.state == "abstained" and "no screenshots" in judgement.reason and not fake.requests


def test_a_task_without_facts_is_one_fact() -> None:
    judgement, fake = run(judged(), episode(1, facts=()))
    assert judgement.facts == {"task": True} and "REQUIREMENT\nFind the price" in text_of(fake.requests[-1])
    judgement, fake = run(judged(), episode(1, facts=(), reference_answer="20"))
    assert judgement.facts == {} and asked(fake)["reference"] == 1


def test_the_judge_sees_keyframes_and_always_the_last_one() -> None:
    def keyframes(fake: FakeJudge, request: dict[str, Any]) -> bytes:
        number = int(text_of(request).rpartition("Screenshot ")[2].split()[0])
        return {1: says("NOT RELEVANT"), 2: says("RELEVANT"), 3: completion("hm")}.get(number, says("NOT RELEVANT"))

    judgement, fake = run(judged(keyframe=keyframes), episode(6), retries=0)
    criterion = next(each for each in fake.requests if purpose_of(each) == "criterion_b")
    captions = [part["text"] for part in criterion["messages"][1]["content"][1:] if part["type"] == "text"]
    assert captions == [f"Screenshot {number} of 6:" for number in (2, 3, 6)]
    assert judgement.state == "passed"  # a lost keyframe call is no reason to abstain
    assert [
        check.subject for check in judgement.checks if check.purpose is Purpose.KEYFRAME and check.holds is None
    ] == ["2"]


def test_the_last_pictures_are_kept_when_there_are_too_many() -> None:
    _, fake = run(judged(), episode(7), max_images=3)
    criterion = next(each for each in fake.requests if purpose_of(each) == "criterion_a")
    assert len(images_of(criterion)) == 3 and "Screenshot 5 of 7" in text_of(criterion)
    assert images_of(criterion)[0].startswith("data:image/jpeg;base64,")


def test_the_blocking_check_samples_the_same_each_time_and_the_last_always() -> None:
    shown = []
    for _ in range(2):
        _, fake = run(judged(blocking=says("BLOCKED")), episode(12), blocking_images=5)
        shown.append(images_of(fake.requests[0]))
    last = images_of(run(judged(), episode(12), style="webvoyager")[1].requests[0])
    assert shown[0] == shown[1] and len(shown[0]) == 5 and shown[0][-1:] == last
    _, fake = run(judged(blocking=says("BLOCKED")), episode(12), blocking_images=5, seed=7)
    assert images_of(fake.requests[0]) != shown[0]


def test_each_purpose_has_its_model() -> None:
    models = JudgeModels(default="d", keyframe="k", blocking="w", criterion_a="a", criterion_b="b", reference="r")
    judgement, fake = run(judged(), episode(2, reference_answer="x"), models=models)
    used = {purpose_of(each): each["model"] for each in fake.requests}
    assert used == {"blocking": "w", "keyframe": "k", "criterion_b": "b", "criterion_a": "a", "reference": "r"}
    assert {call.model for call in judgement.calls} == set("wkbar")
    assert JudgeModels(default="d").of(Purpose.CRITERION_B) == "d"


def test_webjudge_scores_screenshots_and_gives_one_verdict() -> None:
    def score(fake: FakeJudge, request: dict[str, Any]) -> bytes:
        number = int(text_of(request).rpartition("Screenshot ")[2].split()[0])
        return completion(
            {1: '{"score": 2, "reason": "home"}', 2: "A list.\nScore: 3"}.get(number, '{"score": 1, "reason": ""}')
        )

    judgement, fake = run(judged(relevance=score), episode(4, answer=None), style="webjudge")
    assert judgement.state == "passed" and asked(fake) == {"key_points": 1, "relevance": 4, "verdict": 1}
    verdict = fake.requests[-1]
    assert len(images_of(verdict)) == 2 and "KEY POINTS\n1. the cheapest" in text_of(verdict)
    assert "what a model saw in screenshot 2:\n| A list." in text_of(verdict) and "home" not in text_of(verdict)
    lost, _ = run(judged(key_points=completion("none")), episode(1), style="webjudge", retries=0)
    assert lost.state == "abstained" and lost.reason.startswith("key_points: malformed")


def test_which_scored_screenshots_are_shown() -> None:
    assert chosen([1, 3, 5, None, 2, 1], 50) == [1, 2, 3, 5]
    assert chosen([3, 5, 3, 4, 1], 3) == [1, 3, 4]  # the best, and the last
    assert chosen([3, 3, 3, 3], 2) == [2, 3]  # of equal ones the later
    assert chosen([1], 1) == [0]


def test_webvoyager_shows_the_last_screenshots_and_the_answer() -> None:
    judgement, fake = run(
        judged(verdict=says("NOT SUCCESS", "another kettle")), episode(5), style="webvoyager", last_images=2
    )
    assert (judgement.state, judgement.score) == ("failed", 0.0) and "another kettle" in judgement.reason
    (only,) = fake.requests
    assert (
        len(images_of(only)) == 2
        and "| 19.99" in text_of(only)
        and "| 5. click [4] at http://shop.test/4" in text_of(only)
    )


async def test_comparing_answers() -> None:
    async with (
        fake_judge(judged(same_answer=says("NOT SUCCESS", "partly"))) as fake,
        Judge(config(fake.url)) as judge,
    ):
        judgement = await judge.compare("How long?", "2 h", "2", unachievable=True)
        asked_for = text_of(fake.requests[0])
    assert judgement.state == "failed" and "REASON WHY" in asked_for and "| 2" in asked_for
    assert judgement.calls[0].purpose is Purpose.SAME_ANSWER and judgement.calls[0].subject == "unachievable"


async def test_many_episodes_share_the_limit_of_requests() -> None:
    async def answer(request: dict[str, Any], fake: FakeJudge) -> bytes:
        await asyncio.sleep(0.002)
        found = judged()(fake, request)
        assert isinstance(found, bytes)
        return found

    async with (
        fake_judge(lambda fake, request: answer(request, fake)) as fake,
        Judge(config(fake.url, concurrency=4)) as judge,
    ):
        shown = [episode(3, answer=str(number)) for number in range(12)]
        judgements = await asyncio.gather(*map(judge.judge, shown))
    assert all(each.state == "passed" for each in judgements) and 2 <= fake.most_busy <= 4
