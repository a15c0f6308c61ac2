"""What goes into the judge and what comes out: plain, frozen values."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from envs.types import Cost, Record
from envs.types.actions import Text

MEDIA_TYPES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png", b"RIFF": "image/webp"}
"""First bytes of the picture formats that vision endpoints read."""


def media_type(picture: bytes) -> str | None:
    """``image/…`` by the first bytes; ``None`` for what is no picture."""
    return next((kind for magic, kind in MEDIA_TYPES.items() if picture.startswith(magic)), None)


def _picture(data: bytes) -> bytes:
    if media_type(data) is None:
        raise ValueError(f"expected the bytes of a JPEG, PNG or WebP; they begin with {data[:4]!r}")
    return data


Picture = Annotated[bytes, AfterValidator(_picture)]


class Purpose(StrEnum):
    """What a call asks; appears as it is in records and metrics."""

    KEYFRAME = "keyframe"
    """Does this screenshot matter?"""
    BLOCKING = "blocking"
    """Was the site shut for good?"""
    CRITERION_A = "criterion_a"
    """Do the screenshots prove this fact?"""
    CRITERION_B = "criterion_b"
    """Is every claim of the answer seen in the screenshots?"""
    REFERENCE = "reference"
    """Does the answer agree with the reference answer?"""
    KEY_POINTS = "key_points"
    """What does the task require? (WebJudge)"""
    RELEVANCE = "relevance"
    """1 to 5 for a screenshot (WebJudge)."""
    VERDICT = "verdict"
    """The whole episode at once (WebJudge, WebVoyager)."""
    SAME_ANSWER = "same_answer"
    """Do two short answers mean the same? (WebArena)"""
    RUBRIC = "rubric"
    """What facts must hold when the task is done? (`envs.tasks.authoring`)"""
    INSTRUCTION = "instruction"
    """How is part of a task asked for? (`envs.tasks.authoring`)"""


class CallError(StrEnum):
    """Why a call gave nothing."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    """No connection, or it broke."""
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    REFUSED = "refused"
    """A status that trying again does not change: a wrong key, model or request."""
    MALFORMED = "malformed"
    """An answer that cannot be read as what was asked for."""
    BUDGET = "budget"
    """Calls or tokens are used up; nothing was sent."""
    UNCOUNTED = "uncounted"
    """It could not be counted what is spent (`Ledger`); nothing was sent."""
    CANCELLED = "cancelled"
    """Given up while it was under way, by the deadline or by the caller."""


class JudgeStep(Record):
    """One step as the judge sees it."""

    screenshot: Picture = Field(repr=False)
    """Bytes of the picture the policy saw before it acted."""
    action: Text
    url: Text = ""
    page_text: Text = ""
    """Visible text of the page, if it is to be shown beside the picture."""
    changes: Text = ""
    """What the action changed in the document, if that was recorded."""


class JudgeFact(Record):
    """One thing that must be true for the task to be done."""

    fact_id: str = Field(min_length=1)
    text: Text = Field(min_length=1)
    group: Text = ""
    """Description of its fact group."""


class JudgeEpisode(Record):
    """What an episode left behind, as far as a judge needs it."""

    instruction: Text = Field(min_length=1)
    steps: tuple[JudgeStep, ...]
    answer: Text | None = None
    """What the policy answered; ``None`` if it gave no answer."""
    facts: tuple[JudgeFact, ...] = ()
    reference_answer: Text | None = None

    @model_validator(mode="after")
    def _apart(self) -> Self:
        names = [fact.fact_id for fact in self.facts]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"facts: {', '.join(twins)} is there twice; each needs an id of its own")
        return self

    @property
    def digest(self) -> str:
        """sha256 of everything in it: the seed of what is sampled, so a second grading samples the same."""
        parts = [self.instruction, repr(self.answer), repr(self.facts), repr(self.reference_answer)]
        parts += [f"{step.action}\0{step.url}\0{step.page_text}" for step in self.steps]
        parts += [step.changes for step in self.steps if step.changes]
        pictures = b"".join(hashlib.sha256(step.screenshot).digest() for step in self.steps)
        return hashlib.sha256("\1".join(parts).encode() + pictures).hexdigest()


class CallRecord(Record):
    """One question to one model, with its retries, and what it cost."""

    purpose: Purpose
    subject: str = ""
    """Which fact or screenshot it was about."""
    model: str
    vote: int = 0
    key: str
    """Content hash: the name in the cache."""
    seconds: float = Field(ge=0)
    requests: int = Field(ge=0)
    """Sent over the network; 0 from the cache or without budget."""
    images: int = Field(ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    """Of all requests together."""
    completion_tokens: int = Field(default=0, ge=0)
    dollars: float = Field(default=0.0, ge=0)
    """By the prices of the configuration."""
    estimated: bool = False
    """The endpoint told no usage; the tokens are our estimate."""
    cached: bool = False
    error: CallError | None = None
    """Why there is no result; ``None`` if there is one."""
    trouble: str = ""
    """The last thing that went wrong, also when a retry helped."""

    @property
    def retries(self) -> int:
        """Requests beyond the first."""
        return max(0, self.requests - 1)


class Check(Record):
    """One question to the judge, answered by its votes."""

    purpose: Purpose
    subject: str = ""
    """Fact id, or number of the screenshot."""
    holds: bool | None
    """``None``: the judge abstained."""
    reason: str
    """In the judge's words, or why it abstained."""
    ayes: int = Field(default=0, ge=0)
    noes: int = Field(default=0, ge=0)
    lost: int = Field(default=0, ge=0)
    """Votes without a readable answer."""

    @property
    def contradicted(self) -> bool:
        """Votes were cast on both sides."""
        return bool(self.ayes and self.noes)


