"""A rubric before the judge: one grading for all facts, partial credit, the gate, abstentions,
costs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from envs.rewards import GradingEvidence, from_webgym, grade
from envs.rewards.judge import Judge
from envs.rewards.judge.records import data_url
from envs.rewards.judge_facts import NO_CLAIM, NOT_APART, THE_END, RubricJudge
from envs.types import RewardBundle
from tests.envs.rewards.played import DONE, EVIDENCE
from tests.envs.rewards_judge.fake_judge import (
    FakeJudge,
    config,
    fake_judge,
    images_of,
    jpeg,
    judged,
    purpose_of,
    says,
    text_of,
)

RUBRIC = from_webgym(
    [
        {"id": 1, "description": "search", "facts": ["a lamp was opened", "it is a red one"]},
        {"id": 2, "description": "order", "facts": ["the total was told"]},
    ]
)


def run(answer: Any, evidence: Any = EVIDENCE, **changes: Any) -> tuple[RewardBundle, FakeJudge, RubricJudge]:
    async def main() -> tuple[RewardBundle, FakeJudge, RubricJudge]:
        async with fake_judge(answer) as fake, Judge(config(fake.url, **changes)) as judge:
            asked = RubricJudge(judge, RUBRIC, instruction="Buy a red lamp.", screenshot=lambda _: jpeg(9))
            return await grade(RUBRIC, evidence, judge=asked), fake, asked

    return asyncio.run(main())


def on(words: str, verdict: str) -> Any:
    """Another verdict for the requirement that has these words."""

    def answer(fake: FakeJudge, request: Any) -> bytes:
        return says(verdict if f"{words}" in text_of(request) else "SUCCESS", words)

    return answer


def values(bundle: RewardBundle) -> dict[str, float | None]:
    return {part.name: part.value for part in bundle.parts}


def test_all_facts_are_answered_in_one_hearing_and_its_cost_is_told_once() -> None:
    bundle, fake, asked = run(judged())
    assert bundle.passed and bundle.score == 1.0 and bundle.binary == 1.0
    assert [fake.count(purpose) for purpose in ("blocking", "keyframe", "criterion_b", "criterion_a")] == [1, 2, 1, 3]
    assert asked.judgement is not None
    assert bundle.cost.tokens == asked.judgement.tokens == 7 * 110
    assert "nav.lamps" in text_of(fake.requests[0]), "actions name elements by their lasting ids"


def test_a_fact_that_does_not_hold_costs_its_own_part() -> None:
    bundle, _, _ = run(judged(criterion_a=on("red one", "NOT SUCCESS")))
    assert values(bundle)["1/1.1"] == 1.0 and values(bundle)["1/1.2"] == 0.0
    assert bundle.score == pytest.approx((0.5 + 1.0) / 2) and bundle.binary == 0.0 and not bundle.passed
    assert next(part.evidence for part in bundle.parts if part.name == "1/1.2").endswith("red one")


def test_an_invented_answer_is_worth_nothing() -> None:
    bundle, fake, _ = run(judged(criterion_b=says("NOT SUCCESS", "never shown")))
    assert bundle.score == 0.0 and not bundle.passed and bundle.abstained is None
    assert fake.count("criterion_a") == 0


def test_without_an_answer_nothing_is_claimed_and_nothing_holds() -> None:
    bundle, _, _ = run(judged(), EVIDENCE.model_copy(update={"answer": ""}))
    assert bundle.score == 0.0
    gate = next(part for part in bundle.parts if part.name.startswith("gate/"))
    assert gate.value == 1.0 and NO_CLAIM in gate.evidence


def test_votes_are_the_confidence() -> None:
    bundle, _, _ = run(judged(criterion_a=split), votes=3)
    assert values(bundle)["2/2.1"] == pytest.approx(2 / 3)


def test_the_page_after_the_last_action_is_shown_last() -> None:
    shots: list[str] = []

    def screenshot(name: str) -> bytes:
        shots.append(name)
        assert threading.current_thread() is not threading.main_thread(), "files are read beside the event loop"
        return jpeg(200 if name == "last" else 9)

    async def main(evidence: GradingEvidence) -> FakeJudge:
        async with fake_judge(judged()) as fake, Judge(config(fake.url)) as judge:
            asked = RubricJudge(judge, RUBRIC, instruction="Buy a red lamp.", screenshot=screenshot)
            await grade(RUBRIC, evidence, judge=asked)
            return fake

    fake = asyncio.run(main(EVIDENCE.model_copy(update={"final_screenshot": "last"})))
    assert shots == ["0" * 64] * 3 + ["last"]
    fact = next(each for each in fake.requests if purpose_of(each) == "criterion_a")
    assert images_of(fact)[-1] == data_url(jpeg(200)) and "Screenshot 4 of 4:" in text_of(fact)
    assert f"4. {THE_END} at {DONE.url}" in text_of(fact)
    assert fake.count("keyframe") == 3, "the last one is shown without being asked about"
    for same in ("", "0" * 64):  # none, or the picture of the last step: it changed nothing
        fake = asyncio.run(main(EVIDENCE.model_copy(update={"final_screenshot": same})))
        assert fake.count("keyframe") == 2 and THE_END not in text_of(fake.requests[0])


def split(fake: FakeJudge, request: Any) -> bytes:
    """One of three votes is no: each has a seed of its own."""
    return says("NOT SUCCESS" if request["seed"] % 3 == 0 else "SUCCESS")


def test_a_judge_that_cannot_say_abstains() -> None:
    bundle, _, _ = run(lambda fake, request: None, retries=0)
    assert bundle.score is None and bundle.abstained is not None and not bundle.passed


def test_one_verdict_for_the_whole_stands_for_every_fact() -> None:
    bundle, fake, _ = run(judged(verdict=says("SUCCESS", "done")), style="webvoyager")
    assert bundle.score == 1.0 and fake.count("verdict") == 1 and fake.count("criterion_a") == 0
    assert any(NOT_APART in part.evidence for part in bundle.parts)
    assert run(judged(verdict=says("NOT SUCCESS", "not done")), style="webvoyager")[0].score == 0.0
