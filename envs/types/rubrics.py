"""Rubrics: groups of weighted facts that must hold at the end of an episode, and what it takes to pass.

A fact says what is true of what an episode left behind, by one of the types below; most are checked by program, ``judge`` by a model.
A rubric is frozen before a run: its hash is written down, and grading by another one is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, model_validator

from envs.types.order import check_after
from envs.types.record import Record
from envs.types.selectors import parse_selector

PASS_THRESHOLD = 0.85
"""W8's."""
HOLDS_SIMILAR = 0.85
"""Similarity from which a ``domdiff_subscore`` holds: as much as a rubric needs to pass."""
HOLDS_JUDGED = 0.5
"""Confidence from which a judge's fact holds: more than half of the votes."""


class Match(StrEnum):
    """How a text is compared. White space counts as one space, and case does not count unless the fact says so."""

    EXACT = "exact"
    CONTAINS = "contains"
    REGEX = "regex"


class Compare(StrEnum):
    """How a value is compared."""

    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank")
    return text


def _selects(text: str) -> str:
    parse_selector(text)
    return text


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Name = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_not_blank)]
Weight = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
"""A wider range would lose facts to rounding."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Css = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_selects)]
Scalar = StrictBool | int | Finite | str | None
Similarity = Literal["structuralSimilarity", "textSimilarity", "layoutSimilarity", "styleSimilarity"]
"""W8's names of the four parts of a DOM similarity."""
When = Literal["end", "ever"]
"""On the last page, or on any page of the episode."""


class FactBase(Record):
    """What every fact has."""

    id: Name
    """Unique in the rubric."""
    description: str = ""
    weight: Weight = 1.0
    """Within its group."""
    negate: bool = False
    """The opposite must be so."""
    holds_at: float = Field(default=1.0, gt=0, le=1)
    """Confidence from which it holds, for the binary score and where it is required."""
    after: tuple[str, ...] = ()
    """Ids of facts that must have come true for this one to make sense. Grading does not look at it; sub-tasks keep to it."""


class Patterned(FactBase):
    """A fact that compares text."""

    match: Match
    case_sensitive: bool = False

    def _check_pattern(self, patterns: tuple[str, ...]) -> None:
        for pattern in patterns:
            _not_blank(pattern)
            if self.match == Match.REGEX:
                _compiles(pattern)


