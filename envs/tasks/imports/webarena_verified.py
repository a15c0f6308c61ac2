"""Imports WebArena-Verified: ``webarena-verified.json`` of its package, or a subset of that list.

The answer is an object whose form the instruction says, since the package's evaluators compare its
fields. They also read the episode's requests, so they grade outside of the task
(`envs.rewards.webarena_verified`), by the task's number.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from envs.tasks.imports.base import ForeignRow, ImportedTask, RowFormat
from envs.tasks.imports.webarena import HORIZON, start_place
from envs.types import Split

KIND = "webarena-verified"
"""First part of the ids and kinds of its tasks."""

ANSWER = (
    " Answer with a JSON object: task_type (RETRIEVE, MUTATE or NAVIGATE), status (SUCCESS, ACTION_NOT_ALLOWED_ERROR,"
    " PERMISSION_DENIED_ERROR, NOT_FOUND_ERROR, DATA_VALIDATION_ERROR or UNKNOWN_ERROR), retrieved_data (%s) and"
    " error_details (null, or a text)."
)
"""Sentence after the request, with the form of the data that is asked for."""


class EvaluatorRow(ForeignRow):
    """One evaluator of a task."""

    kept = frozenset(
        {
            "expected",
            "should_not_exist",
            "ordered",
            "last_event_only",
            "ignored_query_params",
            "ignored_post_data_params_patterns",
            "ignored_query_params_patterns",
            "query_params_schema",
            "post_data_schema",
            "decode_base64_query",
        }
    )

    evaluator: str
    results_schema: dict[str, Any] | None = None


class VerifiedRow(ForeignRow):
    """One task of the package's list."""

    kept = frozenset({"intent_template", "instantiation_dict", "revision"})

    task_id: int
    sites: list[str] = Field(min_length=1)
    start_urls: list[str] = Field(min_length=1)
    intent: str = Field(min_length=1)
    intent_template_id: int
    eval: list[EvaluatorRow] = Field(min_length=1)


class WebArenaVerified(RowFormat[VerifiedRow]):
    """The 812 tasks of the package, or a subset in the same form."""

    name = "webarena-verified"
    model = VerifiedRow
    split = Split.HELD_OUT
    instruction_key = "intent"
    file_key = "task_id"

    def fields(self, row: VerifiedRow) -> dict[str, Any]:
        """Return the fields of the task."""
        schema = next((one.results_schema for one in row.eval if one.results_schema is not None), {"type": "null"})
        return {
            "task_id": row.task_id,
            **start_place(row.start_urls[0]),
            "kind": f"{KIND}-{row.intent_template_id}",
            "instruction": f"{row.intent.rstrip('. ')}.{ANSWER % _words(schema)}",
            "difficulty": len(row.eval),
            "horizon": HORIZON,
        }

    def export(self, item: ImportedTask) -> dict[str, Any]:
        """Return the row as it came: the evaluators have the package's own."""
        return dict(item.reference)


def _words(schema: dict[str, Any]) -> str:
    """Return the form of the data in the words of JSON Schema."""
    return "null" if schema.get("type") == "null" else json.dumps(schema, sort_keys=True)
