"""Imports WebArena: ``config_files/test.raw.json`` (a list), or one ``<task_id>.json`` each.

The site is the placeholder of the start address (``__SHOPPING__`` is ``shopping``), or its host
where the placeholders have been filled in; of several tabs (``A |AND| B``) the first one counts.
The difficulty is the number of things that the evaluators check: each answer of ``string_match``,
the address of ``url_match``, each content of ``program_html``. The evaluators become the task's,
frozen by their hash, with the placeholders of sites in them.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field

from envs.rewards.webarena.config import PICTURES, VISUAL, read_eval
from envs.rewards.webarena.site_helpers import unknown_helper
from envs.tasks.imports.base import ForeignRow, RowFormat, start_of
from envs.types import Split, WebTask
from envs.types.webarena import WebArenaEval, evaluators_hash

HORIZON = 30
"""Steps that the benchmark gives."""

TABS = " |AND| "

_PLACEHOLDER = re.compile(r"__([A-Z][A-Z_]*?)__(.*)", re.DOTALL)


class PageRow(ForeignRow):
    """One check of a page."""

    kept = frozenset({"url", "locator", "prep_actions", "note"})

    required_contents: Any = None


class EvalRow(ForeignRow):
    """Configuration of the evaluators."""

    kept = frozenset({"string_note", "url_note", "reference_answer_raw_annotation"})

    eval_types: list[str] = Field(min_length=1)
    reference_answers: dict[str, Any] | list[Any] | str | None = None
    reference_url: str | None = None
    program_html: list[PageRow] | None = None
    page_image_query: list[dict[str, Any]] | None = None

    def facts(self) -> int:
        """Return the number of things that must hold."""
        of_type = {"string_match": _size(self.reference_answers), "url_match": 1}
        of_type["program_html"] = sum(_size(one.required_contents) for one in self.program_html or ())
        of_type["page_image_query"] = sum(map(_questions, self.page_image_query or ()))
        return max(1, sum(of_type.get(kind, 1) for kind in self.eval_types))


class WebArenaRow(ForeignRow):
    """One configuration of a task."""

    kept = frozenset(
        {
            "require_login",
            "require_reset",
            "storage_state",
            "geolocation",
            "intent_template",
            "instantiation_dict",
            *VISUAL,
        }
    )

    task_id: int
    sites: list[str] = Field(min_length=1)
    start_url: str
    intent: str = Field(min_length=1)
    intent_template_id: int | None = None
    eval: EvalRow


class WebArena(RowFormat[WebArenaRow]):
    """The 812 configurations, and others of their form.

    Rows of VisualWebArena are read if no picture belongs to their request: its own format has
    those.
    """

    name = "webarena"
    model = WebArenaRow
    split = Split.HELD_OUT
    instruction_key = "intent"
    url_key = "start_url"
    file_key = "task_id"
    wheel_files = "webarena/test.raw.json"

    def fields(self, row: WebArenaRow) -> dict[str, Any]:
        """Return the fields of the task."""
        whole = row.model_dump(exclude_unset=True)
        if "image" in (row.model_extra or {}) and whole["image"]:
            raise ValueError(f"image: the task asks about a picture; {PICTURES}")
        evaluators = read_eval(whole["eval"], whole)
        if evaluators.visual and (unknown := unknown_helper(evaluators)):
            raise ValueError(
                f"eval.program_html: asks the helper {unknown!r}, which does not exist here; leave the row out"
            )
        template = "" if row.intent_template_id is None else f"-{row.intent_template_id}"
        return fields_of(row, evaluators, kind=f"template{template}", difficulty=row.eval.facts())

    def new_url(self, old: str, task: WebTask) -> str:
        """Return the first tab's address, as a placeholder if it was one."""
        return moved_start(old, task)


def fields_of(row: Any, evaluators: WebArenaEval, *, kind: str, difficulty: int) -> dict[str, Any]:
    """Return the fields of a task of a row in WebArena's form."""
    return {
        "task_id": row.task_id,
        **start_place(row.start_url),
        "kind": kind,
        "instruction": row.intent,
        "difficulty": difficulty,
        "horizon": HORIZON,
        "evaluators": evaluators,
        "evaluators_hash": evaluators_hash(evaluators),
    }


def moved_start(old: str, task: WebTask) -> str:
    """Return a row's start address with the task's place in the first tab, as a placeholder if it
    was one."""
    first, *others = old.split(TABS)
    if start_place(first) != {"site": task.site, "path": task.path}:
        known = _PLACEHOLDER.fullmatch(first)
        first = f"__{task.site.upper()}__{task.path}" if known else f"https://{task.site}{task.path}"
    return TABS.join([first, *others])


def start_place(url: str) -> dict[str, str]:
    """Return site and path of a start address, which may be a placeholder."""
    first = url.split(TABS)[0].strip()
    if placeholder := _PLACEHOLDER.fullmatch(first):
        path = placeholder[2]
        return {"site": placeholder[1].lower(), "path": path if path.startswith("/") else f"/{path}"}
    return start_of(first, "start_url")


def _questions(query: dict[str, Any]) -> int:
    return len(query.get("eval_vqa") or ()) + bool(query.get("eval_fuzzy_image_match"))


def _size(required: Any) -> int:
    if isinstance(required, dict):
        return sum(_size(one) for one in required.values())
    return len(required) if isinstance(required, list) else 1
