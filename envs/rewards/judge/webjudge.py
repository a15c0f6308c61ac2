"""The two styles with one verdict: WebJudge (Online-Mind2Web) and WebVoyager."""

from __future__ import annotations

import asyncio

from envs.rewards.judge.decision import abstain, reject, rule
from envs.rewards.judge.prompts import about_pictures, key_points
from envs.rewards.judge.records import Judgement, Purpose
from envs.rewards.judge.verdict import read_points, read_score
from envs.rewards.judge.votes import Grading

KEEP_FROM = 3
"""Score from which a screenshot is shown (Online-Mind2Web)."""

MAX_KEPT = 50
"""Screenshots of a WebJudge verdict (Online-Mind2Web); ``max_images`` may lower it."""


async def webjudge(grading: Grading) -> Judgement:
    """Key points, a score 1 to 5 for each screenshot, and a verdict on those of 3 and more. An answer is not needed."""
    episode, config = grading.episode, grading.config
    asked = await grading.client.ask(key_points(episode), read_points, grading.calls.append)
    if asked.value is None:
        return abstain(grading, f"key_points: {asked.record.error}: {asked.record.trouble}")
    scores = await _scores(grading)
    shown = chosen([score for score, _ in scores], min(MAX_KEPT, config.max_images))
    # A page may have dictated what a model wrote about it, so it is data.
    notes = [(f"what a model saw in screenshot {each + 1}", scores[each][1]) for each in shown if scores[each][1]]
    question = about_pictures(
        Purpose.VERDICT,
        episode,
        shown,
        page_text_chars=config.page_text_chars,
        points=asked.value,
        notes=notes,
    )
    return rule(grading, [await grading.decide(question)])


async def webvoyager(grading: Grading) -> Judgement:
    """A verdict on the last screenshots and the answer; without an answer a failure, and no call."""
    episode, config = grading.episode, grading.config
    if episode.answer is None:
        return reject(grading, "the episode gave no answer")
    count = len(episode.steps)
    shown = list(range(max(0, count - config.last_images), count))
    question = about_pictures(Purpose.VERDICT, episode, shown, page_text_chars=config.page_text_chars)
    return rule(grading, [await grading.decide(question)])


def chosen(scores: list[int | None], most: int) -> list[int]:
    """Indices to show, ascending: scores from `KEEP_FROM`, those without a score, and the last; of too many the best,
    and of equal ones the later."""
    last = len(scores) - 1
    wanted = [number for number, score in enumerate(scores) if score is None or score >= KEEP_FROM or number == last]

    def rank(number: int) -> tuple[bool, int, int]:
        score = scores[number]
        return number == last, KEEP_FROM if score is None else score, number

    return sorted(sorted(wanted, key=rank, reverse=True)[:most])


async def _scores(grading: Grading) -> list[tuple[int | None, str]]:
    """Score and remark for each screenshot; no score where the call failed."""
    episode = grading.episode
    questions = [
        about_pictures(Purpose.RELEVANCE, episode, [each], page_text_chars=0, with_answer=False)
        for each in range(len(episode.steps))
    ]
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(grading.client.ask(question, read_score, grading.calls.append)) for question in questions
        ]
    values = [each.result().value for each in running]
    return [value if value is not None else (None, "") for value in values]
