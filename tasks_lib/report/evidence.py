"""Evidence that an episode was graded on, as plain values for the viewer.

Changes of its steps, the judge's word, facts, its last page, what was read there.

Everything here was said by pages, policies or models and is untrusted. It leaves as JSON values, and the viewer puts it on the page as text.
Texts are cut, with how much was cut, and so are tables; what an episode shows in all is bounded by ``MAX_EVIDENCE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from envs.rewards import StepDiff
from envs.rewards.judge import CallRecord, Judgement
from envs.types import Recorded, StorageError, Trajectory, WebTask, rubric_hash
from tasks_lib.report.changes import change_rows, change_words
from tasks_lib.report.facts import rubric_facts
from training.ledger.store import RunStore

MAX_EVIDENCE = 60_000
"""Characters of blobs and records that one episode shows. With the forty episodes of a page: as much as its screenshots, at most."""
MAX_WORDS = 600
"""Characters of one text: a judge's reason has some 300."""
MAX_ROWS = 40
"""Rows of one table."""
LEFT_OUT = "left out to keep this page small"

Row = Sequence[Any]
M = TypeVar("M", bound=BaseModel)


def cut_text(text: str, most: int = MAX_WORDS) -> str:
    """The text, or its beginning and how much more there was.

    >>> cut("abcdef", 4)
    'abcd… (2 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


@dataclass(slots=True)
class Evidence:
    """Reads what one episode left behind; ``left`` is how many characters it may still show."""

    store: RunStore
    problems: list[str]
    """What cannot be read is added here, and named where it would stand."""
    left: int = MAX_EVIDENCE
    _told: set[str] = field(default_factory=set)

    def change(self, name: str) -> dict[str, Any] | None:
        """What a step changed in the document; ``None`` if that was not recorded."""
        diff = self._read(name, StepDiff)
        if not isinstance(diff, StepDiff):
            return diff
        rows = [[cut_text(cell) for cell in row] for row in change_rows(diff)]
        shown = self.table(rows, more=sum(diff.stats.truncated.values()))
        return {"blob": name, "missing": None, "says": change_words(diff)} | shown

    def judgement(self, name: str) -> dict[str, Any] | None:
        """Every check and call of the judge; ``None`` if it was not asked, or what it said was not kept."""
        found = self._read(name, Judgement)
        if not isinstance(found, Judgement):
            return found
        checks = [
            [
                str(check.purpose),
                cut_text(check.subject, 120),
                check.holds,
                [check.ayes, check.noes, check.lost],
                cut_text(check.reason),
            ]
            for check in found.checks
        ]
        return {
            "blob": name,
            "missing": None,
            "state": found.state,
            "score": found.score,
            "blocked": found.blocked,
            "reason": cut_text(found.reason),
            "requests": found.requests,
            "cached": found.cached,
            "cost": found.cost.model_dump(),
            "checks": self.table(checks),
            "calls": self.table([_call(call) for call in found.calls]),
        }

    def facts(self, trajectory: Trajectory, task: WebTask | None) -> dict[str, Any] | None:
        """The facts of the rubric that the episode was graded by (`rubric_facts`); ``None`` if it was graded by none."""
        digest = trajectory.reward.rubric_hash
        if not digest:
            return None
        try:
            rubric = self.store.rubric(digest)
        except StorageError as error:
            self._problem(str(error))
            rubric = None
        if rubric is None and task is not None and task.rubric is not None and rubric_hash(task.rubric) == digest:
            rubric = task.rubric  # of a run from before rubrics were kept
        if rubric is None:
            return {"missing": "its rubric is neither in rubrics/ nor in the tasks of the run"}
        found = rubric_facts(rubric, trajectory)
        groups = [
            [cut_text(cell, 300) if isinstance(cell, str) else cell for cell in group] for group in found["groups"]
        ]
        rows = [[cut_text(cell, 300) if isinstance(cell, str) else cell for cell in row] for row in found["rows"]]
        return found | {"missing": None, "groups": self.table(groups)} | self.table(rows)

    def recorded(self, trajectory: Trajectory) -> dict[str, Any]:
        """What was read at the end because the grading asked for it, in rows of what, asked and found."""
        found = [] if trajectory.recorded is None else [*_recorded(trajectory.recorded)]
        if trajectory.final_dom:
            found.append(("document", "nodes of the last page, for its reference", f"blob {trajectory.final_dom}"))
        return self.table([[cut_text(cell) for cell in row] for row in found])

    def table(self, rows: Sequence[Row], more: int = 0) -> dict[str, Any]:
        """``rows`` up to the bounds, and how many ``more`` there are (those that were never recorded included)."""
        kept: list[Row] = []
        for row in rows[:MAX_ROWS]:
            size = sum(len(cell) if isinstance(cell, str) else 8 for cell in row)
            if size > self.left:
                break
            self.left -= size
            kept.append(row)
        return {"rows": kept, "more": more + len(rows) - len(kept)}

    def room(self, size: int) -> bool:
        """Whether so many characters more may be shown; they are counted if so."""
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits

    def _read(self, name: str, model: type[M]) -> M | dict[str, Any] | None:
        """A blob of JSON; ``None`` where there is none, and a value that only says what is missing where it cannot be shown."""
        if not name:
            return None
        if self.left <= 0:
            return {"blob": name, "missing": LEFT_OUT}
        try:
            return model.model_validate_json(self.store.blob(name))
        except StorageError as error:
            self._problem(str(error))
            return {"blob": name, "missing": "its blob is missing or torn"}
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "value"
            self._problem(f"blob {name} is no {model.__name__}: {where}: {first['msg']}")
            return {"blob": name, "missing": f"its blob is no {model.__name__}"}

    def _problem(self, words: str) -> None:
        """Once, also where several steps changed the same."""
        if words not in self._told:
            self._told.add(words)
            self.problems.append(words)


def _call(call: CallRecord) -> list[Any]:
    trouble = f"{call.error}: {call.trouble}" if call.error else call.trouble
    return [
        str(call.purpose),
        cut_text(call.subject, 120),
        call.vote,
        cut_text(call.model, 120),
        call.seconds,
        call.requests,
        call.cached,
        call.images,
        [call.prompt_tokens, call.completion_tokens, call.estimated],
        call.dollars,
        cut_text(trouble),
    ]


def _recorded(recorded: Recorded) -> Iterable[tuple[str, str, str]]:
    if recorded.dom is not None:
        more = ", the first of more" if recorded.dom_cut else ""
        yield "nodes", "of the last page", f"{len(recorded.dom):,} elements{more}"
    if recorded.downloads is not None and not recorded.downloads:
        yield "downloads", "", "none"
    if recorded.downloads_cut:
        yield "downloads", "", "more were on their way"
    for file in recorded.downloads or ():
        digest = f", sha256 {file.sha256[:12]}…" if file.sha256 else ""
        yield "download", file.name, f"{file.size:,} bytes{digest}"
    for expression, result in recorded.scripts.items():
        value = _json(result.value)
        yield (
            "JavaScript",
            expression,
            f"{'threw' if result.threw else 'no value'}: {result.trouble}" if result.trouble else value,
        )
    for answer in recorded.server or ():
        sql = answer.database is not None
        what = f"SQL {answer.database}".strip() if sql else "GET"
        asked = " ".join([answer.asked, *(["at " + ".".join(map(str, answer.at))] if answer.at else [])])
        found = f"{len(answer.rows)} rows: {_json(answer.rows)}" if sql else _json(answer.value)
        yield what, asked, found if answer.error is None else f"no answer: {answer.error}"
    for page in recorded.looked or ():
        yield "page", page.address or "(no address)", f"nothing was seen: {page.trouble}" if page.trouble else page.text
    for name, why in recorded.absent.items():
        yield "not read", name, why


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
