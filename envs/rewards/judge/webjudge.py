"""Styles with one verdict per episode: WebJudge (Online-Mind2Web) and WebVoyager."""

from __future__ import annotations

import asyncio

from envs.rewards.judge.decision import abstain, reject, rule
from envs.rewards.judge.prompts import about_pictures, key_points
from envs.rewards.judge.records import Judgement, Purpose
from envs.rewards.judge.verdict import read_points, read_score
from envs.rewards.judge.votes import JudgeCalls

KEEP_FROM = 3
"""Minimum score of a screenshot that is shown (Online-Mind2Web)."""

MAX_KEPT = 50
"""Maximum screenshots of a WebJudge verdict (Online-Mind2Web); ``max_images`` may lower it."""


async def webjudge(grading: JudgeCalls) -> Judgement:
    """Judge an episode by WebJudge: key points, scores of the screenshots, one verdict.

    The verdict sees the screenshots with a score of 3 and more. An answer is not needed.
    """
    episode, config = grading.episode, grading.config
    points = await grading.client.ask(key_points(episode), read_points, grading.calls.append)
    if points.value is None:
        return abstain(grading, f"key_points: {points.record.error}: {points.record.trouble}")
    scores = await _scores(grading)
    shown = chosen([score for score, _ in scores], min(MAX_KEPT, config.max_images))
    # A page may have dictated what a model wrote about it, so these remarks are data.
    notes = [(f"what a model saw in screenshot {index + 1}", scores[index][1]) for index in shown if scores[index][1]]
    question = about_pictures(
        Purpose.VERDICT,
        episode,
        shown,
        page_text_chars=config.page_text_chars,
        points=points.value,
        notes=notes,
    )
    return rule(grading, [await grading.decide(question)])


async def webvoyager(grading: JudgeCalls) -> Judgement:
    """Judge the last screenshots and the answer. Without an answer it fails, without a call."""
    episode, config = grading.episode, grading.config
    if episode.answer is None:
        return reject(grading, "the episode gave no answer")
    count = len(episode.steps)
    shown = list(range(max(0, count - config.last_images), count))
    question = about_pictures(Purpose.VERDICT, episode, shown, page_text_chars=config.page_text_chars)
    return rule(grading, [await grading.decide(question)])


def chosen(scores: list[int | None], max_count: int) -> list[int]:
    """Return the indices of the screenshots to show, ascending.

    These are the ones with a score of at least `KEEP_FROM`, the ones without a score, and the last.
    If there are too many, the best are shown, and of equal scores the later ones.
    """
    last = len(scores) - 1
    wanted = [number for number, score in enumerate(scores) if score is None or score >= KEEP_FROM or number == last]

    def rank(number: int) -> tuple[bool, int, int]:
        score = scores[number]
        return number == last, KEEP_FROM if score is None else score, number

    return sorted(sorted(wanted, key=rank, reverse=True)[:max_count])


async def _scores(grading: JudgeCalls) -> list[tuple[int | None, str]]:
    """Return (score, remark) of each screenshot; the score is ``None`` if the call failed."""
    episode = grading.episode
    questions = [
        about_pictures(Purpose.RELEVANCE, episode, [index], page_text_chars=0, with_answer=False)
        for index in range(len(episode.steps))
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(grading.client.ask(question, read_score, grading.calls.append)) for question in questions
        ]
    values = [task.result().value for task in tasks]
    return [value if value is not None else (None, "") for value in values]
