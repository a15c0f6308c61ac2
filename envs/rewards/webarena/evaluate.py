"""Runs all WebArena evaluators of a task: the benchmark's score and a partial one."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Protocol

from pydantic import Field

from envs.rewards.judge import CallRecord, Judgement
from envs.rewards.page_text import CUT
from envs.rewards.webarena.match import (
    exact_match,
    has_one_of,
    includes_one,
    must_include,
    same_url,
    url_match,
    within,
)
from envs.rewards.webarena.page_images import SeenPictures, compare_likeness, seen_pictures
from envs.rewards.webarena.program import compare_page
from envs.rewards.webarena.state import compare_state
from envs.types import Record
from envs.types.evidence import PageText
from envs.types.webarena import NOT_ACHIEVABLE, PLACEHOLDER, EvalType, VisualQuestion, WebArenaEval

NO_PAGE = "there is no page to look at"


class AnswerJudge(Protocol):
    """Compares answers in other words; `envs.rewards.judge.Judge` is one."""

    async def compare(self, question: str, reference: str, answer: str, *, unachievable: bool = False) -> Judgement:
        """Passed, failed or abstained."""
        ...

    async def ask_pictures(self, question: str, answer: str, pictures: Sequence[bytes]) -> Judgement:
        """The same of: one of the pictures has this answer to the question."""
        ...


class Part(Record):
    """One comparison."""

    evaluator: EvalType
    name: str
    """``exact_match``, ``must_include 0``, ``program_html 2``…"""
    value: float | None = Field(ge=0, le=1)
    """Share that holds; below 1 the part fails. ``None``: unavailable, and ``evidence`` says
    why."""
    evidence: str


class EvaluatorResult(Record):
    """Result of the evaluators for an episode."""

    score: float | None
    """The benchmark's: 1 if all parts hold, 0 if one does not, ``None`` if that is not known."""
    partial: float | None
    """Mean over evaluators of the mean of their available parts; ``None`` without any."""
    parts: tuple[Part, ...]
    calls: tuple[CallRecord, ...] = ()
    """Calls of the judge."""

    @property
    def abstained(self) -> str | None:
        """Reason why there is no score; ``None`` if there is one."""
        if self.score is not None:
            return None
        return "; ".join(f"{part.name}: {part.evidence}" for part in self.parts if part.value is None)


async def evaluate(
    evaluators: WebArenaEval,
    *,
    question: str,
    answer: str | None,
    last_url: str,
    seen: Sequence[PageText] = (),
    judge: AnswerJudge | None = None,
) -> EvaluatorResult:
    """Grade an episode.

    Args:
        question: Instruction of the task.
        answer: Answer of the policy; ``None`` counts as empty, as in the benchmark.
        last_url: Address on which the episode ended.
        seen: Results of `read_pages`, `read_state` and `read_images`, for program_html, state_match
            and page_image_query.
        judge: Judge for fuzzy_match, for the reasons of tasks that cannot be done, and for
            questions about pictures.
    """
    grader = _Grader(evaluators, question, answer or "", last_url, judge)
    if EvalType.STRING_MATCH in evaluators.eval_types:
        await grader.strings()
    if EvalType.URL_MATCH in evaluators.eval_types:
        grader.address()
    if EvalType.PROGRAM_HTML in evaluators.eval_types:
        await grader.pages(seen)
        seen = seen[len(evaluators.program_html) :]
    if EvalType.STATE_MATCH in evaluators.eval_types:
        grader.state(seen)
        seen = seen[len(evaluators.state) :]
    if EvalType.PAGE_IMAGE_QUERY in evaluators.eval_types:
        await grader.images(seen)
    parts = tuple(grader.parts)
    return EvaluatorResult(score=product(parts), partial=partial(parts), parts=parts, calls=tuple(grader.calls))


def product(parts: tuple[Part, ...]) -> float | None:
    """1 if all hold, 0 if one does not whatever the others are, ``None`` if it hangs on what is
    unavailable."""
    values = [part.value for part in parts]
    if any(value is not None and value < 1 for value in values):
        return 0.0
    return None if None in values else 1.0


def partial(parts: tuple[Part, ...]) -> float | None:
    """Mean over evaluators of the mean over their available parts."""
    means = []
    for evaluator in EvalType:
        values = [part.value for part in parts if part.evaluator is evaluator and part.value is not None]
        if values:
            means.append(math.fsum(values) / len(values))
    return math.fsum(means) / len(means) if means else None


