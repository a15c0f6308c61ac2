"""Rubric writer: samples drafts, retries with their flaws, takes the majority."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from envs.rewards.judge import DamagedLedger, Ledger
from envs.rewards.judge.client import JudgeClient
from envs.rewards.judge.payloads import Question
from envs.rewards.judge.records import CallError, CallRecord
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
"""Characters of a written instruction."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Writing(Generic[T]):
    """What came of asking for something: at least one of ``value``, ``refused`` and ``unanswered``, and never ``refused`` with another."""

    value: T | None
    calls: tuple[CallRecord, ...]
    refused: str | None = None
    """What was wrong with what was written; asking again would give the same."""
    unanswered: str | None = None
    """The endpoint gave no answer to a sample; another time it may. With a ``value`` beside it the other samples agree without it, and with it
    they may agree on more."""
    share: float = 1.0
    """Facts agreed on, of all facts written."""


@dataclass(frozen=True, slots=True)
class _Sample(Generic[T]):
    """One sample: its value, or why there is none."""

    value: T | None
    refused: str = ""
    lost: str = ""


@dataclass(frozen=True, slots=True)
class _Reading(Generic[T]):
    """A reply and what is wrong with it."""

    reply: str
    value: T | None
    problem: str = ""


class RubricWriter:
    """Writes rubrics and instructions by an endpoint; used as ``async with``.

    Raises:
        ConfigError: when entered, the variable of the key is not set.
        StorageError: when made, the cache's folder cannot be.
    """

    def __init__(self, config: WriterConfig, ledger: Ledger | None = None) -> None:
        """
        Args:
            ledger: Where the budget is counted together with other writers of the build; ``None``: it is this writer's own.
        """
        self.config = config
        self._client = JudgeClient(config.endpoint, ledger)

    @property
    def damage(self) -> DamagedLedger | None:
        """Why this writer gets no answer any more until somebody mends its ledger; ``None``: it can count, as of its last request."""
        return self._client.budget.damage

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._client.__aexit__(*error)

    async def write(self, task: WebTask, reference: str | None = None) -> Writing[Rubric]:
        """A rubric for a task: the facts that most samples have, as the sample that has them all and least besides words them.

        Args:
            reference: The right answer, if the task's set gives one; it becomes a fact.
        """
        if (reason := explain_ungradable(task.instruction, reference)) is not None:
            return Writing(None, (), refused=reason)
        calls: list[CallRecord] = []

        def read(reply: str) -> RubricDraft:
            draft = read_draft(reply)
            if found := find_flaws(draft, task.instruction or "", reference, self.config.max_facts):
                raise MalformedReply("; ".join(found[:MAX_NAMED]))
            return draft

        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(
                    self._sample(lambda refused: rubric_question(task, reference, refused), read, calls.append, vote)
                )
                for vote in range(self.config.samples)
            ]
        return self._vote([each.result() for each in running], reference, tuple(calls))

    async def write_part(self, task: WebTask, rubric: Rubric) -> Writing[str]:
        """The instruction of a sub-task of ``task`` that is graded by ``rubric``, some of the groups of the task's own."""
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
        """Ask until a reply can be used, with what was wrong with the last one, ``attempts`` times at most."""
        refused: list[tuple[str, str]] = []

        def reading(reply: str) -> _Reading[T]:
            # Told to the model, not to the client: that would ask the same question again.
            try:
                return _Reading(reply, read(reply))
            except MalformedReply as error:
                return _Reading(reply, None, str(error))

        for _ in range(self.config.attempts):
            asked = await self._client.ask(question(refused), reading, keep, vote)
            found = asked.value
            if found is None:
                trouble = f"{asked.record.error}: {asked.record.trouble}"
                malformed = asked.record.error is CallError.MALFORMED
                return _Sample(None, refused=trouble) if malformed else _Sample(None, lost=trouble)
            if found.value is not None:
                return _Sample(found.value)
            refused.append((found.reply, found.problem))
        return _Sample(None, refused=refused[-1][1])

    def _vote(
        self, samples: Sequence[_Sample[RubricDraft]], reference: str | None, calls: tuple[CallRecord, ...]
    ) -> Writing[Rubric]:
        drafts = [sample.value for sample in samples if sample.value is not None]
        agreement = agree(drafts, self.config.samples, self.config.agreement)
        lost = next((sample.lost for sample in samples if sample.lost), None)
        if agreement.draft is not None:
            return Writing(to_rubric(agreement.draft, reference), calls, unanswered=lost, share=agreement.share)
        if lost is not None:
            return Writing(None, calls, unanswered=lost, share=agreement.share)
        why = Counter(sample.refused for sample in samples if sample.refused)
        counted = [f"{count} of {len(samples)} samples refused: {reason}" for reason, count in why.most_common(1)]
        reason = "; ".join([*([agreement.reason] if drafts else []), *counted])
        return Writing(None, calls, refused=f"rubric: {reason}", share=agreement.share)


def _read_instruction(reply: str, whole: str, kept: Sequence[FactGroup]) -> str:
    """The instruction of a reply.

    Raises:
        MalformedReply: it has another form, speaks of what the larger task does not, or says nothing of a kept group.
    """
    found = read_object(reply)
    said = found.get("instruction")
    if set(found) != {"instruction"} or not isinstance(said, str):
        raise MalformedReply("expected one key, instruction, with a text")
    said = " ".join(said.split())
    if not said or len(said) > MAX_INSTRUCTION:
        raise MalformedReply(f"instruction: expected 1 to {MAX_INSTRUCTION} characters, not {len(said)}")
    known = " ".join([whole, *(group.description for group in kept)])
    if invented := sorted(numbers(said) - numbers(known)):
        raise MalformedReply(f"instruction: names {', '.join(invented)}, which the larger task does not")
    if strange := [words for words in quoted_texts(said) if not contains_words(known, words)]:
        raise MalformedReply(f"instruction: quotes {strange[0]!r}, which the larger task does not say")
    for group in kept:
        about = content_words(" ".join([group.description, *(fact.description for fact in group.facts)]))
        if about and not about & content_words(said):
            raise MalformedReply(f"instruction: says nothing of {group.description or group.name!r}")
    return said
