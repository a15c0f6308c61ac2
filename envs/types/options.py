"""Names the options of a list, and finds the one that a text means. Pure.

The label is what a person sees (`HTMLOptionElement.label`). Observations list the names, and
actions take them: a name is a label that was made short and, where several options look the same,
has the option's group or its number after it.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

OPTION_CHARS = 80
"""Characters of a name, as many as of an element's label."""

Labelled = tuple[str, str]
"""Label and group of an option; the group is empty where it has none."""

GROUP_CHARS = 24

_LOOKALIKES = str.maketrans("‘’‛′`“”‟″‐‑‒–—−", "'''''\"\"\"\"------")


@lru_cache(maxsize=256)
def option_names(options: tuple[Labelled, ...]) -> tuple[str, ...]:
    """The name of each option, no two alike: ``Springfield (Ohio)``, ``10:00 [2]``."""
    looks = [_look(label) for label, _ in options]
    groups: dict[str, set[str]] = {}
    for look, (_, group) in zip(looks, options, strict=True):
        groups.setdefault(look, set()).add(group)
    names, used = list[str](), set[str]()
    numbers = Counter[str]()
    for look, (label, group) in zip(looks, options, strict=True):
        after = f" ({_short(group, GROUP_CHARS)})" if group and len(groups[look]) > 1 else ""
        plain = name = _short(label, OPTION_CHARS - len(after)) + after
        while _look(name) in used or (name != plain and _look(name) in groups):  # the label of another one
            numbers[plain] += 1
            number = f"{after} [{numbers[plain] + 1}]"
            name = _short(label, OPTION_CHARS - len(number)) + number
        used.add(_look(name))
        names.append(name)
    return tuple(names)


def find_options(options: tuple[Labelled, ...], wanted: str) -> list[int]:
    """Places of the options that a text may mean: one, none, or several among which it does not
    decide.

    Letter by letter first; then what looks the same, without regard to case, and last with plain
    quotes, hyphens, widths and ligatures.
    """
    names, labels = option_names(options), [label for label, _ in options]
    keys: tuple[Callable[[str], str], ...] = (str, _look, _caseless, _plain)
    for key in keys:
        for texts in (names, labels):
            hits = [place for place, text in enumerate(texts) if key(text) == key(wanted)]
            if hits:
                return hits
    return []


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1].rstrip() + "…"


def _look(text: str) -> str:
    """The text without what cannot be seen: Unicode's forms, soft hyphens, characters without a
    width, kinds of spaces."""
    if text.isascii():
        return " ".join(text.split())
    shown = (char for char in unicodedata.normalize("NFC", text) if unicodedata.category(char) != "Cf")
    return " ".join("".join(shown).split())


def _caseless(text: str) -> str:
    return _look(text).casefold()


def _plain(text: str) -> str:
    return _caseless(unicodedata.normalize("NFKC", text.translate(_LOOKALIKES)))
