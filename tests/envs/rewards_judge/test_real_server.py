"""The judge before a real server, any OpenAI-compatible one that takes pictures and schemas. What
it decides is not asked: a random model will do.

    export ROLLWRIGHT_JUDGE_URL=http://127.0.0.1:8000/v1 ROLLWRIGHT_JUDGE_MODEL=tiny
    pytest -s tests/envs/rewards_judge/test_real_server.py

benchmarks/judge-servers.md tells how to serve a small model by vLLM on a CPU, and what was seen.
"""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from envs.chat import CallError, Ledger
from envs.rewards.judge import (
    CallRecord,
    Judge,
    JudgeCase,
    JudgeConfig,
    JudgedFact,
    Judgement,
    JudgeModels,
    JudgeStep,
    JudgeStyle,
    Purpose,
)

URL, MODEL = os.environ.get("ROLLWRIGHT_JUDGE_URL", ""), os.environ.get("ROLLWRIGHT_JUDGE_MODEL", "")
pytestmark = [
    pytest.mark.skipif(not (URL and MODEL), reason="ROLLWRIGHT_JUDGE_URL and ROLLWRIGHT_JUDGE_MODEL name no server"),
    pytest.mark.timeout(900),
]
EPISODES = 6


def config(**changes: Any) -> JudgeConfig:
    """Twice the length of a reply that a schema allows, in tokens of a model without any sense; no
    second try."""
    known: dict[str, Any] = {
        "models": JudgeModels(default=MODEL),
        "structured": "json_schema",
        "max_tokens": 1600,
        "retries": 0,
        "concurrency": 8,
        "timeout": 300.0,
        "api_key_env": "ROLLWRIGHT_JUDGE_KEY" if "ROLLWRIGHT_JUDGE_KEY" in os.environ else None,
    }
    return JudgeConfig.model_validate({"base_url": URL, **known, **changes})


def screenshot(number: int) -> bytes:
    """A page of 640x480 with something to read."""
    picture, data = Image.new("RGB", (640, 480), "white"), io.BytesIO()
    draw = ImageDraw.Draw(picture)
    draw.rectangle((20, 20, 620, 80), fill=(30, 90, 200))
    draw.text((40, 120), f"Kettles by price, page {number}: 19.99, 24.50, 31.00", fill="black")
    picture.save(data, "JPEG")
    return data.getvalue()


def episode(number: int, steps: int = 3) -> JudgeCase:
    return JudgeCase(
        instruction=f"Find the price of the cheapest kettle in shop {number}.",
        steps=tuple(
            JudgeStep(
                screenshot=screenshot(10 * number + step), action=f"click [{step}]", url=f"http://shop.test/{step}"
            )
            for step in range(steps)
        ),
        answer="19.99",
        facts=(
            JudgedFact(fact_id="sorted", text="the list is sorted by price", group="search"),
            JudgedFact(fact_id="price", text="the answer is the first price of the list"),
        ),
        reference_answer="19.99",
    )


def judge_all(settings: JudgeConfig, ledger: Ledger | None = None, count: int = EPISODES) -> list[Judgement]:
    """All at once; says what came of it."""

    async def main() -> list[Judgement]:
        async with Judge(settings, ledger) as judge:
            return await asyncio.gather(*(judge.judge(episode(number)) for number in range(count)))

    began = time.monotonic()
    found = asyncio.run(main())
    seconds, calls = time.monotonic() - began, [call for each in found for call in each.calls]
    errors = Counter(f"{call.error}: {call.trouble[:60]}" for call in calls if call.error is not None)
    valid = sum(call.error is None for call in calls)
    print(
        f"\n{settings.style}, {settings.structured}: {valid} of {len(calls)} replies valid, {sum(each.requests for each in found) / seconds:.2f} "
        f"requests/s, {sum(each.tokens for each in found)} tokens, {dict(Counter(each.state for each in found))} {dict(errors)}"
    )
    return found


def questions(found: list[Judgement], purpose: Purpose) -> list[CallRecord]:
    return [call for each in found for call in each.calls if call.purpose is purpose]


@pytest.mark.parametrize("style", JudgeStyle)
def test_every_question_of_a_style_is_answered_in_form(style: JudgeStyle) -> None:
    found = judge_all(config(style=style))
    calls = [call for each in found for call in each.calls]
    assert calls and [call for call in calls if call.error is not None] == []
    assert all(each.state in ("passed", "failed") for each in found if not each.blocked)
    assert not any(call.estimated for call in calls), "the server counts tokens itself"


def test_votes_at_a_temperature_are_read_too() -> None:
    """Seeds differ, so a model without any sense says both: more questions come up than at
    temperature 0."""
    found = judge_all(config(temperature=1.0, votes=3))
    calls = [call for each in found for call in each.calls]
    print(dict(Counter(str(call.purpose) for call in calls)))
    assert calls and [call for call in calls if call.error is not None] == []
    assert {call.vote for call in calls} == {0, 1, 2}


def test_pictures_are_seen_by_the_model() -> None:
    """A question costs more tokens with each screenshot that it shows."""
    found = judge_all(config(style=JudgeStyle.WEBVOYAGER, last_images=1), count=1)
    more = judge_all(config(style=JudgeStyle.WEBVOYAGER, last_images=3), count=1)
    (one,), (three,) = questions(found, Purpose.VERDICT), questions(more, Purpose.VERDICT)
    assert (one.images, three.images) == (1, 3)
    assert three.prompt_tokens - one.prompt_tokens > 2 * 30, "a caption has less than that"


async def test_the_budget_of_two_judges_holds(tmp_path: Path) -> None:
    settings = config(budget_requests=7)
    async with (
        Judge(settings, Ledger(tmp_path / "spent")) as one,
        Judge(settings, Ledger(tmp_path / "spent")) as other,
    ):
        found = await asyncio.gather(*(judge.judge(episode(number)) for judge in (one, other) for number in range(2)))
    spent = Ledger(tmp_path / "spent").read()
    assert sum(each.requests for each in found) == spent.requests == 7
    assert sum(each.tokens for each in found) == spent.tokens > 0


def test_a_model_that_is_not_served_is_refused_and_not_asked_for_again() -> None:
    (found,) = judge_all(config(models=JudgeModels(default="nobody-serves-this"), retries=2), count=1)
    assert found.state == "abstained"
    assert {(call.error, call.requests) for call in found.calls} == {(CallError.REFUSED, 1)}


def test_without_schemas_nothing_is_raised() -> None:
    """A random model answers anything; what cannot be read abstains."""
    (found,) = judge_all(config(structured="none", max_tokens=100, retries=1), count=1)
    assert {call.error for call in found.calls} <= {None, CallError.MALFORMED}
