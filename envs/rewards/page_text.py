"""Finds text and elements in the recorded pages of an episode, for facts.

It reads whole pages where they were recorded, else only the views of the policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from envs.observation.options import looks_shortened
from envs.observation.text import out_of_view, was_cut
from envs.observation.whole_page import MAX_CHARS, MAX_ELEMENTS
from envs.rewards.compare import comparable, find_text, normalize_text
from envs.rewards.evidence import GradingEvidence
from envs.types import Element, Observation, WholePage
from envs.types.options import OPTION_CHARS
from envs.types.rubrics import ElementQuery, Match

CUT = "…"
"""Last character of a shortened text; it occurs in no address."""
DIALOG = "a dialog was open, behind which nothing is read"
OUT_OF_VIEW = "the page goes on out of view, where it was not recorded"


class Shown(NamedTuple):
    """One or all pages of an episode, as facts read them."""

    views: tuple[Observation, ...]
    """Views of the pages."""
    wholes: tuple[WholePage, ...]
    """Whole pages, with what was out of view; empty where that was not recorded."""

    @property
    def elements(self) -> Iterator[Element]:
        """Yield all elements, those in view first."""
        yield from chain.from_iterable(page.elements for page in self.views)
        yield from chain.from_iterable(page.elements for page in self.wholes)

    def words_cut(self, wanted: str, match: Match) -> str:
        """Describe the missing words that may be the wanted ones; empty if there are none."""
        if any(page.dialog for page in self.views):
            return DIALOG
        if self.wholes:
            return f"a page has more than {MAX_CHARS:,} characters" if any(p.words_cut for p in self.wholes) else ""
        return next((why for page in self.views if (why := _words_cut(page, wanted, match))), "")

    def elements_cut(self, query: ElementQuery) -> str:
        """Return the reason why a missing element may exist, or an empty text."""
        if any(page.dialog for page in self.views):
            return DIALOG
        if self.wholes:
            cut = any(page.elements_cut for page in self.wholes)
            return f"a page has more than {MAX_ELEMENTS:,} elements" if cut else ""
        return next((why for page in self.views if (why := _elements_cut(page, query))), "")


class Pages:
    """Pages of an episode, with a cache of their lines. Used for one grading."""

    def __init__(self, evidence: GradingEvidence) -> None:
        self.evidence = evidence
        self._lines: dict[tuple[int, bool], list[str]] = {}

    def shown(self, when: str) -> Shown | None:
        """Return the last page or every page; ``None`` if the last was not recorded.

        The last page comes first, because most facts hold there. Without it, facts about all pages
        cannot be decided either.

        Args:
            when: ``end`` for the last page, ``ever`` for every page.
        """
        final, pages = self.evidence.final, self.evidence.pages
        if final is None:
            return None
        if when == "end":
            return Shown((final,), () if final.dialog else pages[-1:])
        return Shown((final, *reversed([step.observation for step in self.evidence.steps])), pages[::-1])

    def lines(self, shown: Shown, case_sensitive: bool) -> Iterator[str]:
        """Yield the words line by line, then each element's label.

        The contents of fields are left out, because the policy put them there. They count where the
        page shows them again in its own words.
        """
        pages: tuple[Observation | WholePage, ...] = (*shown.views, *shown.wholes)
        for page in pages:
            key = (id(page), case_sensitive)
            if key not in self._lines:
                words = page.words if isinstance(page, WholePage) else _words(page)
                self._lines[key] = [normalize_text(line, case_sensitive) for line in words]
            yield from self._lines[key]

    def find(self, shown: Shown, query: ElementQuery) -> Iterator[Element]:
        """Yield the elements that match all of the query."""
        for element in shown.elements:
            if (query.id and element.id != query.id) or (query.tag and element.tag != query.tag):
                continue
            if (
                not query.text
                or find_text(query.text, query.match, [comparable(full_text(element, "text"), query.match)]) is not None
            ):
                yield element


def full_text(element: Element, name: str) -> str:
    """Return as much of an element's ``text``, ``written`` or ``value`` as is recorded."""
    return getattr(element.whole, name, "") or str(getattr(element, name))


def _words(page: Observation) -> Iterator[str]:
    if page.words is not None:
        yield from page.words
    else:
        yield from _words_of_old_record(page)
    for element in page.elements:
        yield full_text(element, "text")
        yield full_text(element, "written")
        yield from element.options  # the text has only the first ones
    yield page.dialog
    yield from page.notices


def _words_of_old_record(page: Observation) -> Iterator[str]:
    """Yield the words of an observation without `Observation.words`.

    These are the lines of its text, without the values and heading marks that the renderer added.
    """
    text = page.text
    for element in page.elements:
        if element.value:
            text = text.replace(f'value "{element.value}"', "")
    yield from (re.sub("^#{1,6} ", "", line) for line in text.splitlines())


def _words_cut(page: Observation, wanted: str, match: Match) -> str:
    """Describe a page's missing words that may be the wanted ones; empty if none."""
    if was_cut(page.text) or page.hidden.over_limit:
        return "the page has more than is recorded"
    if out_of_view(page):
        return OUT_OF_VIEW
    if any(element.more_options for element in page.elements):
        return "a list has more choices than are recorded"
    # The whole text of a card (item, hover) follows its label, so a cut label hides nothing.
    wanted = normalize_text(wanted, True)
    for element in page.elements:
        names = () if element.tag in ("item", "hover") else ("text", "written")
        if long := next((name for name in names if cut_text_may_match(element, name, wanted, match)), ""):
            return f"the label {getattr(element, long)!r} is shortened"
        # Choices are recorded only as they are shown, so a cut one may hide words.
        long_choices = (text for text in element.options if text.endswith(CUT) and len(text) >= OPTION_CHARS - 1)
        if long := next((text for text in long_choices if _may_continue_to_match(text, wanted, match)), ""):
            return f"the choice {long!r} is shortened"
    return ""


def _elements_cut(page: Observation, query: ElementQuery) -> str:
    """Return the reason why an unseen element may exist, or an empty text."""
    if page.hidden.over_limit:
        return f"{page.hidden.over_limit:,} more elements are not listed"
    if out_of_view(page):
        return OUT_OF_VIEW
    for element in page.elements:
        named = (not query.id or element.id == query.id) and (not query.tag or element.tag == query.tag)
        if named and query.text and cut_text_may_match(element, "text", query.text, query.match):
            return f"the label {element.text!r} is shortened"
    return ""


def cut_text_may_match(element: Element, name: str, wanted: str, match: Match) -> bool:
    """True if an element's text was cut and its whole text may match."""
    text = full_text(element, name)
    cut = looks_shortened(text) if element.whole is None else name in element.whole.cut
    return cut and _may_continue_to_match(text, wanted, match)


def _may_continue_to_match(text: str, wanted: str, match: Match) -> bool:
    return match is not Match.EXACT or normalize_text(wanted).startswith(normalize_text(text.removesuffix(CUT)))
