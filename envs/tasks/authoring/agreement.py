"""Majority vote over several drafts of one rubric. Pure.

Facts of different drafts are the same when most of their words are:
``.6 J(text) + .4 J(asked) >= .5``, where J is the Jaccard overlap of content words.
Each fact is paired with at most one fact of another draft, so that the sum of overlaps is greatest.
The quoted words (``asked``) help where two models say one thing in two ways. They are not enough
alone: a lazy model quotes the whole instruction for everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from envs.assignment import best_pairs
from envs.tasks.authoring.draft import RubricDraft, RubricDraftFact
from envs.tasks.authoring.words import content_words, word_overlap

SAME = 0.5
TEXT_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Agreement:
    """The draft chosen for all, or the reason why there is none. It has all facts agreed on."""

    draft: RubricDraft | None
    reason: str
    agreed: int
    """Number of facts that more than half of the samples have."""
    written: int
    """Number of different facts of all drafts together."""

    @property
    def share(self) -> float:
        """Share of the written facts that are agreed on."""
        return self.agreed / self.written if self.written else 0.0


@dataclass
class _Claim:
    """One fact as the drafts word it."""

    facts: dict[int, tuple[str, RubricDraftFact]] = field(default_factory=dict)
    """Place and fact, by number of the draft."""


def agree(drafts: Sequence[RubricDraft], samples: int, least: float) -> Agreement:
    """Choose the draft that has all facts on which most drafts agree.

    Args:
        samples: Number of drafts asked for. One that was lost votes for nothing.
        least: Share of the written facts that must be agreed on.
    """
    claims = _merge_facts(drafts)
    agreed = [claim for claim in claims if 2 * len(claim.facts) > samples]
    counts = len(agreed), len(claims)
    if not agreed:
        return Agreement(None, f"samples agree on none of {len(claims)} facts", *counts)
    if len(agreed) < least * len(claims):
        return Agreement(None, f"samples agree on {len(agreed)} of {len(claims)} facts only", *counts)
    whole = [number for number in range(len(drafts)) if all(number in claim.facts for claim in agreed)]
    if not whole:
        return Agreement(None, f"no sample has all {len(agreed)} facts that most have", *counts)
    chosen = min(whole, key=lambda number: sum(number in claim.facts for claim in claims))
    places = frozenset(claim.facts[chosen][0] for claim in agreed)
    return Agreement(drafts[chosen].only(places), "", *counts)


def fact_similarity(one: RubricDraftFact, other: RubricDraftFact) -> float:
    """Return the similarity of two facts, in [0, 1]."""
    text = word_overlap(content_words(one.text), content_words(other.text))
    return TEXT_SHARE * text + (1 - TEXT_SHARE) * word_overlap(content_words(one.asked), content_words(other.asked))


def _merge_facts(drafts: Sequence[RubricDraft]) -> list[_Claim]:
    claims: list[_Claim] = []
    for number, draft in enumerate(drafts):
        facts = list(draft.facts())
        scores = np.array([[_best_similarity(claim, fact) for claim in claims] for _, fact in facts]).reshape(
            len(facts), len(claims)
        )
        scores[scores < SAME] = 0
        pairs = {row: column for row, column in best_pairs(scores) if scores[row, column] >= SAME}
        for row, placed in enumerate(facts):
            if row not in pairs:
                claims.append(_Claim())
            claims[pairs.get(row, -1)].facts[number] = placed
    return claims


def _best_similarity(claim: _Claim, fact: RubricDraftFact) -> float:
    return max(fact_similarity(fact, known) for _, known in claim.facts.values())
