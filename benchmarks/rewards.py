"""Programmatic rubrics graded per second on recorded episodes, one process, pages of realistic
size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import Figure
from envs.rewards import GradingEvidence, grade_by_program, read_rubric
from envs.types import Answer, Click, Element, Observation, Rubric, Step, rubric_hash

EPISODES = 64
STEPS = 10
ELEMENTS = 60
"""Of each page, as a shop's list of goods has."""
TEXT_CHARS = 8_000
"""The most that an observation holds by default."""
ROUNDS = 5
"""Medians of the rounds are reported."""


def run() -> list[Figure]:
    """A rubric of seven facts about the end of an episode, and one whose facts look at every
    page."""
    episodes = [_episode(seed) for seed in range(EPISODES)]
    end, ever = _rubric("end"), _rubric("ever")
    for rubric in (end, ever):
        bundle = grade_by_program(rubric, episodes[0])
        assert bundle.abstained is None and bundle.binary == 0 and len(bundle.parts) == 7, "the rubric does not grade"
    return [
        Figure("rubrics of 7 facts about the end", _rate(end, episodes), "1/s", ">= 1000"),
        Figure(f"rubrics of 7 facts, 4 about all {STEPS + 1} pages", _rate(ever, episodes), "1/s", ""),
    ]


def _rate(rubric: Rubric, episodes: Sequence[GradingEvidence]) -> float:
    """Gradings per second, each with the check of the hash."""
    expected = rubric_hash(rubric)
    rates = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for evidence in episodes:
            grade_by_program(rubric, evidence, expected_hash=expected)
        rates.append(len(episodes) / (time.perf_counter() - started))
    return statistics.median(rates)


def _rubric(when: str) -> Rubric:
    facts: list[dict[str, Any]] = [
        {"id": "at", "type": "url", "url": "/orders/12", "when": when},
        {"id": "confirmed", "type": "text", "text": "Order 12 is confirmed", "when": when},
        {"id": "shipped", "type": "text", "text": r"arrives on \d+ (May|June)", "match": "regex", "when": when},
        {"id": "invoice", "type": "element", "element": {"tag": "link", "text": "Invoice"}, "when": when},
    ]
    rest: list[dict[str, Any]] = [
        {"id": "total", "type": "answer", "expected": "42.5", "match": "number", "tolerance": 0.01},
        {"id": "paid", "type": "page_fact", "name": "paid", "value": True},
        {"id": "missing", "type": "text", "text": "This is on no page"},
    ]
    needs = {"required_fact_ids": ["at"], "required_group_ids": ["answer"]}
    groups = [{"name": "order", "weight": 2, "facts": facts}, {"name": "answer", "facts": rest}]
    return read_rubric({"fact_groups": groups, "pass_requirements": needs})


def _episode(seed: int) -> GradingEvidence:
    pages = [_page(seed * STEPS + number, last=number == STEPS) for number in range(STEPS + 1)]
    return GradingEvidence(
        steps=tuple(_step(index, page, STEPS) for index, page in enumerate(pages[:-1])),
        final=pages[-1],
        answer="It comes to $42.50",
        page_facts={"paid": True},
    )


def _page(number: int, *, last: bool) -> Observation:
    label = [f"Lamp {number}.{at} of brass" for at in range(ELEMENTS)]
    label[ELEMENTS // 2] = "Invoice" if last else label[ELEMENTS // 2]
    elements = tuple(
        Element(index=at + 1, tag="link", text=text, id=f"goods.lamp_{at}", box=(0, 20 * at, 100, 20))
        for at, text in enumerate(label)
    )
    words = "Order 12 is confirmed, it arrives on 3 May\n" if last else ""
    lines = [f'[{at + 1}] "{text}" a lamp of good brass for the table' for at, text in enumerate(label)]
    text = "\n".join(lines * (TEXT_CHARS // (len(lines) * len(lines[0])) + 1))
    return Observation(
        instruction="Buy the lamp",
        elements=elements,
        url=f"http://127.0.0.1:8080/{'orders/12' if last else f'goods/{number}'}",
        viewport=(1280, 720),
        text=text[: TEXT_CHARS - len(words)] + "\n" + words,
    )


def _step(index: int, page: Observation, steps: int) -> Step:
    return Step(
        index=index,
        observation=page,
        screenshot="0" * 64,
        prompt="",
        prompt_ids=(),
        response="",
        response_ids=(),
        logprobs=(),
        policy_version=0,
        action=Answer(text="It comes to $42.50") if index == steps - 1 else Click(element=1),
    )
