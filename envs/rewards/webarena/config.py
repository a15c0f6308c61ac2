"""The task format of the public benchmark.

Somebody else's: keys that say nothing about the evaluation are kept out, not refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from envs.types import TaskError
from envs.types.webarena import (
    NOT_ACHIEVABLE,
    PLACEHOLDER,
    EvalType,
    Foreign,
    PageCheck,
    ReferenceAnswers,
    WebArenaEval,
)

__all__ = [
    "NOT_ACHIEVABLE",
    "PLACEHOLDER",
    "EvalType",
    "PageCheck",
    "ReferenceAnswers",
    "WebArenaEval",
    "WebArenaTask",
    "read_configs",
    "read_eval",
    "read_task",
]

VISUAL = ("image", "reasoning_difficulty", "visual_difficulty", "overall_difficulty")
"""Columns that only VisualWebArena's rows have."""

USED_BY = {
    "string_match": "reference_answers",
    "url_match": "reference_url",
    "program_html": "program_html",
    "page_image_query": "page_image_query",
}
"""Field that each evaluator reads. The benchmark puts placeholders into the others."""

COMPARISONS = ("exact_match", "must_include", "must_exclude", "required_values", "fuzzy_match")
"""VisualWebArena's order; a check of a page is of the first that it has."""

PICTURES = "the format visualwebarena keeps it (envs.tasks.imports)"
"""Remedy for a row whose request has a picture."""

MAX_SHOWN = 20
"""Problems listed in one error; the count of the rest is given."""


class WebArenaTask(Foreign):
    """One task of the benchmark, as far as it is needed to run and to grade it."""

    task_id: int = Field(ge=0)
    sites: tuple[str, ...] = Field(min_length=1)
    start_url: str = Field(min_length=1)
    intent: str = Field(min_length=1)
    require_login: bool = False
    require_reset: bool = False
    storage_state: str | None = None
    intent_template: str = ""
    intent_template_id: int | None = None
    instantiation_dict: dict[str, Any] = Field(default_factory=dict)
    eval: WebArenaEval


def read_task(raw: object, addresses: Mapping[str, str] | None = None, where: str = "task") -> WebArenaTask:
    """A task from its JSON value.

    Args:
        addresses: Site addresses by placeholder (``{"__SHOPPING__": "http://localhost:7770"}``),
            put in everywhere.
        where: Named in errors.

    Raises:
        TaskError: with every problem as ``where: field: reason``.
    """
    if isinstance(raw, dict):
        if raw.get("image"):
            asked = str(raw["image"])[:100]
            raise TaskError(f"{where}: image: the task asks about a picture ({asked}); {PICTURES}")
        try:
            raw = _without_nulls(raw) | ({"eval": _used(raw["eval"], raw)} if isinstance(raw.get("eval"), dict) else {})
        except ValueError as error:
            raise TaskError(f"{where}: {error}") from error
    text = json.dumps(raw)
    if addresses:
        inside = {name: json.dumps(address.rstrip("/"))[1:-1] for name, address in addresses.items()}
        text = PLACEHOLDER.sub(lambda match: inside.get(match.group(), match.group()), text)
    try:
        return WebArenaTask.model_validate_json(text, strict=True)
    except ValidationError as error:
        lines = [f"{where}: {_field(one['loc'])}: {one['msg']}" for one in error.errors()]
        raise TaskError("\n".join(lines)) from error


def read_eval(raw: object, row: Mapping[str, Any] | None = None) -> WebArenaEval:
    """The evaluators of a row.

    Args:
        row: All of it, which says whether it is one of VisualWebArena's.

    Raises:
        ValueError: the first of what is wrong, as ``field: reason``.
    """
    data = _used(raw, row or {}) if isinstance(raw, dict) else raw
    try:
        return WebArenaEval.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = _field(first["loc"]) if first["loc"] else ""
        raise ValueError(f"eval{place and '.'}{place}: {first['msg']}") from error


def _used(raw: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a row's evaluators read, without placeholders for other evaluators.

    Raises:
        ValueError: The row cannot be graded here, as ``field: reason``.
    """
    used = _without_nulls(raw)
    if isinstance(types := used.get("eval_types"), list):
        unused = {field for evaluator, field in USED_BY.items() if evaluator not in types}
        used = {name: value for name, value in used.items() if name not in unused}
    if any(name in row for name in VISUAL):
        pages = [_first_comparison(check) for check in used.get("program_html", ())]
        return {"url_note": "EXACT"} | used | {"visual": True, "program_html": pages}
    if used.get("url_note") == "EXACT":
        raise ValueError(
            "eval.url_note: EXACT is VisualWebArena's, and this is no row of it; WebArena's rows have GOLD in PRED"
        )
    return used


def _first_comparison(check: Any) -> Any:
    """Return a check of a page with the one comparison that VisualWebArena makes of several."""
    contents = check.get("required_contents") if isinstance(check, dict) else None
    if not isinstance(contents, dict):
        return check
    chosen = {name: contents[name] for name in COMPARISONS if name in contents}
    first = dict([*chosen.items()][:1])
    if isinstance(text := first.get("fuzzy_match"), str):
        first = {"fuzzy_match": text.split(" |OR| ")}  # all of them must hold, in spite of the word
    return {**check, "required_contents": first or contents}


def read_configs(text: str, name: str, addresses: Mapping[str, str] | None = None) -> list[WebArenaTask]:
    """All tasks of a file: one object, or a list of them (the benchmark has both).

    Raises:
        TaskError: it is no JSON, is empty, or has bad tasks; all are named by their place in the
            file.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{name}: is no JSON: {error}") from error
    rows = data if isinstance(data, list) else [data]
    if not rows:
        raise TaskError(f"{name}: has no tasks")
    tasks: list[WebArenaTask] = []
    problems: list[str] = []
    for number, row in enumerate(rows):
        where = f"{name}[{number}]" if isinstance(data, list) else name
        try:
            tasks.append(read_task(row, addresses, where))
        except TaskError as error:
            problems += str(error).splitlines()
    if problems:
        rest = [f"and {len(problems) - MAX_SHOWN} more"] if len(problems) > MAX_SHOWN else []
        raise TaskError("\n".join([*problems[:MAX_SHOWN], *rest]))
    return tasks


def _without_nulls(raw: dict[str, Any]) -> dict[str, Any]:
    """The benchmark writes what is not used as null."""
    return {name: value for name, value in raw.items() if value is not None}


def _field(location: tuple[int | str, ...]) -> str:
    # A union names its member as a further part of the place; a reader knows fields and indices.
    known = [str(part) for part in location if isinstance(part, int) or re.fullmatch(r"\w+", part)]
    return ".".join(part for part in known if part != "str") or "task"
