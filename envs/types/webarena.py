"""WebArena's evaluator settings as a task carries them.

Keys of that format that say nothing about the evaluation are dropped, not refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

NOT_ACHIEVABLE = "N/A"
"""Reference of a task that cannot be done."""

SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map", "homepage")
"""Names of the benchmark's sites, as placeholders have them in capitals."""

PLACEHOLDER = re.compile(r"__[A-Z][A-Z_]*?__(?![A-Z_])")
"""``__SHOPPING_ADMIN__``: stands for the address of a site."""


INEQUALITY = re.compile(r"\s*(<=|>=|==|<|>)\s*([-+]?\d+(?:\.\d+)?)\s*")
"""Bound of a number: ``>= 5``."""


class Foreign(BaseModel):
    """Immutable base of somebody else's format; unknown keys are dropped."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class EvalType(StrEnum):
    """The evaluators: WebArena's three, VisualWebArena's fourth, and REAL's."""

    STRING_MATCH = "string_match"
    URL_MATCH = "url_match"
    PROGRAM_HTML = "program_html"
    PAGE_IMAGE_QUERY = "page_image_query"
    STATE_MATCH = "state_match"


class ReferenceAnswers(Foreign):
    """References for the answer; all that are given must hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exact_match: str | None = None
    must_include: tuple[str, ...] = ()
    """``a |OR| b`` needs one of them."""
    must_exclude: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    """VisualWebArena: one of them is a part of the answer."""
    required_values: tuple[str, ...] = ()
    """VisualWebArena: inequalities that the answer satisfies (``>= 5``, ``< 3 |OR| > 9``)."""
    fuzzy_match: tuple[str, ...] | str = ()
    """Answers in other words, or ``N/A``."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        lists = (self.must_include, self.must_exclude, self.one_of, self.required_values, self.fuzzy_match)
        if self.exact_match is None and not any(lists):
            raise ValueError(
                "has nothing to compare with: give exact_match, must_include, must_exclude, one_of, required_values or "
                "fuzzy_match"
            )
        _check_inequalities(self.required_values)
        return self


class RequiredContents(Foreign):
    """References for the selected text; ``a |OR| b`` needs one of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exact_match: str | None = None
    must_include: tuple[str, ...] = ()
    must_exclude: tuple[str, ...] = ()
    required_values: tuple[str, ...] = ()
    fuzzy_match: tuple[str, ...] = ()
    """WebArena-lite: the judge says whether the text has all of it, in other words."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        lists = (self.must_include, self.must_exclude, self.required_values, self.fuzzy_match)
        if sum(map(bool, (self.exact_match is not None, *lists))) != 1:
            raise ValueError("give one of exact_match, must_include, must_exclude, required_values and fuzzy_match")
        _check_inequalities(self.required_values)
        return self


class PageCheck(Foreign):
    """Text of an element of a page."""

    url: str = Field(min_length=1)
    """``last`` for the episode's last page, an address, or ``func:`` with a helper that gives
    one."""
    locator: str = ""
    """JavaScript expression, ``func:`` with a helper, or empty for the whole page. VisualWebArena
    has ``lambda:`` before some expressions."""
    required_contents: RequiredContents
    prep_actions: tuple[str, ...] = ()
    """JavaScript that runs before the text is read."""

    @field_validator("locator")
    @classmethod
    def _kind(cls, value: str) -> str:
        text = value.strip()
        if text and not text.startswith(("document.", "[...document.", "func:", "lambda:")):
            raise ValueError("expected an empty string, document.…, [...document.…, func:… or lambda:…")
        return text


class VisualQuestion(Foreign):
    """A question about the pictures of a page, and its right answer."""

    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)


