"""Imports sets of BrowserGym's packages in WebArena's form: WebArena-lite and TimeWarp."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from envs.tasks.imports.base import ForeignRow, RowFormat
from envs.tasks.imports.webarena import WebArena, WebArenaRow, fields_of, moved_start
from envs.types import Split, WebTask
from envs.types.webarena import EvalType, ReferenceAnswers, WebArenaEval


class WebArenaLiteRow(WebArenaRow):
    """One configuration of a task."""

    kept = WebArenaRow.kept | {"old_task_id"}


class WebArenaLite(WebArena):
    """The 165 tasks of WebArena-lite, a corrected part of WebArena with numbers of its own."""

    name = "webarena-lite"
    model = WebArenaLiteRow
    wheel_files = "browsergym/webarenalite/test_webarena_lite.raw.json"


class TimeWarpEval(ForeignRow):
    """Grading of a task."""

    kept = frozenset({"llm_model", "revision", "annotation"})

    eval_types: list[str] = Field(min_length=1)
    reference_answers: dict[str, Any]


class TimeWarpRow(ForeignRow):
    """One task."""

    kept = frozenset({"split", "additional_instructions"})

    task_id: int
    sites: list[str] = Field(min_length=1)
    start_url: str
    intent: str = Field(min_length=1)
    intent_template_id: int | None = None
    eval: TimeWarpEval


class TimeWarp(RowFormat[TimeWarpRow]):
    """The 231 tasks of TimeWarp: questions about a wiki, news and a shop in six designs.

    ``test.raw.llm_judge.json`` has them all for a judge, who grades them as WebArena's
    ``fuzzy_match``. Rows of ``test.raw.json`` that the package's own comparisons of texts, numbers
    and lists grade are refused. ``additional_instructions``, which tell the steps and the answer,
    are not shown to the policy.
    """

    name = "timewarp"
    model = TimeWarpRow
    split = Split.HELD_OUT
    instruction_key = "intent"
    url_key = "start_url"
    file_key = "task_id"
    wheel_files = "browsergym/timewarp/data/test.raw.llm_judge.json"

    def fields(self, row: TimeWarpRow) -> dict[str, Any]:
        """Return the fields of the task."""
        kind = row.sites[0] if row.intent_template_id is None else f"template-{row.intent_template_id}"
        return fields_of(row, _evaluators(row.eval), kind=kind, difficulty=len(row.eval.eval_types))

    def new_url(self, old: str, task: WebTask) -> str:
        """Return the start address, as a placeholder if it was one."""
        return moved_start(old, task)


ANSWERS = {"exact_match": "exact_match", "llm_judge": "fuzzy_match"}
"""Key of the reference answer that each of TimeWarp's evaluators reads."""


def _evaluators(given: TimeWarpEval) -> WebArenaEval:
    """Return the comparisons of an answer.

    Raises:
        ValueError: One is not known, or has nothing to compare with, as ``field: reason``.
    """
    for kind in given.eval_types:
        if kind not in ANSWERS:
            raise ValueError(
                f"eval.eval_types: {kind!r} cannot be graded here; take test.raw.llm_judge.json, where all tasks are llm_judge"
            )
        if not given.reference_answers.get(ANSWERS[kind]):
            raise ValueError(f"eval.reference_answers: {kind} needs {ANSWERS[kind]}")
    wanted = {ANSWERS[kind]: given.reference_answers[ANSWERS[kind]] for kind in given.eval_types}
    return WebArenaEval(eval_types=(EvalType.STRING_MATCH,), reference_answers=ReferenceAnswers.model_validate(wanted))
