"""Base classes, bounds and comparisons shared by rubric facts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from envs.types.patterns import check_pattern
from envs.types.record import Record
from envs.types.selectors import parse_selector

HOLDS_SIMILAR = 0.85
"""Similarity from which a ``domdiff_subscore`` holds: as much as a rubric needs to pass."""
HOLDS_JUDGED = 0.5
"""Confidence from which a judge's fact holds: more than half of the votes."""


class Match(StrEnum):
    """The comparison of a text.

    White space counts as one space, and case does not count unless the fact says so.
    """

    EXACT = "exact"
    CONTAINS = "contains"
    REGEX = "regex"


class Compare(StrEnum):
    """The comparison of a value."""

    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"


def not_blank(text: str) -> str:
    """Return the text; raise ``ValueError`` if it is blank."""
    if not text.strip():
        raise ValueError("is blank")
    return text


def _selects(text: str) -> str:
    parse_selector(text)
    return text


def as_tuple(value: object) -> object:
    """Turn one text or a list into a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Name = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(not_blank)]
Weight = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
"""A wider range would lose facts to rounding."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Css = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_selects)]
Scalar = StrictBool | int | Finite | str | None
Similarity = Literal["structuralSimilarity", "textSimilarity", "layoutSimilarity", "styleSimilarity"]
"""W8's names of the four parts of a DOM similarity."""
When = Literal["end", "ever"]
"""The page that a fact looks at: the last one, or any page of the episode."""


class FactBase(Record):
    """Fields of every fact."""

    id: Name
    """Unique in the rubric."""
    description: str = ""
    weight: Weight = 1.0
    """Weight within the group."""
    negate: bool = False
    """True requires the opposite."""
    holds_at: float = Field(default=1.0, gt=0, le=1)
    """Least confidence at which the fact holds, for the binary score and where it is required."""
    after: tuple[str, ...] = ()
    """Ids of facts that must hold before this one makes sense. Sub-tasks use it, grading does
    not."""


class Patterned(FactBase):
    """A fact that compares text."""

    match: Match
    case_sensitive: bool = False

    def check_patterns(self, patterns: tuple[str, ...]) -> None:
        """Raise ``ValueError`` for a blank pattern, or one that rubrics may not use."""
        for pattern in patterns:
            not_blank(pattern)
            if self.match == Match.REGEX:
                check_pattern(pattern)


def check_order(op: Compare, value: object) -> None:
    """Raise ``ValueError`` if the comparison needs a number and the value is none."""
    if op not in (Compare.EQ, Compare.NE) and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"op {op} needs a number; value is {value!r}")