def _compiles(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


class UrlFact(FactBase):
    """The page's address. ``/path?query`` is compared without the host; in ``exact``, the order of the query and a last ``/`` do not count."""

    type: Literal["url"] = "url"
    url: Name
    match: Literal["exact", "prefix", "contains", "regex"] = "exact"
    when: When = "end"

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.match == "regex":
            _compiles(self.url)
        return self


class TextFact(Patterned):
    """A text is on the page; what stands in fields does not count. ``exact``: it is a whole line or label."""

    type: Literal["text"] = "text"
    text: str
    match: Match = Match.CONTAINS
    when: When = "end"

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self._check_pattern((self.text,))
        return self


class AnswerFact(FactBase):
    """The policy's answer. ``number``: it has exactly one number, and that is near enough."""

    type: Literal["answer"] = "answer"
    expected: Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
    """Any of these is right."""
    match: Literal["exact", "contains", "regex", "number"] = "exact"
    case_sensitive: bool = False
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    relative_tolerance: float = Field(default=0.0, ge=0, le=1)
    """Share of the expected number; the larger of the two tolerances holds."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        for text in self.expected:
            _not_blank(text)
            if self.match == "regex":
                _compiles(text)
            if self.match == "number":
                try:
                    float(text)
                except ValueError as error:
                    raise ValueError(f"{text!r} is no number") from error
        return self


class ElementQuery(Record):
    """An element of the observation; all that is given must agree."""

    id: str = ""
    """Its semantic id."""
    tag: str = ""
    """Its kind: button, link, input…"""
    text: str = ""
    """Its label."""
    match: Match = Match.EXACT
    """Of the label."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.id or self.tag or self.text):
            raise ValueError("give at least one of id, tag and text")
        if self.match == Match.REGEX:
            _compiles(self.text)
        return self


class ElementFact(FactBase):
    """An element is listed in the observation."""

    type: Literal["element"] = "element"
    element: ElementQuery
    when: When = "end"


class ElementStateFact(FactBase):
    """An element listed in the observation has a property with a value."""

    type: Literal["element_state"] = "element_state"
    element: ElementQuery
    property: Literal["value", "text", "checked", "focused", "disabled"]
    equals: StrictBool | str
    """True or false for checked, focused and disabled; else a text, case counts."""
    when: When = "end"

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if isinstance(self.equals, bool) == (self.property in ("value", "text")):
            wanted = "a text" if self.property in ("value", "text") else "true or false"
            raise ValueError(f"equals: {self.equals!r}; property {self.property} needs {wanted}")
        return self


class DomPresentFact(FactBase):
    """A node of the last page matches a CSS selector (`envs.types.selectors` has what is supported)."""

    type: Literal["dom_element_present"] = "dom_element_present"
    selector: Css


class DomAttributeFact(FactBase):
    """A node that matches has an attribute with exactly this value."""

    type: Literal["dom_element_attribute_equals"] = "dom_element_attribute_equals"
    selector: Css
    attribute: Name
    expected_value: str


class DomStyleFact(FactBase):
    """A node that matches has a computed style property with exactly this value."""

    type: Literal["dom_element_style_property"] = "dom_element_style_property"
    selector: Css
    property: Name
    expected_value: str


class PageFact(FactBase):
    """What the page declares of itself (MiniWoB: done, raw_reward, reason)."""

    type: Literal["page_fact"] = "page_fact"
    name: Name
    op: Compare = Compare.EQ
    value: StrictBool | Finite | str

    @model_validator(mode="after")
    def _checked(self) -> Self:
        _check_order(self.op, self.value)
        return self


def _check_order(op: Compare, value: object) -> None:
    if op not in (Compare.EQ, Compare.NE) and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"op {op} needs a number; value is {value!r}")


class DownloadFact(Patterned):
    """A file was downloaded; its name is compared."""

    type: Literal["download"] = "download"
    name: Name
    match: Match = Match.EXACT
    min_bytes: int = Field(default=1, ge=0)
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Of the contents; empty if they do not matter."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self._check_pattern((self.name,))
        return self


class SqlFact(FactBase):
    """A query on the site's database gives these rows."""

    type: Literal["server_sql"] = "server_sql"
    query: Name
    rows: tuple[tuple[Scalar, ...], ...]
    ordered: bool = False
    """The order of the rows counts."""
    database: str = ""
    """Which of the site's databases; empty for its only one."""


class HttpFact(FactBase):
    """A value in the JSON that the site's server answers to a GET."""

    type: Literal["server_http"] = "server_http"
    path: str = Field(pattern=r"^/([^/]|$)")
    """On the site, with its query."""
    at: tuple[str | int, ...] = ()
    """Keys and positions that lead to the value; empty for the whole answer."""
    op: Compare = Compare.EQ
    value: Scalar

    @model_validator(mode="after")
    def _checked(self) -> Self:
        _check_order(self.op, self.value)
        return self


class SignalFact(FactBase):
    """A browser signal of the episode: a field of `EpisodeSignals`, ``counts.<trouble>``, or one of W8's names."""

    type: Literal["signal_threshold"] = "signal_threshold"
    metric: Name
    comparison: Literal["gte", "lte"] = "gte"
    threshold: Finite


class SubscoreFact(FactBase):
    """One part of the DOM similarity to a reference page; the similarity is the confidence."""

    type: Literal["domdiff_subscore"] = "domdiff_subscore"
    key: Similarity
    holds_at: float = Field(default=HOLDS_SIMILAR, gt=0, le=1)


