"""Sets of tasks on live sites: WebGym, Mind2Web, Online-Mind2Web, WebVoyager."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import Field, field_validator

from envs.rewards.formats import decode_groups, webgym_rubric
from envs.tasks.imports.base import LEVELS, ForeignRow, RowFormat, rubric_fields, size_fields, start_of
from envs.types import Split


class WebGymFactGroup(ForeignRow):
    """Facts of WebGym that are judged together; without any, the description is the fact."""

    id: Any = None
    description: str = ""
    facts: list[Any] | None = None
    difficulty: Any = None
    """Always 1 in WebGym's own reader."""


class WebGymRow(ForeignRow):
    """A line of ``train.jsonl`` or ``test.jsonl``."""

    task_name: str = Field(min_length=1)
    website: str
    domain: str | None = None
    subdomain: str | None = None
    difficulty: int | None = Field(default=None, ge=1)
    evaluator_reference: list[str | WebGymFactGroup] | None = None
    definite_answer: Any = None
    reference_answer: Any = None
    task_id: str | int | None = None
    attempt_level: Any = None
    """Field of a run of WebGym."""

    @field_validator("difficulty", mode="before")
    @classmethod
    def _whole(cls, given: object) -> object:
        """Convert a difficulty as WebGym's reader does: truncate numbers and texts of numbers.

        The names of its ranges are accepted too.
        """
        if isinstance(given, str) and given.strip().lower() in LEVELS:
            return LEVELS[given.strip().lower()]
        if isinstance(given, bool) or not isinstance(given, str | float):
            return given
        try:
            return int(float(given))
        except (ValueError, OverflowError):
            raise ValueError(f"{given!r}; expected a number from 1, or one of {', '.join(LEVELS)}") from None

    @field_validator("evaluator_reference", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        """Treat one text as one fact, unless it holds the facts as JSON."""
        groups = decode_groups(given)
        return ([groups] if groups.strip() else None) if isinstance(groups, str) else groups


class WebGym(RowFormat[WebGymRow]):
    """WebGym's tasks.

    The rubric is the frozen one of `envs.rewards.formats.webgym_rubric`. The difficulty is the
    number of its facts, plus one for the right answer. A row without facts has its own difficulty,
    and a rubric only if it has a right answer. The kind is the subdomain (topic).
    """

    name = "webgym"
    model = WebGymRow
    split = Split.TRAIN
    instruction_key = "task_name"
    url_key = "website"

    def fields(self, row: WebGymRow) -> dict[str, Any]:
        """Return the fields of the task. Rows without an id get a digest as their id."""
        rubric = rubric_fields(webgym_rubric, row.model_dump())
        made = hashlib.blake2b(
            f"{row.website}\n{row.task_name}".encode(errors="surrogatepass"), digest_size=8
        ).hexdigest()
        return {
            "task_id": made if row.task_id is None else row.task_id,
            **start_of(row.website, "website"),
            "kind": row.subdomain or row.domain or self.name,
            "instruction": row.task_name,
            **size_fields(rubric["rubric"].fact_count if row.evaluator_reference else row.difficulty or 1),
            **rubric,
        }


class Mind2WebRow(ForeignRow):
    """An element of ``train_<n>.json``."""

    annotation_id: str = Field(min_length=1)
    website: str = Field(min_length=1)
    domain: str
    subdomain: str
    confirmed_task: str = Field(min_length=1)
    action_reprs: list[str] = Field(default_factory=list)
    actions: Any = None
    """Recorded actions; kept in the reference."""


class Mind2Web(RowFormat[Mind2WebRow]):
    """Mind2Web's tasks.

    Websites have names (``exploretock``), not addresses: the name is the site and the path is
    ``/``. There are no facts. The number of recorded actions gives the level as in Online-Mind2Web
    (up to 5 easy, up to 10 medium, more hard), and the level gives the difficulty.
    """

    name = "mind2web"
    model = Mind2WebRow
    split = Split.TRAIN
    instruction_key = "confirmed_task"

    def fields(self, row: Mind2WebRow) -> dict[str, Any]:
        """Return the fields of the task."""
        actions = len(row.action_reprs)
        level = "easy" if actions <= 5 else "medium" if actions <= 10 else "hard"
        return {
            "task_id": row.annotation_id,
            "site": row.website,
            "path": "/",
            "kind": row.subdomain,
            "instruction": row.confirmed_task,
            **size_fields(LEVELS[level]),
        }


class OnlineMind2WebRow(ForeignRow):
    """An element of the list."""

    task_id: str = Field(min_length=1)
    website: str
    confirmed_task: str = Field(min_length=1)
    reference_length: int | None = Field(default=None, ge=1)
    level: Literal["easy", "medium", "hard"]


class OnlineMind2Web(RowFormat[OnlineMind2WebRow]):
    """Online-Mind2Web's tasks. Without facts, the level gives the difficulty and is the kind."""

    name = "online-mind2web"
    model = OnlineMind2WebRow
    split = Split.HELD_OUT
    instruction_key = "confirmed_task"
    url_key = "website"

    def fields(self, row: OnlineMind2WebRow) -> dict[str, Any]:
        """Return the fields of the task."""
        return {
            "task_id": row.task_id,
            **start_of(row.website, "website"),
            "kind": row.level,
            "instruction": row.confirmed_task,
            **size_fields(LEVELS[row.level]),
        }


class WebVoyagerRow(ForeignRow):
    """A line of ``WebVoyager_data.jsonl``."""

    web_name: str = Field(min_length=1)
    id: str = Field(min_length=1)
    ques: str = Field(min_length=1)
    web: str


class WebVoyager(RowFormat[WebVoyagerRow]):
    """WebVoyager's tasks.

    No field gives the difficulty: it is 1 for all, with the benchmark's 15 steps. The kind is the
    site's name.
    """

    name = "webvoyager"
    model = WebVoyagerRow
    split = Split.HELD_OUT
    instruction_key = "ques"
    url_key = "web"

    def fields(self, row: WebVoyagerRow) -> dict[str, Any]:
        """Return the fields of the task."""
        return {
            "task_id": row.id,
            **start_of(row.web, "web"),
            "kind": row.web_name,
            "instruction": row.ques,
            "difficulty": 1,
            "horizon": 15,
        }
