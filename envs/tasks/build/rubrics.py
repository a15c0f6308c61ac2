"""Rubrics of imported and written tasks, and the right answers that rows bring along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.ends import max_steps
from envs.types import Rubric, WebTask, rubric_hash


def right_answer(source: str, row: Mapping[str, Any] | None) -> str | None:
    """The answer that the row of a task without a rubric says is right: the texts of WebArena's string match; other sets tell none."""
    if source != "webarena" or row is None:
        return None
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