class _Grader:
    def __init__(
        self, rules: WebArenaEval, question: str, answer: str, last_url: str, judge: AnswerJudge | None
    ) -> None:
        self.rules = rules
        self.question = question
        self.answer = answer
        self.last_url = last_url
        self.judge = judge
        self.parts: list[Part] = []
        self.calls: list[CallRecord] = []

    async def strings(self) -> None:
        wanted = self.rules.reference_answers
        assert wanted is not None
        if wanted.exact_match is not None:
            self._string("exact_match", exact_match(wanted.exact_match, self.answer), wanted.exact_match)
        for number, reference in enumerate(wanted.must_include):
            held = includes_one(reference, self.answer, alone=len(wanted.must_include) == 1, words=self.rules.visual)
            self._string(f"must_include {number}", held, reference)
        for number, reference in enumerate(wanted.must_exclude):
            held = must_include(reference, self.answer, alone=True, words=self.rules.visual)
            self._string(f"must_exclude {number}", not held, reference)
        if wanted.one_of:
            self._string("one_of", has_one_of(wanted.one_of, self.answer), " or ".join(wanted.one_of))
        for number, bounds in enumerate(wanted.required_values):
            self._string(f"required_values {number}", within(bounds, self.answer), bounds)
        if wanted.fuzzy_match == NOT_ACHIEVABLE:
            await self._unachievable()
        else:
            fuzzy = (wanted.fuzzy_match,) if isinstance(wanted.fuzzy_match, str) else wanted.fuzzy_match
            for number, reference in enumerate(fuzzy):
                await self._judged(f"fuzzy_match {number}", reference, self.answer)

    def address(self) -> None:
        wanted = self.rules.reference_url or ""
        if (placeholder := PLACEHOLDER.search(wanted)) is not None:
            self._add(EvalType.URL_MATCH, "url_match", None, f"the address of {placeholder.group()} is not known")
            return
        exact = self.rules.url_note == "EXACT"
        held = same_url(wanted, self.last_url, exact=exact) if self.rules.visual else url_match(wanted, self.last_url)
        if not held and self.last_url.endswith(CUT):
            self._add(EvalType.URL_MATCH, "url_match", None, f"the address {self.last_url[:200]} is shortened")
            return
        self._add(EvalType.URL_MATCH, "url_match", float(held), f"{self.last_url} for {wanted}")

    async def pages(self, seen: Sequence[PageText]) -> None:
        for number, check in enumerate(self.rules.program_html):
            value, evidence = (None, NO_PAGE)
            if number < len(seen):
                if check.required_contents.fuzzy_match and not seen[number].trouble:
                    reference, text = ", ".join(check.required_contents.fuzzy_match), seen[number].text
                    await self._judged(f"fuzzy_match page {number}", reference, text, EvalType.PROGRAM_HTML)
                    continue
                value, evidence = compare_page(check, seen[number], words=self.rules.visual)
            self._add(EvalType.PROGRAM_HTML, f"program_html {number}", value, evidence)

    def state(self, seen: Sequence[PageText]) -> None:
        for number, check in enumerate(self.rules.state):
            value, evidence = compare_state(check, seen[number]) if number < len(seen) else (None, NO_PAGE)
            self._add(EvalType.STATE_MATCH, f"state_match {number}", value, evidence)

    async def images(self, seen: Sequence[PageText]) -> None:
        for number, check in enumerate(self.rules.page_image_query):
            trouble = seen[number].trouble if number < len(seen) else NO_PAGE
            pictures = SeenPictures(count=0, unread=(trouble,)) if trouble else seen_pictures(seen[number])
            if check.eval_fuzzy_image_match:
                value, evidence = compare_likeness(check, pictures)
                self._add(EvalType.PAGE_IMAGE_QUERY, f"eval_fuzzy_image_match {number}", value, evidence)
            for place, asked in enumerate(check.eval_vqa):
                await self._asked(f"eval_vqa {number}.{place}", asked, pictures)

    async def _asked(self, name: str, asked: VisualQuestion, seen: SeenPictures) -> None:
        value, evidence = None, "; ".join(seen.unread)
        if seen.pictures and self.judge is None:
            evidence = "needs a judge, and there is none"
        elif seen.pictures:
            assert self.judge is not None
            shown = [base64.b64decode(one) for one in seen.pictures]
            verdict = await self.judge.ask_pictures(asked.question, asked.answer, shown)
            self.calls += verdict.calls
            if verdict.state == "passed" or not seen.unread:
                value = None if verdict.state == "abstained" else float(verdict.state == "passed")
                evidence = verdict.reason
        elif not seen.unread:
            value, evidence = 0.0, "the page has no such picture"
        self._add(EvalType.PAGE_IMAGE_QUERY, name, value, f"{asked.question} {asked.answer}: {evidence}")

    async def _unachievable(self) -> None:
        """``N/A`` itself will do; otherwise the answer must give the right reason."""
        if exact_match(NOT_ACHIEVABLE, self.answer):
            self._string("unachievable", True, NOT_ACHIEVABLE)
        elif not self.rules.string_note.strip():
            self._string("unachievable", False, f"{NOT_ACHIEVABLE} (the task gives no reason to compare with)")
        else:
            await self._judged("unachievable", self.rules.string_note, self.answer, unachievable=True)

    async def _judged(
        self,
        name: str,
        reference: str,
        text: str,
        evaluator: EvalType = EvalType.STRING_MATCH,
        *,
        unachievable: bool = False,
    ) -> None:
        if not text.strip() and not unachievable:  # as in the benchmark, which does not ask either
            self._add(evaluator, name, 0.0, f"'' for {reference!r}")
            return
        if self.judge is None:
            self._add(evaluator, name, None, "needs a judge, and there is none")
            return
        verdict = await self.judge.compare(self.question, reference, text, unachievable=unachievable)
        self.calls += verdict.calls
        value = None if verdict.state == "abstained" else float(verdict.state == "passed")
        self._add(evaluator, name, value, verdict.reason)

    def _string(self, name: str, held: bool, reference: str) -> None:
        self._add(EvalType.STRING_MATCH, name, float(held), f"{self.answer[:200]!r} for {reference!r}")

    def _add(self, evaluator: EvalType, name: str, value: float | None, evidence: str) -> None:
        self.parts.append(Part(evaluator=evaluator, name=name, value=value, evidence=evidence))
