"""Evidence that an episode was graded on, as plain values for the viewer.

It covers the page changes of each step, the judge's calls, the facts, the last page, and the values
that were read from it.

All of it comes from pages, policies or models and is untrusted. It leaves as JSON values, and the
viewer puts it on the page as text. Texts and tables are cut, with a count of what is missing;
``MAX_EVIDENCE`` bounds the total of an episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from envs.rewards import StepDiff
from envs.rewards.judge import CallRecord, Judgement
from envs.types import Recorded, StorageError, Trajectory
from tasks_lib.report.changes import change_rows, change_words
from tasks_lib.report.facts import rubric_facts
from training.ledger.seal import describe_first_error
from training.ledger.store import RunStore

MAX_EVIDENCE = 60_000
"""Maximum characters of blobs and records that one episode shows.

With the forty episodes of a page they take at most as much space as its screenshots.
"""
MAX_WORDS = 600
"""Maximum characters of one text; a judge's reason has some 300."""
MAX_ROWS = 40
"""Maximum rows of one table."""
LEFT_OUT = "left out to keep this page small"

Row = Sequence[Any]
M = TypeVar("M", bound=BaseModel)


def cut_text(text: str, limit: int = MAX_WORDS) -> str:
    """Return the text, or its beginning and the number of characters left out.

    >>> cut_text("abcdef", 4)
    'abcd… (2 more characters)'
    """
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


@dataclass(slots=True)
class Evidence:
    """Reads the evidence of one episode. ``left`` is the number of characters it may still show."""

    store: RunStore
    problems: list[str]
    """Messages about unreadable evidence, which the page also names in its place."""
    left: int = MAX_EVIDENCE

    def change(self, name: str) -> dict[str, Any] | None:
        """Return a step's changes of the document; ``None`` if they were not recorded."""
        diff = self._read(name, StepDiff)
        if not isinstance(diff, StepDiff):
            return diff
        rows = [[cut_text(cell) for cell in row] for row in change_rows(diff)]
        shown = self.table(rows, more=sum(diff.stats.truncated.values()))
        return {"blob": name, "missing": None, "says": change_words(diff)} | shown

    def judgement(self, name: str) -> dict[str, Any] | None:
        """Return every check and call of the judge.

        ``None`` if it was not asked, or its answers were not kept.
        """
        judgement = self._read(name, Judgement)
        if not isinstance(judgement, Judgement):
            return judgement
        checks = [
            [
                str(check.purpose),
                cut_text(check.subject, 120),
                check.holds,
                [check.ayes, check.noes, check.lost],
                cut_text(check.reason),
            ]
            for check in judgement.checks
        ]
        return {
            "blob": name,
            "missing": None,
            "state": judgement.state,
            "score": judgement.score,
            "blocked": judgement.blocked,
            "reason": cut_text(judgement.reason),
            "requests": judgement.requests,
            "cached": judgement.cached,
            "cost": judgement.cost.model_dump(),
            "checks": self.table(checks),
            "calls": self.table([_call(call) for call in judgement.calls]),
        }

    def facts(self, trajectory: Trajectory) -> dict[str, Any] | None:
        """Return the facts of the rubric that the episode was graded by (`rubric_facts`), or
        ``None``."""
        digest = trajectory.reward.rubric_hash
        if not digest:
            return None
        try:
            rubric = self.store.rubric(digest)
        except StorageError as error:
            self._problem(str(error))
            return {"missing": "its rubric is missing or damaged"}
        facts = rubric_facts(rubric, trajectory)
        groups = [
            [cut_text(cell, 300) if isinstance(cell, str) else cell for cell in group] for group in facts["groups"]
        ]
        rows = [[cut_text(cell, 300) if isinstance(cell, str) else cell for cell in row] for row in facts["rows"]]
        return facts | {"missing": None, "groups": self.table(groups)} | self.table(rows)

    def recorded(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return what was read at the end for the grading, in rows of (what, request, result)."""
        rows = [] if trajectory.recorded is None else [*_recorded(trajectory.recorded)]
        if trajectory.final_dom:
            rows.append(("document", "nodes of the last page, for its reference", f"blob {trajectory.final_dom}"))
        return self.table([[cut_text(cell) for cell in row] for row in rows])

    def table(self, rows: Sequence[Row], more: int = 0) -> dict[str, Any]:
        """Return ``rows`` up to the bounds, and the number of rows left out.

        ``more`` is the number of rows that were never recorded, which counts too.
        """
        kept: list[Row] = []
        for row in rows[:MAX_ROWS]:
            size = sum(len(cell) if isinstance(cell, str) else 8 for cell in row)
            if size > self.left:
                break
            self.left -= size
            kept.append(row)
        return {"rows": kept, "more": more + len(rows) - len(kept)}

    def reserve(self, size: int) -> bool:
        """Take ``size`` characters from the budget; return False if they do not fit."""
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits

    def _read(self, name: str, model: type[M]) -> M | dict[str, Any] | None:
        """Read a blob of JSON; ``None`` for an empty name.

        Where it cannot be shown, the result only says what is missing.
        """
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
            self._problem(f"blob {name} is no {model.__name__}: {describe_first_error(error)}")
            return {"blob": name, "missing": f"its blob is no {model.__name__}"}

    def _problem(self, words: str) -> None:
        """Add a message once, even where several steps or episodes have the same problem."""
        if words not in self.problems:
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
        request = " ".join([answer.asked, *(["at " + ".".join(map(str, answer.at))] if answer.at else [])])
        content = f"{len(answer.rows)} rows: {_json(answer.rows)}" if sql else _json(answer.value)
        yield what, request, content if answer.error is None else f"no answer: {answer.error}"
    for page in recorded.looked or ():
        yield "page", page.address or "(no address)", f"nothing was seen: {page.trouble}" if page.trouble else page.text
    for name, why in recorded.absent.items():
        yield "not read", name, why


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
