"""Rubrics and right answers that imported rows bring along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.ends import max_steps
from envs.rewards.formats import from_webgym
from envs.tasks.write.draft import with_reference
from envs.types import Rubric, WebTask, rubric_hash


def brought_rubric(source: str, row: Mapping[str, Any] | None) -> Rubric | None:
    """The rubric of a row: WebGym's ``evaluator_reference`` with its reference answer; ``None`` for other sets and rows without.

    Raises:
        TaskError: it is no rubric; says where.
    """
    groups = row.get("evaluator_reference") if source == "webgym" and row is not None else None
    if not groups:
        return None
    return with_reference(from_webgym(_numbered(groups)), right_answer(source, row))


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


def _numbered(groups: list[Any]) -> list[Any]:
    """Groups with ids of their own; a text is a group of one fact."""
    made = []
    ids = [group.get("id") for group in groups if isinstance(group, dict)]
    plain = len(set(map(str, ids))) < len(ids) or None in ids or len(ids) < len(groups)
    for number, group in enumerate(groups, start=1):
        if isinstance(group, str):
            made.append({"id": number, "description": "", "facts": [group]})
        elif isinstance(group, dict) and plain:
            made.append({**group, "id": number})
        else:
            made.append(group)
    return made