class ImageCheck(Foreign):
    """VisualWebArena's check of the pictures of a page."""

    eval_image_url: str = Field(min_length=1)
    """``last`` for the episode's last page, or an address."""
    eval_image_class: str = Field(default="", pattern=r"^\s*(\..*)?$")
    """Selector (``.photo``) of pictures, or of what they lie in; empty for all of the page."""
    eval_vqa: tuple[VisualQuestion, ...] = ()
    """Questions; one picture of the page must have the answer of each."""
    eval_fuzzy_image_match: str = ""
    """Pictures, separated by `` |OR| ``, of which one must look like one of the page's."""
    ssim_threshold: float = Field(default=0.8, ge=-1, le=1)
    """Structural similarity above which two pictures look alike."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not (self.eval_vqa or self.eval_fuzzy_image_match):
            raise ValueError("has nothing to compare with: give eval_vqa or eval_fuzzy_image_match")
        if self.eval_image_url.startswith("func:"):
            raise ValueError("eval_image_url: expected last or an address")
        return self


class StateCheck(Foreign):
    """REAL's check of a site's state: a JMESPath query's result, or a script's verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str = ""
    script: str = Field(default="", pattern=r"^(\w+\.py)?$")
    """Name of a script of the package agisdk, whose verdict is true or false."""
    expected: JsonValue = True
    description: str = ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.query) == bool(self.script):
            raise ValueError("give one of query and script")
        return self


class WebArenaEval(Foreign):
    """The grading of a task: the product of its evaluators."""

    eval_types: tuple[EvalType, ...] = Field(min_length=1)
    reference_answers: ReferenceAnswers | None = None
    reference_url: str | None = None
    """Alternatives are separated by `` |OR| ``."""
    url_note: Literal["GOLD in PRED", "EXACT"] = "GOLD in PRED"
    program_html: tuple[PageCheck, ...] = ()
    page_image_query: tuple[ImageCheck, ...] = ()
    state: tuple[StateCheck, ...] = ()
    """Checks of the JSON that ``state_page`` shows at the end."""
    state_page: str = Field(default="/finish", pattern=r"^/")
    string_note: str = ""
    """Reason why the task cannot be done."""
    visual: bool = False
    """VisualWebArena's comparisons: a single word must be a word of the text (``red`` is not in
    ``bored``), and an address is compared as it is."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if EvalType.STRING_MATCH in self.eval_types and self.reference_answers is None:
            raise ValueError("eval_types has string_match, and there are no reference_answers")
        if EvalType.URL_MATCH in self.eval_types and not (self.reference_url or "").strip():
            raise ValueError("eval_types has url_match, and there is no reference_url")
        if EvalType.PROGRAM_HTML in self.eval_types and not self.program_html:
            raise ValueError("eval_types has program_html, and program_html is empty")
        if EvalType.PAGE_IMAGE_QUERY in self.eval_types and not self.page_image_query:
            raise ValueError("eval_types has page_image_query, and page_image_query is empty")
        if EvalType.STATE_MATCH in self.eval_types and not self.state:
            raise ValueError("eval_types has state_match, and state is empty")
        return self


def _check_inequalities(bounds: tuple[str, ...]) -> None:
    for bound in (one for alternatives in bounds for one in alternatives.split(" |OR| ")):
        if INEQUALITY.fullmatch(bound) is None:
            raise ValueError(f"required_values: {bound!r} is no bound; write it as >= 5, with <=, >=, ==, < or >")


def placed(evaluators: WebArenaEval, addresses: Mapping[str, str]) -> WebArenaEval:
    """Put the addresses of sites in: ``{"shopping_admin": "http://…"}`` for ``__SHOPPING_ADMIN__``;
    other placeholders stay."""
    if not addresses:
        return evaluators
    inside = {f"__{name.upper()}__": json.dumps(address.rstrip("/"))[1:-1] for name, address in addresses.items()}
    text = PLACEHOLDER.sub(lambda match: inside.get(match.group(), match.group()), evaluators.model_dump_json())
    return WebArenaEval.model_validate_json(text)


def evaluators_hash(evaluators: WebArenaEval) -> str:
    """Return the sha256 of their canonical JSON, as `rubric_hash` does."""
    canonical = evaluators.model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(orjson.dumps(canonical, option=orjson.OPT_SORT_KEYS)).hexdigest()
