"""Rubric writer: samples drafts, retries with their flaws, takes the majority."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from envs.chat import CallError, DamagedLedger, Ledger
from envs.rewards.judge.client import JudgeClient
from envs.rewards.judge.payloads import Question
from envs.rewards.judge.records import CallRecord
from envs.rewards.judge.verdict import MalformedReply, read_object
from envs.tasks.authoring.agreement import agree
from envs.tasks.authoring.checks import explain_ungradable, find_flaws
from envs.tasks.authoring.config import WriterConfig
from envs.tasks.authoring.draft import MAX_NAMED, RubricDraft, read_draft, to_rubric
from envs.tasks.authoring.prompts import instruction_question, rubric_question
from envs.tasks.authoring.words import content_words, numbers, quoted_texts
from envs.tasks.decompose import contains_words
from envs.types import FactGroup, Rubric, WebTask

MAX_INSTRUCTION = 1200
"""Length of a written instruction, in characters."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Writing(Generic[T]):
    """Result of asking the writer.

    At least one of ``value``, ``refused`` and ``unanswered`` is set, and ``refused`` is never set
    together with another.
    """

    value: T | None
    calls: tuple[CallRecord, ...]
    refused: str | None = None
    """Flaws of the written text; asking again would give the same."""
    unanswered: str | None = None
    """Trouble with a sample that the endpoint did not answer; another time it may.

    With a ``value`` beside it, the other samples agree without this one; with it they may agree on
    more.
    """


@dataclass(frozen=True, slots=True)
class _Sample(Generic[T]):
    """One sample: its value, or why there is none."""

    value: T | None
    refused: str = ""
    lost: str = ""


@dataclass(frozen=True, slots=True)
class _Reading(Generic[T]):
    """A reply and its problem."""

    reply: str
    value: T | None
    problem: str = ""


