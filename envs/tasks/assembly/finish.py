"""Turns a candidate into lines of a shard: rubric, checks, sub-tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from envs.chat import CallError
from envs.ends import max_steps
from envs.rewards import formats
from envs.rewards.formats import asks_only_reference, rubric_of_instruction
from envs.tasks.assembly.records import Rejected, RejectionStage, ShardLine, ShardRequest
from envs.tasks.assembly.sources import Candidate
from envs.tasks.authoring import RubricWriter, Writing
from envs.tasks.content import content_key
from envs.tasks.decompose import decompose, not_decomposed, part_id, sub_rubrics, sub_task
from envs.tasks.rows import CHECKS
from envs.types import Rubric, WebTask, rubric_hash

T = TypeVar("T")


@dataclass
class Outcome:
    """Result of one row: an accepted task with its sub-tasks, or rejections."""

    lines: list[ShardLine] = field(default_factory=list)
    """The task, then its sub-tasks; empty if it was given up."""
    rejected: list[Rejected] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    """Questions that the endpoint gave no answer to."""
    read: bool = False
    """True if the row is a task."""
    written: bool = False
    """True if a model wrote the task's rubric."""
    whole: str | None = None
    """Reason why it has no sub-tasks."""
    requests: int = 0
    tokens: int = 0


async def finish(request: ShardRequest, candidate: Candidate, writer: RubricWriter | None) -> Outcome:
    """Give a candidate its rubric, check it, and split it into sub-tasks."""
    work = _Work(request, candidate, writer)
    await work.run()
    return work.outcome


class _Work:
    def __init__(self, request: ShardRequest, candidate: Candidate, writer: RubricWriter | None) -> None:
        self.request = request
        self.source = request.source
        self.candidate = candidate
        self.writer = writer
        self.outcome = Outcome(read=True)

    async def run(self) -> None:
        task = await self._add_rubric()
        if task is None:
            return
        if problems := [f"{name}: {reason}" for check in (*CHECKS, _check_facts) for name, reason in check(task)]:
            self._give_up(RejectionStage.CHECK, task, "; ".join(problems))
            return
        own = (self.candidate.key,) if self.candidate.key else ()
        row = self.candidate.row
        self.outcome.lines.append(ShardLine(row=row, keys=(*own, content_key(task)), task=task))
        for part in await self._make_parts(task):
            self.outcome.lines.append(ShardLine(row=row, keys=(content_key(part),), part_of=task.task_id, task=part))

    async def _add_rubric(self) -> WebTask | None:
        """Return the task with its rubric, or ``None`` if none could be written.

        The task stays as it is if no rubric is wanted or it has evaluators. A rubric that asks only
        for the reference answer is written anew; the writer keeps the answer.
        """
        task = self.candidate.task
        writes = self.source.write_rubrics
        if task.rubric is not None and not (writes and asks_only_reference(task.rubric)):
            return task
        if task.evaluators is not None or not writes:
            return task
        assert self.writer is not None
        answer = read_reference_answer(self.candidate.format, self.candidate.reference)
        made = self._accept(RejectionStage.RUBRIC, task, await self.writer.write(task, answer))
        if made is None:
            return None
        self.outcome.written = True
        return with_rubric(task, made)

    async def _make_parts(self, task: WebTask) -> list[WebTask]:
        rules = self.source.decompose
        if rules is None:
            return []
        if (reason := not_decomposed(task, rules)) is not None:
            self.outcome.whole = reason
            return []
        if self.source.part_words == "template":
            parts = decompose(task, rules, self.request.seed)
            for name, reason in parts.rejected:
                self._give_up(RejectionStage.PART, task, reason, name)
            return list(parts.tasks)
        written = [await self._write_part(task, rubric) for rubric in sub_rubrics(task, rules, self.request.seed)]
        return [part for part in written if part is not None]

    async def _write_part(self, task: WebTask, rubric: Rubric) -> WebTask | None:
        assert self.writer is not None
        name = part_id(task, rubric)
        words = self._accept(RejectionStage.PART, task, await self.writer.write_part(task, rubric), name)
        if words is None:
            return None
        try:
            return sub_task(task, rubric, words)
        except ValueError as error:
            self._give_up(RejectionStage.PART, task, str(error), name)
            return None

    def _accept(self, stage: RejectionStage, task: WebTask, writing: Writing[T], name: str = "") -> T | None:
        """Return what was written, or record why there is nothing.

        A refused text is rejected. An unanswered question is left to another build, even if the
        answers that did come agree: the set must not depend on how far an endpoint came. With
        ``give_up``, what these answers agree on is taken.
        """
        self.outcome.requests += sum(call.requests for call in writing.calls)
        self.outcome.tokens += sum(call.prompt_tokens + call.completion_tokens for call in writing.calls)
        uncounted = any(call.error is CallError.UNCOUNTED for call in writing.calls)  # no fault of the task's
        if writing.unanswered is not None and (uncounted or not self.request.give_up):
            self.outcome.unanswered.append(writing.unanswered)
            return None
        if writing.value is None:
            self._give_up(stage, task, writing.refused or f"no answer: {writing.unanswered}", name)
        return writing.value

    def _give_up(self, stage: RejectionStage, task: WebTask, reason: str, name: str = "") -> None:
        row = task.model_dump(mode="json", exclude_none=True)
        self.outcome.rejected.append(
            Rejected(source=self.source.name, stage=stage, task_id=name or task.task_id, reason=reason, task=row)
        )


def check_difficulty(task: WebTask) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) if the difficulty is not the number of the rubric's facts."""
    if task.rubric is not None and task.difficulty != task.rubric.fact_count and not _has_hidden_facts(task):
        yield "difficulty", f"is {task.difficulty}, and the rubric has {task.rubric.fact_count} facts"


def _check_facts(task: WebTask) -> Iterator[tuple[str, str]]:
    yield from check_difficulty(task)
    if task.rubric is not None and not task.rubric_hash:
        yield "rubric_hash", "is empty: the rubric was not frozen"


def _has_hidden_facts(task: WebTask) -> bool:
    """Return True if the only fact is that the task was done or rightly answered.

    Only the set can tell how difficult that is.
    """
    if task.rubric is None or task.instruction is None:
        return False
    return asks_only_reference(task.rubric) or task.rubric == rubric_of_instruction(task.instruction)


def read_reference_answer(source: str, row: Mapping[str, Any] | None) -> str | None:
    """Return the right answer of a row, if its set has answers without rubrics (WebGym)."""
    return (formats.webgym_reference_answer(row) or None) if source == "webgym" and row is not None else None


def with_rubric(task: WebTask, rubric: Rubric) -> WebTask:
    """Return the task graded by the rubric, which is frozen.

    A horizon that was derived from the old difficulty is derived from the new one.
    """
    difficulty = rubric.fact_count
    derived = task.horizon == max_steps(task.difficulty)
    return task.model_copy(
        update={
            "rubric": rubric,
            "rubric_hash": rubric_hash(rubric),
            "difficulty": difficulty,
            "horizon": max_steps(difficulty) if derived else task.horizon,
        }
    )
