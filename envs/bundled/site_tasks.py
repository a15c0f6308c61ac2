"""Parts that the tasks of recipes' sites share: facts, a task, a file of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.bundled.generate.moves import Plan
from envs.types import WebTask

SolvedTasks = Iterable[tuple[WebTask, Plan]]
"""Tasks, each with a plan that solves it."""


def rows(query: str, *wanted: tuple[str | int, ...]) -> Mapping[str, Any]:
    """Return a fact: a query of the site's database gives these rows."""
    return {"type": "server_sql", "query": query, "rows": wanted}


def answer(text: str, match: str = "exact") -> Mapping[str, Any]:
    """Return a fact: the answer is this."""
    return {"type": "answer", "expected": [text], "match": match}


def shown(selector: str) -> Mapping[str, Any]:
    """Return a fact: the page at the end has such an element."""
    return {"type": "dom_element_present", "selector": selector}


def site_task(
    site: str,
    kind: str,
    number: int,
    text: str,
    fact: Mapping[str, Any],
    *,
    path: str,
    gates: Sequence[Mapping[str, Any]],
    difficulty: int,
    page: Mapping[str, Any] | None = None,
) -> WebTask:
    """Make a task with a required fact, one of the page at the end, and gates on what must not
    have changed."""
    facts = [{"id": kind, **fact}, *([] if page is None else [{"id": "page", **page}])]
    return WebTask.model_validate(
        {
            "task_id": f"{site}-{kind}/{number}",
            "site": site,
            "kind": f"{site}-{kind}",
            "path": path,
            "instruction": text,
            "difficulty": difficulty,
            "horizon": 15,
            "seeds": {"train": {"start": 0, "stop": 1}},
            "needs_reading": True,
            "rubric": {
                "fact_groups": [{"name": kind, "facts": facts}],
                "gates": gates,
                "pass_threshold": 1.0,
                "pass_requirements": {"required_fact_ids": [kind]},
            },
        }
    )


def write_tasks(site: str, database: str, tasks_of: Callable[[Path], SolvedTasks], file: str) -> None:
    """Write the tasks of a built site to a file.

    Args:
        database: File of the database, in the state folder.
        tasks_of: Function of the database that makes them.
    """
    from envs.sites import build_of, find_recipe

    build = build_of(find_recipe(site))
    build.require_finished()
    lines = [task.model_dump_json(exclude_none=True) for task, _ in tasks_of(build.state / database)]
    Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
