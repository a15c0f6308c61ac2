"""Finds flaws in a drafted rubric without a model.

The checks are strict where a mistake costs little: a draft that is refused is asked for again, with the reason. They cannot tell whether the facts
are complete; that is what several samples are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from envs.tasks.authoring.draft import RubricDraft, RubricDraftFact
from envs.tasks.authoring.words import contains, content_words, numbers, quoted_texts, tokens, word_overlap, word_set

MAX_WORDS = 40
"""Of a fact; longer ones hold several."""
ALIKE = 0.8
"""Share of words from which two facts of a draft say the same."""

_JOINTS = re.compile(r"[;\n•]|\.\s+(?=[A-Z])|\b(?:and|as well as|and then|then|but|while)\b", re.IGNORECASE)
_VERBS = word_set(
    """is are was were has have had be shows show shown contains contain lists listed sorted filtered opened selected added removed
    submitted placed reported reports states stated names gives given tells matches equals includes displays displayed set chosen
    clicked visited found applied entered"""
)
"""A part of a sentence with one of these is a statement of its own: ``black and white`` is one demand, ``is open and is sorted`` are two."""

_ANSWERING = word_set(
    """answer answers answered report reports reported tells told states stated returns returned provides provided names named mentions
    mentioned identifies identified says said responds responded gives given summary summarizes summarises summarized summarised listed"""
)
"""A fact about what the agent answers has one of these."""

UNACHIEVABLE = frozenset({"n/a", "na", "not achievable", "unachievable", "impossible", "none"})


def find_flaws(draft: RubricDraft, instruction: str, reference: str | None, max_facts: int) -> list[str]:
    """What is wrong, as ``place: reason``; empty if nothing is."""
    facts = list(draft.facts())
    found = [f"{place}.{problem}" for place, fact in facts for problem in _of_fact(fact, instruction, reference)]
    for (_, one), (place, other) in combinations(facts, 2):
        if word_overlap(content_words(one.text), content_words(other.text)) >= ALIKE:
            found.append(f"{place}.text: says the same as {one.text!r}")
    if len(facts) > max_facts:
        found.append(f"fact_groups: {len(facts)} facts; at most {max_facts}")
    if reference is not None and not any(_ANSWERING & set(_plain(fact.text)) for _, fact in facts):
        found.append("fact_groups: the task has a right answer, and no fact says that the agent answers")
    return found


def explain_ungradable(instruction: str | None, reference: str | None) -> str | None:
    """Why no rubric can be written for a task; ``None`` if one can."""
    if instruction is None or not content_words(instruction):
        return "instruction: there are no words to make facts of"
    if reference is not None and " ".join(reference.split()).strip(".").casefold() in UNACHIEVABLE:
        return f"reference_answer: {reference!r} says that the task cannot be done, which facts cannot grade"
    return None


def _of_fact(fact: RubricDraftFact, instruction: str, reference: str | None) -> Iterator[str]:
    said = tokens(instruction)
    if not content_words(fact.asked) or not contains(said, tokens(fact.asked)):
        yield f"asked: {fact.asked!r} are no words of the instruction"
    if not content_words(fact.text) & content_words(instruction):
        yield "text: has no word of the instruction"
    if reference is not None and _gives_away(fact.text, said, tokens(reference)):
        yield f"text: says the right answer, {reference!r}"
    elif invented := sorted(numbers(fact.text) - numbers(instruction)):
        yield f"text: names {', '.join(invented)}, which the instruction does not"
    for words in quoted_texts(fact.text):
        if not contains(said, tokens(words)):
            yield f"text: quotes {words!r}, which the instruction does not say"
    if len(fact.text.split()) > MAX_WORDS:
        yield f"text: has {len(fact.text.split())} words, at most {MAX_WORDS}; is it several facts?"
    statements = [part for part in _JOINTS.split(_outside_quotes(fact.text)) if _VERBS & set(_plain(part))]
    if len(statements) > 1:
        yield f"text: is {len(statements)} facts in one ({' / '.join(part.strip() for part in statements)})"


def _gives_away(text: str, instruction: list[str], answer: list[str]) -> bool:
    return bool(answer) and contains(tokens(text), answer) and not contains(instruction, answer)


def _plain(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def _outside_quotes(text: str) -> str:
    """A title in quotation marks may be a sentence; it is one word of the fact."""
    return re.sub(r"[\"“„«][^\"“”„«»]*[\"”»“]", "it", text)
