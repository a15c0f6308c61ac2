"""The task format of the public benchmark.

Somebody else's: keys that say nothing about the evaluation are kept out, not refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from envs.types.webarena import WebArenaEval

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


def _without_nulls(raw: dict[str, Any]) -> dict[str, Any]:
    """The benchmark writes what is not used as null."""
    return {name: value for name, value in raw.items() if value is not None}


def _field(location: tuple[int | str, ...]) -> str:
    # A union names its member as a further part of the place; a reader knows fields and indices.
    known = [str(part) for part in location if isinstance(part, int) or re.fullmatch(r"\w+", part)]
    return ".".join(part for part in known if part != "str") or "task"
