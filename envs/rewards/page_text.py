"""Text of an episode's pages as facts search it, computed once per page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envs.rewards.compare import comparable, find_text, normalize_text
from envs.rewards.evidence import EpisodeEvidence
from envs.types import Element, Observation
from envs.types.rubrics import ElementQuery


class Pages:
    """What an episode showed. Used for one grading."""

    def __init__(self, evidence: EpisodeEvidence) -> None:
        self.evidence = evidence
        self._lines: dict[tuple[int, bool], list[str]] = {}

    def shown(self, when: str) -> Sequence[Observation] | None:
        """The last page, or every page (the last one first, where most facts hold); ``None`` if the last was not recorded.

        What was seen ``ever`` is not known without the last page either.
        """
        final = self.evidence.final
        if final is None:
            return None
        if when == "end":
            return (final,)
        return (final, *reversed([step.observation for step in self.evidence.steps]))

    def lines(self, page: Observation, case_sensitive: bool) -> list[str]:
        """The page's words line by line, then each element's label.

        What fields hold is left out: the policy put it there. What a page
        shows again of it, in words of its own, counts.
        """
        key = (id(page), case_sensitive)
        if key not in self._lines:
            self._lines[key] = [normalize_text(line, case_sensitive) for line in _words(page)]
        return self._lines[key]

    def find(self, page: Observation, query: ElementQuery) -> Iterator[Element]:
        """The page's elements that agree with all of the query."""
        for element in page.elements:
            if (query.id and element.id != query.id) or (query.tag and element.tag != query.tag):
                continue
            if (
                not query.text
                or find_text(query.text, query.match, [comparable(full_text(element, "text"), query.match)]) is not None
            ):
                yield element


def full_text(element: Element, name: str) -> str:
    """An element's ``text``, ``written`` or ``value``, as much of it as is recorded."""
    return getattr(element.whole, name, "") or str(getattr(element, name))


def _words(page: Observation) -> Iterator[str]:
    if page.words is not None:
        yield from page.words
    else:
        yield from _words_of_old_record(page)
    for element in page.elements:
        yield full_text(element, "text")
        yield full_text(element, "written")
        yield from element.options  # of which the text has the first ones only
    yield page.dialog
    yield from page.notices


def _words_of_old_record(page: Observation) -> Iterator[str]:
    """The words of an observation without `Observation.words`: its text, without values and signs of headings where the renderer wrote them."""
    text = page.text
    for element in page.elements:
        if element.value:
            text = text.replace(f'value "{element.value}"', "")
    yield from (re.sub("^#{1,6} ", "", line) for line in text.splitlines())