class JudgeFact(FactBase):
    """What ``description`` says, as a model judges it."""

    type: Literal["judge"] = "judge"
    description: Name
    criterion: Literal["fact", "grounded"] = "fact"
    """``fact``: it is so (WebGym's A). ``grounded``: nothing is claimed that the pages do not show (WebGym's B)."""
    holds_at: float = Field(default=HOLDS_JUDGED, gt=0, le=1)


Fact = Annotated[
    UrlFact
    | TextFact
    | AnswerFact
    | ElementFact
    | ElementStateFact
    | DomPresentFact
    | DomAttributeFact
    | DomStyleFact
    | PageFact
    | DownloadFact
    | SqlFact
    | HttpFact
    | SignalFact
    | SubscoreFact
    | JudgeFact,
    Field(discriminator="type"),
]


class FactGroup(Record):
    """Facts that belong together."""

    name: Name
    """Unique in the rubric."""
    description: str = ""
    weight: Weight = 1.0
    facts: tuple[Fact, ...] = Field(min_length=1)
    after: tuple[str, ...] = ()
    """Names of groups that must have been reached first. Grading does not look at it; sub-tasks keep to it."""


class PassRequirements(Record):
    """What else it takes to pass."""

    required_fact_ids: tuple[str, ...] = ()
    """They must hold, or the whole score is 0."""
    required_group_ids: tuple[str, ...] = ()
    """Names of groups whose score must be above 0."""
    floors: dict[Similarity, Share] = Field(default_factory=dict)
    """Least similarities to a reference page (W8: ``domdiff_floors``)."""


class Rubric(Record):
    """How an episode of a task is graded."""

    fact_groups: tuple[FactGroup, ...] = Field(min_length=1)
    gates: tuple[Fact, ...] = ()
    """They must hold, or the whole score is 0; they add nothing to it. WebGym's criterion against hallucinations is one."""
    pass_threshold: Share = PASS_THRESHOLD
    pass_requirements: PassRequirements = PassRequirements()

    @property
    def fact_count(self) -> int:
        """The difficulty of its task; gates do not count."""
        return sum(len(group.facts) for group in self.fact_groups)

    def facts(self) -> Iterator[Fact]:
        """The facts of all groups, then the gates."""
        for group in self.fact_groups:
            yield from group.facts
        yield from self.gates

    @model_validator(mode="after")
    def _names_are_clear(self) -> Self:
        ids = Counter(fact.id for fact in self.facts())
        names = Counter(group.name for group in self.fact_groups)
        for what, counts in (("fact id", ids), ("group name", names)):
            if twice := [name for name, count in counts.items() if count > 1]:
                raise ValueError(f"fact_groups: {what} {twice[0]!r} is used {counts[twice[0]]} times")
        scored = ids.keys() - {gate.id for gate in self.gates}
        needs = self.pass_requirements
        for field, named, known in (
            ("required_fact_ids", needs.required_fact_ids, scored),
            ("required_group_ids", needs.required_group_ids, names.keys()),
        ):
            if missing := [name for name in named if name not in known]:
                raise ValueError(f"pass_requirements.{field}: there is no {missing[0]!r} in fact_groups")
        check_after("group", {group.name: group.after for group in self.fact_groups}, names.keys())
        check_after("fact", {fact.id: fact.after for fact in self.facts()}, scored)
        return self


def rubric_hash(rubric: Rubric) -> str:
    """sha256 over the rubric's canonical JSON: keys sorted, defaults left out, so that a rubric written in another order or with its
    defaults spelled out has the same one."""
    canonical: dict[str, Any] = rubric.model_dump(mode="json", exclude_defaults=True)
    # A fact's type has a default too, and is what tells facts apart.
    for group, written in zip(rubric.fact_groups, canonical["fact_groups"], strict=True):
        _put_types(group.facts, written["facts"])
    _put_types(rubric.gates, canonical.get("gates", []))
    return hashlib.sha256(orjson.dumps(canonical, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _put_types(facts: tuple[Fact, ...], written: list[dict[str, Any]]) -> None:
    for fact, each in zip(facts, written, strict=True):
        each["type"] = fact.type
