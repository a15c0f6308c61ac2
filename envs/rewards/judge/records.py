"""Records of the judge: its input, its calls and its judgement. All are frozen values."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from envs.chat import CallError
from envs.types import Cost, Record
from envs.types.actions import Text

MEDIA_TYPES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png", b"RIFF": "image/webp"}
"""Media types of the picture formats that vision endpoints read, by first bytes."""


def media_type(picture: bytes) -> str | None:
    """Return ``image/…`` by the first bytes; ``None`` for bytes that are no picture."""
    return next((kind for magic, kind in MEDIA_TYPES.items() if picture.startswith(magic)), None)


def _check_picture(data: bytes) -> bytes:
    if media_type(data) is None:
        raise ValueError(f"expected the bytes of a JPEG, PNG or WebP; they begin with {data[:4]!r}")
    return data


Picture = Annotated[bytes, AfterValidator(_check_picture)]


class Purpose(StrEnum):
    """Purpose of a call; its value appears in records and metrics."""

    KEYFRAME = "keyframe"
    """Selects the screenshots that matter."""
    BLOCKING = "blocking"
    """Decides if the site blocked the agent until the end."""
    CRITERION_A = "criterion_a"
    """Decides if the screenshots prove a fact."""
    CRITERION_B = "criterion_b"
    """Decides if the screenshots show every claim of the answer."""
    REFERENCE = "reference"
    """Compares the answer with the reference answer."""
    KEY_POINTS = "key_points"
    """Lists the requirements of the task (WebJudge)."""
    RELEVANCE = "relevance"
    """Scores a screenshot from 1 to 5 (WebJudge)."""
    VERDICT = "verdict"
    """Gives one verdict on the whole episode (WebJudge, WebVoyager)."""
    SAME_ANSWER = "same_answer"
    """Decides if two short answers mean the same (WebArena)."""
    PICTURES = "pictures"
    """Decides if one of a page's pictures has an answer to a question (VisualWebArena)."""
    RUBRIC = "rubric"
    """Writes the facts that hold when the task is done (`envs.tasks.authoring`)."""
    INSTRUCTION = "instruction"
    """Writes the instruction of part of a task (`envs.tasks.authoring`)."""


class JudgeStep(Record):
    """One step as the judge sees it."""

    screenshot: Picture = Field(repr=False)
    """Bytes of the picture the policy saw before it acted."""
    action: Text
    url: Text = ""
    page_text: Text = ""
    """Visible text of the page, to be shown beside the picture; empty for none."""
    changes: Text = ""
    """Description of the action's changes to the document; empty if not recorded."""


class JudgedFact(Record):
    """One condition that must be true for the task to be done."""

    fact_id: str = Field(min_length=1)
    text: Text = Field(min_length=1)
    group: Text = ""
    """Description of its fact group."""


class JudgeCase(Record):
    """An ended episode, as the judge sees it."""

    instruction: Text = Field(min_length=1)
    steps: tuple[JudgeStep, ...]
    answer: Text | None = None
    """Answer of the policy; ``None`` if it gave none."""
    facts: tuple[JudgedFact, ...] = ()
    reference_answer: Text | None = None

    @model_validator(mode="after")
    def _check_unique_ids(self) -> Self:
        fact_ids = [fact.fact_id for fact in self.facts]
        if twins := sorted({name for name in fact_ids if fact_ids.count(name) > 1}):
            raise ValueError(f"facts: {', '.join(twins)} is there twice; each needs an id of its own")
        return self

    @property
    def digest(self) -> str:
        """sha256 of the whole episode, as seed: a second grading samples the same."""
        parts = [self.instruction, repr(self.answer), repr(self.facts), repr(self.reference_answer)]
        parts += [f"{step.action}\0{step.url}\0{step.page_text}" for step in self.steps]
        parts += [step.changes for step in self.steps if step.changes]
        pictures = b"".join(hashlib.sha256(step.screenshot).digest() for step in self.steps)
        return hashlib.sha256("\1".join(parts).encode() + pictures).hexdigest()


