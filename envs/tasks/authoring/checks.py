"""Finds flaws in a drafted rubric without a model.

The checks are strict where a mistake costs little: a refused draft is asked for again, with the
reason. They cannot tell whether facts are missing; several samples are compared for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from envs.tasks.authoring.draft import RubricDraft, RubricDraftFact
from envs.tasks.authoring.words import contains, content_words, numbers, quoted_texts, tokens, word_overlap, word_set

MAX_WORDS = 40
"""Words of a fact; a longer one holds several facts."""
ALIKE = 0.8
"""Share of words from which two facts of a draft say the same."""

_JOINTS = re.compile(r"[;\n•]|\.\s+(?=[A-Z])|\b(?:and|as well as|and then|then|but|while)\b", re.IGNORECASE)
_VERBS = word_set(
    """is are was were has have had be shows show shown contains contain lists listed sorted filtered opened selected added removed
    submitted placed reported reports states stated names gives given tells matches equals includes displays displayed set chosen
    clicked visited found applied entered"""
)
"""Verbs that make a part of a sentence a statement of its own.

``black and white`` is one demand, ``is open and is sorted`` are two.
"""

_ANSWERING = word_set(
    """answer answers answered report reports reported tells told states stated returns returned provides provided names named mentions
    mentioned identifies identified says said responds responded gives given summary summarizes summarises summarized summarised listed"""
)
"""Verbs of a fact about the agent's answer."""

UNACHIEVABLE = frozenset({"n/a", "na", "not achievable", "unachievable", "impossible", "none"})


def find_flaws(draft: RubricDraft, instruction: str, reference: str | None, max_facts: int) -> list[str]:
    """Return the flaws of a draft as ``place: reason``; empty if there are none."""
    facts = list(draft.facts())
    flaws = [f"{place}.{problem}" for place, fact in facts for problem in _check_fact(fact, instruction, reference)]
    for (_, one), (place, other) in combinations(facts, 2):
        if word_overlap(content_words(one.text), content_words(other.text)) >= ALIKE:
            flaws.append(f"{place}.text: says the same as {one.text!r}")
    if len(facts) > max_facts:
        flaws.append(f"fact_groups: {len(facts)} facts; at most {max_facts}")
    if reference is not None and not any(_ANSWERING & set(_letters_only(fact.text)) for _, fact in facts):
        flaws.append("fact_groups: the task has a right answer, and no fact says that the agent answers")
    return flaws


def explain_ungradable(instruction: str | None, reference: str | None) -> str | None:
    """Return the reason why no rubric can be written, or ``None`` if one can."""
    if instruction is None or not content_words(instruction):
        return "instruction: there are no words to make facts of"
    if reference is not None and " ".join(reference.split()).strip(".").casefold() in UNACHIEVABLE:
        return f"reference_answer: {reference!r} says that the task cannot be done, which facts cannot grade"
    return None


def _check_fact(fact: RubricDraftFact, instruction: str, reference: str | None) -> Iterator[str]:
    instruction_tokens = tokens(instruction)
    if not content_words(fact.asked) or not contains(instruction_tokens, tokens(fact.asked)):
        yield f"asked: {fact.asked!r} are no words of the instruction"
    if not content_words(fact.text) & content_words(instruction):
        yield "text: has no word of the instruction"
    if reference is not None and _gives_away(fact.text, instruction_tokens, tokens(reference)):
        yield f"text: says the right answer, {reference!r}"
    elif invented := sorted(numbers(fact.text) - numbers(instruction)):
        yield f"text: names {', '.join(invented)}, which the instruction does not"
    for words in quoted_texts(fact.text):
        if not contains(instruction_tokens, tokens(words)):
            yield f"text: quotes {words!r}, which the instruction does not say"
    if len(fact.text.split()) > MAX_WORDS:
        yield f"text: has {len(fact.text.split())} words, at most {MAX_WORDS}; is it several facts?"
    statements = [part for part in _JOINTS.split(_outside_quotes(fact.text)) if _VERBS & set(_letters_only(part))]
    if len(statements) > 1:
        yield f"text: is {len(statements)} facts in one ({' / '.join(part.strip() for part in statements)})"


def _gives_away(text: str, instruction: list[str], answer: list[str]) -> bool:
    return bool(answer) and contains(tokens(text), answer) and not contains(instruction, answer)


def _letters_only(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def _outside_quotes(text: str) -> str:
    """Replace a title in quotation marks by one word: it may be a sentence."""
    return re.sub(r"[\"“„«][^\"“”„«»]*[\"”»“]", "it", text)
