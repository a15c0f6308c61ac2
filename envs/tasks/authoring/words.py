"""Words of facts and instructions, compared without a model."""

from __future__ import annotations

import re
import unicodedata

_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W_]+(?:['’][^\W_]+)?")
_QUOTED = re.compile(r"[\"“”„«»]([^\"“”„«»]{1,80})[\"“”„«»]")


def word_set(text: str) -> frozenset[str]:
    """Return the words that are listed in a text."""
    return frozenset(re.findall(r"\S+", text))


_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NUMBERS = {name: str(value) for value, name in enumerate(_NUMBERS)}

EMPTY = word_set(
    """a an the of to in on at for from by with and or as is are was were be been being has have had it its this that these those there
    then than which who whom whose what when where while do does did done must should shall will would can could may might not no
    all any each only into onto per via up out over under their they them he she you your i we our one 1"""
)
"""Words that do not name the subject of a fact."""


def tokens(text: str) -> list[str]:
    """Return words and numbers in their order, normalized.

    They are in lower case, with plurals and number words in one form (``Two lamps`` is 2, lamp).
    """
    plain = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    return [_normalize(token) for token in _TOKEN.findall(plain)]


def content_words(text: str) -> frozenset[str]:
    """Return the words that name the subject of a text."""
    return frozenset(tokens(text)) - EMPTY


def numbers(text: str) -> frozenset[str]:
    """Return the numbers of a text, in digits or words. 1 is left out (``one of them``)."""
    return frozenset(token for token in tokens(text) if token[0].isdigit()) - {"1"}


def quoted_texts(text: str) -> list[str]:
    """Return the texts in quotation marks."""
    return [quoted for quoted in _QUOTED.findall(text) if tokens(quoted)]


def contains(text: list[str], part: list[str]) -> bool:
    """Return True if the tokens of ``part`` are in ``text``, one after the other."""
    return any(text[start : start + len(part)] == part for start in range(len(text) - len(part) + 1))


def word_overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Return shared words divided by all words (Jaccard); two empty sets are equal."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _normalize(token: str) -> str:
    if token[0].isdigit():
        return re.sub(r",(?=\d{3}(?!\d))", "", token).replace(",", ".")
    token = token.removesuffix("'s")
    token = NUMBERS.get(token, token)
    if len(token) > 3 and token.endswith("s") and not token.endswith(("ss", "us", "is")):
        return token[:-1]
    return token
