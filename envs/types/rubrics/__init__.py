"""Rubrics: weighted groups of facts, and what it takes to pass.

A fact says what is true of what an episode left behind, by one of the types in `facts`; most are
checked by program, ``judge`` by a model. A rubric is frozen before a run: its hash is written down,
and grading by another one is refused.
"""

from envs.types.rubrics.base import HOLDS_JUDGED, HOLDS_SIMILAR, Compare, FactBase, Match, Name
from envs.types.rubrics.facts import (
    AnswerFact,
    DomAttributeFact,
    DomPresentFact,
    DomStyleFact,
    DownloadFact,
    ElementFact,
    ElementQuery,
    ElementStateFact,
    Fact,
    HttpFact,
    JsFact,
    JudgeFact,
    PageFact,
    SignalFact,
    SqlFact,
    SubscoreFact,
    TextFact,
    UrlFact,
)
from envs.types.rubrics.rubric import (
    PASS_THRESHOLD,
    FactGroup,
    PassRequirements,
    Rubric,
    rubric_hash,
)

__all__ = [
    "HOLDS_JUDGED",
    "HOLDS_SIMILAR",
    "PASS_THRESHOLD",
    "AnswerFact",
    "Compare",
    "DomAttributeFact",
    "DomPresentFact",
    "DomStyleFact",
    "DownloadFact",
    "ElementFact",
    "ElementQuery",
    "ElementStateFact",
    "Fact",
    "FactBase",
    "FactGroup",
    "HttpFact",
    "JsFact",
    "JudgeFact",
    "Match",
    "Name",
    "PageFact",
    "PassRequirements",
    "Rubric",
    "SignalFact",
    "SqlFact",
    "SubscoreFact",
    "TextFact",
    "UrlFact",
    "rubric_hash",
]