class RubricWriter:
    """Writes rubrics and instructions with a model endpoint; used as ``async with``.

    Raises:
        ConfigError: on entering, the variable of the key is not set.
        StorageError: on construction, the cache's folder cannot be made.
    """

    def __init__(self, config: WriterConfig, ledger: Ledger | None = None) -> None:
        """Make a writer of the configuration.

        Args:
            ledger: Ledger that counts the budget for all writers of a build; ``None`` counts for
                this writer alone.
        """
        self.config = config
        self._client = JudgeClient(config.endpoint, ledger)

    @property
    def damage(self) -> DamagedLedger | None:
        """Damage of the ledger, as of the last request.

        Until somebody repairs the ledger, this writer gets no answers. ``None`` if it is intact.
        """
        return self._client.budget.damage

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._client.__aexit__(*error)

    async def write(self, task: WebTask, reference: str | None = None) -> Writing[Rubric]:
        """Write a rubric of the facts that most samples have.

        The wording is that of the sample that has all of these facts and the fewest others.

        Args:
            reference: The right answer, if the task's set gives one; it becomes a fact.
        """
        if (reason := explain_ungradable(task.instruction, reference)) is not None:
            return Writing(None, (), refused=reason)
        calls: list[CallRecord] = []

        def read(reply: str) -> RubricDraft:
            draft = read_draft(reply)
            if flaws := find_flaws(draft, task.instruction or "", reference, self.config.max_facts):
                raise MalformedReply("; ".join(flaws[:MAX_NAMED]))
            return draft

        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(
                    self._sample(lambda refused: rubric_question(task, reference, refused), read, calls.append, vote)
                )
                for vote in range(self.config.samples)
            ]
        return self._vote([sampling.result() for sampling in running], reference, tuple(calls))

    async def write_part(self, task: WebTask, rubric: Rubric) -> Writing[str]:
        """Write the instruction of the sub-task of ``task`` that is graded by ``rubric``.

        The rubric has some of the groups of the task's own.
        """
        assert task.rubric is not None
        kept = {group.name for group in rubric.fact_groups}
        left_out = [group for group in task.rubric.fact_groups if group.name not in kept]
        calls: list[CallRecord] = []

        def read(reply: str) -> str:
            return _read_instruction(reply, task.instruction or "", rubric.fact_groups)

        def question(refused: Sequence[tuple[str, str]]) -> Question:
            return instruction_question(task, rubric.fact_groups, left_out, refused)

        try:
            sample = await self._sample(question, read, calls.append, 0)
        except ValueError as error:
            return Writing(None, tuple(calls), refused=str(error))
        if sample.value is None and sample.lost:
            return Writing(None, tuple(calls), unanswered=sample.lost)
        return Writing(sample.value, tuple(calls), refused=sample.refused or None)

    async def _sample(
        self,
        question: Callable[[Sequence[tuple[str, str]]], Question],
        read: Callable[[str], T],
        keep: Callable[[CallRecord], None],
        vote: int,
    ) -> _Sample[T]:
        """Ask until a reply can be used, up to ``attempts`` times, with the last flaws."""
        refused: list[tuple[str, str]] = []

        def reading(reply: str) -> _Reading[T]:
            # The model gets the problem, not the client, which would ask the same question again.
            try:
                return _Reading(reply, read(reply))
            except MalformedReply as error:
                return _Reading(reply, None, str(error))

        for _ in range(self.config.attempts):
            asked = await self._client.ask(question(refused), reading, keep, vote)
            result = asked.value
            if result is None:
                trouble = f"{asked.record.error}: {asked.record.trouble}"
                malformed = asked.record.error is CallError.MALFORMED
                return _Sample(None, refused=trouble) if malformed else _Sample(None, lost=trouble)
            if result.value is not None:
                return _Sample(result.value)
            refused.append((result.reply, result.problem))
        return _Sample(None, refused=refused[-1][1])

    def _vote(
        self, samples: Sequence[_Sample[RubricDraft]], reference: str | None, calls: tuple[CallRecord, ...]
    ) -> Writing[Rubric]:
        drafts = [sample.value for sample in samples if sample.value is not None]
        agreement = agree(drafts, self.config.samples, self.config.agreement)
        lost = next((sample.lost for sample in samples if sample.lost), None)
        if agreement.draft is not None:
            return Writing(to_rubric(agreement.draft, reference), calls, unanswered=lost)
        if lost is not None:
            return Writing(None, calls, unanswered=lost)
        why = Counter(sample.refused for sample in samples if sample.refused)
        counted = [f"{count} of {len(samples)} samples refused: {reason}" for reason, count in why.most_common(1)]
        reason = "; ".join([*([agreement.reason] if drafts else []), *counted])
        return Writing(None, calls, refused=f"rubric: {reason}")


def _read_instruction(reply: str, whole: str, kept: Sequence[FactGroup]) -> str:
    """Return the instruction of a reply.

    Raises:
        MalformedReply: it has another form, mentions what the larger task does not, or does not
            mention a kept group.
    """
    data = read_object(reply)
    instruction = data.get("instruction")
    if set(data) != {"instruction"} or not isinstance(instruction, str):
        raise MalformedReply("expected one key, instruction, with a text")
    instruction = " ".join(instruction.split())
    if not instruction or len(instruction) > MAX_INSTRUCTION:
        raise MalformedReply(f"instruction: expected 1 to {MAX_INSTRUCTION} characters, not {len(instruction)}")
    known = " ".join([whole, *(group.description for group in kept)])
    if invented := sorted(numbers(instruction) - numbers(known)):
        raise MalformedReply(f"instruction: names {', '.join(invented)}, which the larger task does not")
    if strange := [words for words in quoted_texts(instruction) if not contains_words(known, words)]:
        raise MalformedReply(f"instruction: quotes {strange[0]!r}, which the larger task does not say")
    for group in kept:
        about = content_words(" ".join([group.description, *(fact.description for fact in group.facts)]))
        if about and not about & content_words(instruction):
            raise MalformedReply(f"instruction: says nothing of {group.description or group.name!r}")
    return instruction
