"""The types of facts. A program checks most of them (`envs.rewards.facts`), a model ``judge``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, model_validator

from envs.types.patterns import check_pattern
from envs.types.record import Record
from envs.types.rubrics.base import (
    HOLDS_JUDGED,
    HOLDS_SIMILAR,
    Compare,
    Css,
    FactBase,
    Finite,
    Match,
    Name,
    Patterned,
    Scalar,
    Similarity,
    When,
    as_tuple,
    check_order,
    not_blank,
)

MAX_SCRIPT = 4000
"""Characters of a predicate, or of what a model is to judge."""


class UrlFact(FactBase):
    """The page's address.

    ``/path?query`` is compared without the host; in ``exact``, the order of the query and a last
    ``/`` do not count.
    """

    type: Literal["url"] = "url"
    url: Name
    match: Literal["exact", "prefix", "contains", "regex"] = "exact"
    when: When = "end"

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.match == "regex":
            check_pattern(self.url)
        return self


class TextFact(Patterned):
    """A text is on the page, in view or not; what stands in fields does not count.

    ``exact``: it is a whole line or label.
    """

    type: Literal["text"] = "text"
    text: str
    match: Match = Match.CONTAINS
    when: When = "end"

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check_patterns((self.text,))
        return self


class AnswerFact(FactBase):
    """The policy's answer. ``number``: it has exactly one number, and that is near enough."""

    type: Literal["answer"] = "answer"
    expected: Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    """Any of these is right."""
    match: Literal["exact", "contains", "regex", "number"] = "exact"
    case_sensitive: bool = False
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    relative_tolerance: float = Field(default=0.0, ge=0, le=1)
    """Share of the expected number; the larger of the two tolerances holds."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        for text in self.expected:
            not_blank(text)
            if self.match == "regex":
                check_pattern(text)
            if self.match == "number":
                try:
                    float(text)
                except ValueError as error:
                    raise ValueError(f"{text!r} is no number") from error
        return self


class ElementQuery(Record):
    """An interactive element of a page; all that is given must agree."""

    id: str = ""
    """Its semantic id."""
    tag: str = ""
    """Its kind: button, link, input…"""
    text: str = ""
    """Its label."""
    match: Match = Match.EXACT
    """Comparison of the label."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.id or self.tag or self.text):
            raise ValueError("give at least one of id, tag and text")
        if self.match == Match.REGEX:
            check_pattern(self.text)
        return self


class ElementFact(FactBase):
    """An interactive element is on the page, in view or not."""

    type: Literal["element"] = "element"
    element: ElementQuery
    when: When = "end"


class ElementStateFact(FactBase):
    """An interactive element of the page has a property with a value."""

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
    """A node of the last page matches a CSS selector (`envs.types.selectors` has what is
    supported)."""

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


class JsFact(FactBase):
    """A JavaScript expression of the last page is true.

    It is evaluated once, at the end of the episode, where the page's own scripts can neither see
    nor change what it calls, and it may only read: what would change anything is stopped.
    ``$(selector)`` and ``$$(selector)`` find the first and all elements. An exception and any value
    but true and false make the fact not available, so it should be written as one that always is
    either (``$("#total")?.textContent === "42"``).
    """

    type: Literal["js"] = "js"
    expression: str = Field(min_length=1, max_length=MAX_SCRIPT)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        not_blank(self.expression)
        return self


class PageFact(FactBase):
    """A fact that the page declares of itself (MiniWoB: done, raw_reward, reason)."""

    type: Literal["page_fact"] = "page_fact"
    name: Name
    op: Compare = Compare.EQ
    value: StrictBool | Finite | str

    @model_validator(mode="after")
    def _checked(self) -> Self:
        check_order(self.op, self.value)
        return self


class DownloadFact(Patterned):
    """A file was downloaded; its name is compared."""

    type: Literal["download"] = "download"
    name: Name
    match: Match = Match.EXACT
    min_bytes: int = Field(default=1, ge=0)
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """sha256 of the contents; empty if they do not matter."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check_patterns((self.name,))
        return self


class SqlFact(FactBase):
    """A query on the site's database gives these rows."""

    type: Literal["server_sql"] = "server_sql"
    query: Name
    rows: tuple[tuple[Scalar, ...], ...]
    ordered: bool = False
    """True if the order of the rows counts."""
    database: str = ""
    """Name of the site's database; empty for its only one."""


class HttpFact(FactBase):
    """A value in the JSON that the site's server answers to a GET."""

    type: Literal["server_http"] = "server_http"
    path: str = Field(pattern=r"^/([^/]|$)")
    """Path on the site, with its query."""
    at: tuple[str | int, ...] = ()
    """Keys and positions that lead to the value; empty for the whole answer."""
    op: Compare = Compare.EQ
    value: Scalar

    @model_validator(mode="after")
    def _checked(self) -> Self:
        check_order(self.op, self.value)
        return self


class SignalFact(FactBase):
    """A browser signal of the episode: a field of `EpisodeSignals`, ``counts.<trouble>``, or one of
    W8's names."""

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
    """The statement of ``description``, as a model judges it."""

    type: Literal["judge"] = "judge"
    description: Annotated[str, Field(min_length=1, max_length=MAX_SCRIPT), AfterValidator(not_blank)]
    criterion: Literal["fact", "grounded"] = "fact"
    """``fact``: the statement is true (WebGym's A). ``grounded``: the answer claims only what the
    pages show (WebGym's B)."""
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
    | JsFact
    | PageFact
    | DownloadFact
    | SqlFact
    | HttpFact
    | SignalFact
    | SubscoreFact
    | JudgeFact,
    Field(discriminator="type"),
]
