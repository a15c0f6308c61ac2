"""Rubrics and right answers that imported rows bring along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.ends import max_steps
from envs.rewards.formats import webgym_rubric
from envs.types import Rubric, WebTask, rubric_hash


def brought_rubric(source: str, row: Mapping[str, Any] | None) -> Rubric | None:
    """The rubric of a row: WebGym's ``evaluator_reference`` with its reference answer; ``None`` for other sets and rows without.

    Raises:
        TaskError: it is no rubric; says where.
    """
    return webgym_rubric(row) if source == "webgym" and row is not None else None


def right_answer(source: str, row: Mapping[str, Any] | None) -> str | None:
    """The answer that a row says is right: WebGym's ``reference_answer``, or the texts of WebArena's string match."""
    if row is None:
        return None
    found: object = None
    if source == "webgym":
        found = row.get("reference_answer")
    elif source == "webarena":
        answers = (row.get("eval") or {}).get("reference_answers") or {}
        found = answers.get("exact_match") or answers.get("must_include") or answers.get("fuzzy_match")
    if isinstance(found, list):
        found = "; ".join(map(str, found))
    return found if isinstance(found, str) and found.strip() else None


def with_rubric(task: WebTask, rubric: Rubric) -> WebTask:
    """The task graded by the rubric, which is frozen. A horizon that came of the old difficulty comes of the new one."""
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
