"""WebGym's grading: blocking, keyframes, hallucination (criterion B), then each fact.

It differs from WebGym's own in two ways. A call that fails is an abstention, not a failed check.
The blocking check comes first, sees a sample of all screenshots (a captcha may be no keyframe) and
is also made for an episode without an answer, so a blocked episode costs one question. The judge is
asked about every fact, for partial credit, unless ``early_exit`` is set.
"""

from __future__ import annotations

import asyncio

from envs.rewards.judge.decision import abstain, reject, rule
from envs.rewards.judge.payloads import Question
from envs.rewards.judge.prompts import about_pictures, reference
from envs.rewards.judge.records import JudgeCheck, JudgedFact, Judgement, Purpose
from envs.rewards.judge.votes import JudgeCalls

WHOLE_TASK = "task"
"""Id of the fact that stands for a whole task without facts."""


async def webgym(grading: JudgeCalls) -> Judgement:
    """Judge an episode of at least one step."""
    episode, config = grading.episode, grading.config
    chars = config.page_text_chars
    sampled = grading.sample(config.blocking_images)
    blocking = await grading.decide(
        about_pictures(Purpose.BLOCKING, episode, sampled, page_text_chars=chars, with_answer=False)
    )
    if blocking.holds is None:
        return abstain(grading, f"blocking: {blocking.reason}")
    if blocking.holds:
        return abstain(grading, f"blocked: {blocking.reason}", blocked=True)
    if episode.answer is None:
        return reject(grading, "the episode gave no answer")
    shown = await keyframes(grading)
    grounded = await grading.decide(about_pictures(Purpose.CRITERION_B, episode, shown, page_text_chars=chars))
    if grounded.holds is None:
        return abstain(grading, f"criterion_b: {grounded.reason}")
    if not grounded.holds:
        return reject(grading, f"criterion_b: {grounded.reason}")
    facts = episode.facts
    if not facts and episode.reference_answer is None:
        facts = (JudgedFact(fact_id=WHOLE_TASK, text=episode.instruction),)
    questions = [
        about_pictures(Purpose.CRITERION_A, episode, shown, page_text_chars=chars, fact=fact) for fact in facts
    ]
    if episode.reference_answer is not None:
        questions.append(reference(episode))
    deciding = await _decide(grading, questions)
    return rule(grading, deciding, asked_all=len(deciding) == len(questions))


async def keyframes(grading: JudgeCalls) -> list[int]:
    """Return the indices of the keyframes, ascending, at most ``max_images``.

    These are the screenshots that are relevant or got no verdict, and the last one.
    """
    episode = grading.episode
    last = len(episode.steps) - 1
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                grading.decide(
                    about_pictures(Purpose.KEYFRAME, episode, [index], page_text_chars=0, with_answer=False), votes=1
                )
            )
            for index in range(last)
        ]
    kept = [number for number, task in enumerate(tasks) if task.result().holds is not False]
    return [*kept, last][-grading.config.max_images :]


async def _decide(grading: JudgeCalls, questions: list[Question]) -> list[JudgeCheck]:
    """Ask all questions at once or, with ``early_exit``, one by one until a check fails."""
    if not grading.config.early_exit:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(grading.decide(question)) for question in questions]
        return [task.result() for task in tasks]
    decided: list[JudgeCheck] = []
    for question in questions:
        decided.append(await grading.decide(question))
        if decided[-1].holds is False:
            break
    return decided