class CallRecord(Record):
    """Record of one question to one model: its requests, its cost and its error."""

    purpose: Purpose
    subject: str = ""
    """Fact id or number of the screenshot that the question was about."""
    model: str
    vote: int = 0
    key: str
    """Content hash of the request: its name in the cache."""
    seconds: float = Field(ge=0)
    requests: int = Field(ge=0)
    """Requests sent over the network; 0 from the cache or without budget."""
    images: int = Field(ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    """Prompt tokens of all requests together."""
    completion_tokens: int = Field(default=0, ge=0)
    dollars: float = Field(default=0.0, ge=0)
    """Cost by the prices of the configuration."""
    estimated: bool = False
    """True if the endpoint reported no usage; the tokens are then our estimate."""
    cached: bool = False
    error: CallError | None = None
    """Reason why there is no result; ``None`` if there is one."""
    trouble: str = ""
    """Message of the last failure, also when a retry succeeded."""

    @property
    def retries(self) -> int:
        """Requests beyond the first."""
        return max(0, self.requests - 1)


class JudgeCheck(Record):
    """Outcome of one question to the judge, decided by its votes."""

    purpose: Purpose
    subject: str = ""
    """Fact id, or number of the screenshot."""
    holds: bool | None
    """Verdict; ``None`` if the judge abstained."""
    reason: str
    """Reason in the judge's words, or the cause of its abstention."""
    ayes: int = Field(default=0, ge=0)
    noes: int = Field(default=0, ge=0)
    lost: int = Field(default=0, ge=0)
    """Votes without a readable answer."""

    @property
    def contradicted(self) -> bool:
        """True if there were votes on both sides."""
        return bool(self.ayes and self.noes)


class Judgement(Record):
    """Result of judging one episode; a failure to judge is an abstention with its cause."""

    state: Literal["passed", "failed", "abstained"]
    score: float | None = Field(ge=0, le=1)
    """Share of the facts that hold; the reference answer counts as one more fact.

    0 if the answer claims something that was not seen; ``None`` if the judge abstained from a fact.
    """
    reason: str
    """Reason of the verdict, or cause of the abstention."""
    blocked: bool = False
    """True if the site blocked the agent: an abstention; the site belongs on the blocklist."""
    checks: tuple[JudgeCheck, ...] = ()
    calls: tuple[CallRecord, ...] = ()

    @property
    def facts(self) -> dict[str, bool | None]:
        """Verdicts of the facts that were asked about, by id; ``None``: abstention."""
        return {check.subject: check.holds for check in self.checks if check.purpose is Purpose.CRITERION_A}

    @property
    def requests(self) -> int:
        """Number of requests that were sent over the network."""
        return sum(call.requests for call in self.calls)

    @property
    def tokens(self) -> int:
        """Number of prompt and completion tokens."""
        return sum(call.prompt_tokens + call.completion_tokens for call in self.calls)

    @property
    def cost(self) -> Cost:
        """Cost of all calls together."""
        return cost_of(self.calls)

    @property
    def cached(self) -> int:
        """Number of calls that were answered from the cache."""
        return sum(call.cached for call in self.calls)


def cost_of(calls: Iterable[CallRecord]) -> Cost:
    """Sum the costs of calls; seconds of concurrent calls add up."""
    calls = tuple(calls)
    return Cost(
        seconds=math.fsum(call.seconds for call in calls),
        tokens=sum(call.prompt_tokens + call.completion_tokens for call in calls),
        dollars=math.fsum(call.dollars for call in calls),
    )


def data_url(picture: bytes) -> str:
    """Return the picture as a ``data:`` URL, as vision endpoints take it."""
    return f"data:{media_type(picture)};base64,{base64.b64encode(picture).decode('ascii')}"
