"""Rubrics of imported and written tasks, and the reference answers of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.ends import max_steps
from envs.rewards import formats
from envs.types import Rubric, WebTask, rubric_hash


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
