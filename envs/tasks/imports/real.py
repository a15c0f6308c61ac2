"""Imports REAL (the package agisdk): a file of each task, graded on the state that its site shows.

``state_match`` has the task's JMESPath checks and, in version 2, the script of the package that
grades the state (`envs.rewards.webarena.state`), ``string_match`` the answer that the judge
compares with a rubric (``llm_boolean``). A task whose state a model reads (``jmespath_llm``) is
refused. As in the package, an episode begins on the site's ``/config`` page, which names the task
and takes the site's delays away; `RealStart` then opens the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin

from pydantic import Field

from envs.tasks.imports.base import ForeignRow, ImportedTask, RowFormat, split_address, start_of
from envs.types import Split, WebTask
from envs.types.webarena import EvalType, ReferenceAnswers, StateCheck, WebArenaEval, evaluators_hash

if TYPE_CHECKING:
    from playwright.async_api import Page

HORIZON = 25
"""Steps that the benchmark's harness gives."""


class RealStart:
    """Page script of the tasks: opens the site after its ``/config`` page."""

    @staticmethod
    async def setup(page: Page) -> None:
        """Open the site."""
        await page.goto(urljoin(page.url, "/"))


class RealSite(ForeignRow):
    """Site of a task."""

    kept = frozenset({"name", "similarTo", "previewImage"})

    id: str
    url: str


class RealEval(ForeignRow):
    """One check of a task."""

    kept = frozenset({"possible", "state_variable_path"})

    type: str = ""
    description: str = ""
    query: str = ""
    expected_value: Any = True
    rubric: str = ""
    script: str = ""


class RealRow(ForeignRow):
    """A file of a task."""

    kept = frozenset({"difficulty", "challengeType", "possible", "description", "config", "version"})

    id: str = Field(min_length=1)
    goal: str = Field(min_length=1)
    website: RealSite
    evals: list[RealEval] = Field(min_length=1)
    points: float = 1.0


class Real(RowFormat[RealRow]):
    """The tasks of versions 1 and 2, whose ids begin with the version (``real/v1.omnizon-1``)."""

    name = "real"
    model = RealRow
    split = Split.HELD_OUT
    instruction_key = "goal"
    file_key = "id"
    wheel_files = "agisdk/REAL/browsergym/webclones/v*/tasks/*.json"

    def fields_in(self, row: RealRow, file: Path) -> dict[str, Any]:
        """Return the fields of the task; the folder above ``tasks`` is its version."""
        version = file.parent.parent.name
        fields = self.fields(row)
        return {**fields, "task_id": f"{version}.{row.id}"} if re.fullmatch(r"v\d+", version) else fields

    def fields(self, row: RealRow) -> dict[str, Any]:
        """Return the fields of the task."""
        evaluators = _evaluators(row)
        query = urlencode({"run_id": 0, "task_id": row.id, "latency": 0})
        return {
            "task_id": row.id,
            "site": start_of(row.website.url, "website.url")["site"],
            "path": f"/config?{query}",
            "kind": row.website.id,
            "instruction": row.goal,
            "difficulty": len(row.evals),
            "horizon": HORIZON,
            "script": f"{RealStart.__module__}:{RealStart.__qualname__}",
            "evaluators": evaluators,
            "evaluators_hash": evaluators_hash(evaluators),
        }

    def export(self, item: ImportedTask) -> dict[str, Any]:
        """Return the row with the task's instruction and site."""
        row = super().export(item)
        site: dict[str, Any] = row["website"]
        return {**row, "website": {**site, "url": self.new_url(site["url"], item.task)}}

    def new_url(self, old: str, task: WebTask) -> str:
        """Return the old address while it is on the task's site."""
        return old if split_address(old)[0] == task.site else f"https://{task.site}/"


def _evaluators(row: RealRow) -> WebArenaEval:
    """Return the checks of a task.

    Raises:
        ValueError: One cannot be graded here, as ``field: reason``.
    """
    checks, rubrics = list[StateCheck](), list[str]()
    for number, one in enumerate(row.evals):
        field = f"evals.{number}"
        kind = "script" if one.script else one.type
        if kind == "jmespath":
            if not one.query:
                raise ValueError(f"{field}.query: is empty")
            checks.append(StateCheck(query=one.query, expected=one.expected_value, description=one.description))
        elif kind == "llm_boolean":
            if not one.rubric:
                raise ValueError(f"{field}.rubric: is empty")
            rubrics.append(one.rubric)
        elif kind == "script":
            if re.fullmatch(r"\w+\.py", one.script) is None:
                raise ValueError(f"{field}.script: {one.script!r} is no name of a script of the package, as eval_1.py")
            checks.append(StateCheck(script=one.script, description=one.description))
        else:
            raise ValueError(f"{field}.type: {kind!r} cannot be graded here; expected jmespath, script or llm_boolean")
    types = [EvalType.STATE_MATCH] * bool(checks) + [EvalType.STRING_MATCH] * bool(rubrics)
    answers = ReferenceAnswers(fuzzy_match=tuple(rubrics)) if rubrics else None
    return WebArenaEval(eval_types=tuple(types), state=tuple(checks), reference_answers=answers)
