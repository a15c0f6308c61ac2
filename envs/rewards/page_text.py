"""Text and elements of an episode's pages as facts search them: of whole pages, where they were recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from envs.observation.options import looks_shortened
from envs.observation.text import out_of_view, was_cut
from envs.observation.whole_page import MAX_CHARS, MAX_ELEMENTS
from envs.rewards.compare import comparable, find_text, normalize_text
from envs.rewards.evidence import EpisodeEvidence
from envs.types import Element, Observation, WholePage
from envs.types.options import OPTION_CHARS
from envs.types.rubrics import ElementQuery, Match

CUT = "…"
"""Ends a text that was shortened; no address has it as it is."""
DIALOG = "a dialog was open, behind which nothing is read"
OUT_OF_VIEW = "the page goes on out of view, where it was not recorded"


class Shown(NamedTuple):
    """One page of an episode, or all, as facts read them."""

    views: tuple[Observation, ...]
    """The views of the page."""
    wholes: tuple[WholePage, ...]
    """The same pages with what was out of view; empty where that was not recorded."""

    @property
    def elements(self) -> Iterator[Element]:
        """All elements, those in view first."""
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
        """Return the reason why an element that was not found may exist; empty if it does not."""
        if any(page.dialog for page in self.views):
            return DIALOG
        if self.wholes:
            cut = any(page.elements_cut for page in self.wholes)
            return f"a page has more than {MAX_ELEMENTS:,} elements" if cut else ""
        return next((why for page in self.views if (why := _elements_cut(page, query))), "")


class Pages:
    """The pages that an episode showed. Used for one grading."""

    def __init__(self, evidence: EpisodeEvidence) -> None:
        self.evidence = evidence
        self._lines: dict[tuple[int, bool], list[str]] = {}

    def shown(self, when: str) -> Shown | None:
        """The last page, or every page (the last one first, where most facts hold); ``None`` if the last was not recorded.

        What was seen ``ever`` is not known without the last page either.
        """
        final, pages = self.evidence.final, self.evidence.pages
        if final is None:
            return None
        if when == "end":
            return Shown((final,), () if final.dialog else pages[-1:])
        return Shown((final, *reversed([step.observation for step in self.evidence.steps])), pages[::-1])

    def lines(self, shown: Shown, case_sensitive: bool) -> Iterator[str]:
        """The words line by line, then each element's label.

        What fields hold is left out: the policy put it there. What a page
        shows again of it, in words of its own, counts.
        """
        pages: tuple[Observation | WholePage, ...] = (*shown.views, *shown.wholes)
        for page in pages:
            key = (id(page), case_sensitive)
            if key not in self._lines:
                words = page.words if isinstance(page, WholePage) else _words(page)
                self._lines[key] = [normalize_text(line, case_sensitive) for line in words]
            yield from self._lines[key]

    def find(self, shown: Shown, query: ElementQuery) -> Iterator[Element]:
        """The elements that agree with all of the query."""
        for element in shown.elements:
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


def _words_cut(page: Observation, wanted: str, match: Match) -> str:
    """Describe the missing words of a page that may be the wanted ones; empty if there are none."""
    if was_cut(page.text) or page.hidden.over_limit:
        return "the page has more than is recorded"
    if out_of_view(page):
        return OUT_OF_VIEW
    if any(element.more_options for element in page.elements):
        return "a list has more choices than are recorded"
    # Of a card the whole words follow its label.
    wanted = normalize_text(wanted, True)
    for element in page.elements:
        names = () if element.tag in ("item", "hover") else ("text", "written")
        if long := next((name for name in names if cut_text_may_match(element, name, wanted, match)), ""):
            return f"the label {getattr(element, long)!r} is shortened"
        # Of choices no more is recorded than is shown.
        long_choices = (text for text in element.options if text.endswith(CUT) and len(text) >= OPTION_CHARS - 1)
        if long := next((text for text in long_choices if _may_continue_to_match(text, wanted, match)), ""):
            return f"the choice {long!r} is shortened"
    return ""


def _elements_cut(page: Observation, query: ElementQuery) -> str:
    """Return the reason why an element that is not in view may exist; empty if it does not."""
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
    """True if an element's text was cut and the whole one may match the wanted text."""
    text = full_text(element, name)
    cut = looks_shortened(text) if element.whole is None else name in element.whole.cut
    return cut and _may_continue_to_match(text, wanted, match)


def _may_continue_to_match(text: str, wanted: str, match: Match) -> bool:
    return match is not Match.EXACT or normalize_text(wanted).startswith(normalize_text(text.removesuffix(CUT)))