class Judgement(Record):
    """What came of judging one episode. Never an exception: what could not be judged is an abstention with its cause."""

    state: Literal["passed", "failed", "abstained"]
    score: float | None = Field(ge=0, le=1)
    """Share of the facts (with the reference answer as one more) that hold; 0 if the answer claims what was not seen;
    ``None`` if the judge abstained from one of them."""
    reason: str
    """The verdict's reason, or the cause of the abstention."""
    blocked: bool = False
    """The judge saw a site that was shut for good: an abstention, and a matter for the blocklist."""
    checks: tuple[Check, ...] = ()
    calls: tuple[CallRecord, ...] = ()

    @property
    def facts(self) -> dict[str, bool | None]:
        """Whether each fact holds, by its id; ``None`` for an abstention. Facts that were not asked for are absent."""
        return {check.subject: check.holds for check in self.checks if check.purpose is Purpose.CRITERION_A}

    @property
    def requests(self) -> int:
        """Sent over the network."""
        return sum(call.requests for call in self.calls)

    @property
    def tokens(self) -> int:
        """Of prompts and completions."""
        return sum(call.prompt_tokens + call.completion_tokens for call in self.calls)

    @property
    def cost(self) -> Cost:
        """Of all calls together."""
        return cost_of(self.calls)

    @property
    def cached(self) -> int:
        """Calls answered from the cache."""
        return sum(call.cached for call in self.calls)


def cost_of(calls: Iterable[CallRecord]) -> Cost:
    """What calls took together; seconds are theirs, however many ran at once."""
    calls = tuple(calls)
    return Cost(
        seconds=math.fsum(call.seconds for call in calls),
        tokens=sum(call.prompt_tokens + call.completion_tokens for call in calls),
        dollars=math.fsum(call.dollars for call in calls),
    )


def data_url(picture: bytes) -> str:
    """The picture inside of an address, as vision endpoints take it."""
    return f"data:{media_type(picture)};base64,{base64.b64encode(picture).decode('ascii')}"
