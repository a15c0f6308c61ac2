"""What changed from one observation to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from envs.types import Element, ElementChange, ObservationDiff

COMPARED = ("tag", "text", "value", "checked", "focused", "disabled", "options")
"""Fields whose change is told. Numbers and boxes change with what is around an element."""


_compared = attrgetter(*COMPARED)


def compare(
    before: Sequence[Element], after: Sequence[Element], text_before: Sequence[str], text_after: Sequence[str]
) -> ObservationDiff:
    """Elements by id, text by lines. A line that only moved is no change; one that is there twice now is one added line."""
    old = {element.id: element for element in before if element.id}
    new = {element.id: element for element in after if element.id}
    return ObservationDiff(
        added=tuple(id for id in new if id not in old),
        removed=tuple(id for id in old if id not in new),
        changed=tuple(
            change
            for id in new
            if id in old and old[id] is not new[id] and _compared(old[id]) != _compared(new[id])
            for change in _changes(old[id], new[id])
        ),
        text_added=_more(text_after, text_before),
        text_removed=_more(text_before, text_after),
    )


def _changes(old: Element, new: Element) -> list[ElementChange]:
    return [
        ElementChange(id=new.id, name=name, before=_word(getattr(old, name)), after=_word(getattr(new, name)))
        for name in COMPARED
        if getattr(old, name) != getattr(new, name)
    ]


def _word(value: object) -> str:
    return (
        ", ".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _more(these: Sequence[str], those: Sequence[str]) -> tuple[str, ...]:
    """Lines of ``these`` that are more often there than in ``those``, in order."""
    left = Counter(these) - Counter(those)
    found = []
    for line in these if left else ():
        if left.get(line):
            left[line] -= 1
            found.append(line)
    return tuple(found)
