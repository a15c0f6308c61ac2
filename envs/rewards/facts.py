"""Checks each type of rubric fact against the evidence of an episode.

A fact is *not available* when its subject was not recorded, or when the judge or server had no
answer. That never depends on the policy: a page without the text makes a fact about text false. The
one exception are the facts that a page declares of itself: if it declares none of that name
(MiniWoB's facts on another site's page), the fact is not available.

A fact is *undecided* when it depends on evidence that was left out: text that was cut, elements
beyond a limit, a download under way. It is then neither true nor false, and the whole episode
abstains, because a policy could otherwise hide a false fact by making the page too large. The
recorded evidence decides where it can: a text in the recorded part of a page is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from envs.rewards.compare import comparable, compare, find_text, number_in, same_page
from envs.rewards.evidence import GradingEvidence
from envs.rewards.page_text import CUT, Pages, cut_text_may_match, full_text
from envs.rewards.server_answers import find_answer, question_of, value_at
from envs.types import Cost, FactGroup, JudgeFact, Record
from envs.types.patterns import Undecided
from envs.types.rubrics import (
    AnswerFact,
    DomAttributeFact,
    DomPresentFact,
    DomStyleFact,
    DownloadFact,
    ElementFact,
    ElementStateFact,
    Fact,
    HttpFact,
    JsFact,
    Match,
    PageFact,
    SignalFact,
    SqlFact,
    SubscoreFact,
    TextFact,
    UrlFact,
)
from envs.types.selectors import parse_selector
from envs.types.signals import Trouble

NO_JUDGE = "no judge is configured"
NO_SERVER = "the server's state cannot be asked for"
NO_PAGE = "the last page was not recorded"
NO_DOM = "the nodes of the last page were not recorded"
NO_DOWNLOADS = "downloads were not recorded"
NO_SCRIPT = "the last page was not asked"

W8_METRICS = {
    "layout_duration_ms": "layout_ms",
    "total_cls": "layout_shift",
    "compositor_layer_count": "most_layers",
}
"""W8's names of fields of `EpisodeSignals`.

W8's ``gpu_memory_mb`` is ``gpu_bytes`` in another unit.
"""


MAX_ROWS = 5
"""Maximum rows of an answer in the evidence."""
SHOWN = 160
"""Maximum characters of an expression or a value in the evidence."""


class FactResult(Record):
    """Result of checking a fact, before ``negate``."""

    value: float | None
    """Confidence in [0, 1]; ``None`` when it is not available."""
    evidence: str
    """Observation behind the value, or the reason why it is not available."""
    cost: Cost = Cost()
    undecided: bool = False
    """True if it depends on evidence that was left out; the episode then abstains."""


class FactJudge(Protocol):
    """A model that judges facts."""

    async def judge(self, fact: JudgeFact, group: FactGroup | None, evidence: GradingEvidence) -> FactResult:
        """Judge a fact.

        Several facts of an episode may be judged at once; ``group`` is ``None`` for a gate.

        Raises:
            JudgeError: The judge could not decide; the fact is then not available, with the error's
                message. An error records no cost, so a judge with costs returns a result without a
                value instead.
        """
        ...


def check(fact: Fact, pages: Pages) -> FactResult:
    """Check a fact by program alone; facts for a judge are not available."""
    try:
        return _CHECKS[fact.type](fact, pages)
    except Undecided as error:
        return undecided_result(str(error))


def known_result(holds: bool, evidence: str) -> FactResult:
    """Return the result of a fact that holds or does not."""
    return FactResult(value=1.0 if holds else 0.0, evidence=evidence)


def unavailable_result(cause: str) -> FactResult:
    """Return the result of a fact that is not available."""
    return FactResult(value=None, evidence=cause)


def undecided_result(cause: str) -> FactResult:
    """Return the result of a fact that is undecided."""
    return FactResult(value=None, evidence=f"cannot be decided: {cause}", undecided=True)


def _no_unless(cut: str, evidence: str) -> FactResult:
    """Return undecided if something was cut, else false."""
    return undecided_result(f"{evidence}, and {cut}") if cut else known_result(False, evidence)


def _url(fact: UrlFact, pages: Pages) -> FactResult:
    seen = pages.shown(fact.when)
    if seen is None:
        return unavailable_result(NO_PAGE)
    views = seen.views
    address = next((page.url for page in views if same_page(fact.url, fact.match, page.url)), None)
    if address is not None:
        return known_result(True, f"at {address}")
    cut = next((f"the address {page.url[:SHOWN]} is shortened" for page in views if page.url.endswith(CUT)), "")
    return _no_unless(cut, f"at {views[0].url[:SHOWN]}")


def _text(fact: TextFact, pages: Pages) -> FactResult:
    seen = pages.shown(fact.when)
    if seen is None:
        return unavailable_result(NO_PAGE)
    by_case = fact.case_sensitive or fact.match is Match.REGEX
    line = find_text(fact.text, fact.match, pages.lines(seen, by_case), fact.case_sensitive)
    if line is not None:
        return known_result(True, f"the page has {line[:SHOWN]!r}")
    if not seen.wholes and any(page.elements and not page.text for page in seen.views):
        return unavailable_result("the words of the page were not recorded, only its elements")
    return _no_unless(
        seen.words_cut(fact.text, fact.match),
        f"{fact.text!r} is not on {'any' if fact.when == 'ever' else 'the last'} page",
    )


def _answer(fact: AnswerFact, pages: Pages) -> FactResult:
    answer = pages.evidence.answer
    if fact.match == "number":
        number = number_in(answer)
        if number is None:
            return known_result(False, f"answered {answer!r}, which does not have exactly one number")
        near = any(
            abs(number - float(wanted)) <= max(fact.tolerance, fact.relative_tolerance * abs(float(wanted)))
            for wanted in fact.expected
        )
        return known_result(near, f"answered {number:g}")
    lines = [comparable(answer, Match(fact.match), fact.case_sensitive)]
    right = any(
        find_text(wanted, Match(fact.match), lines, fact.case_sensitive) is not None for wanted in fact.expected
    )
    return known_result(right, f"answered {answer!r}" if answer else "no answer was given")


def _element(fact: ElementFact, pages: Pages) -> FactResult:
    seen = pages.shown(fact.when)
    if seen is None:
        return unavailable_result(NO_PAGE)
    element = next(pages.find(seen, fact.element), None)
    if element is not None:
        return known_result(True, f"{element.tag} {element.text!r} is there")
    return _no_unless(seen.elements_cut(fact.element), "no such element is listed")


def _element_state(fact: ElementStateFact, pages: Pages) -> FactResult:
    seen = pages.shown(fact.when)
    if seen is None:
        return unavailable_result(NO_PAGE)
    elements = list(pages.find(seen, fact.element))
    is_text = isinstance(fact.equals, str)
    states = [full_text(one, fact.property) if is_text else getattr(one, fact.property) for one in elements]
    if fact.equals in states:
        return known_result(True, f"{fact.property} is {fact.equals!r}")
    cut = seen.elements_cut(fact.element)
    if is_text and any(cut_text_may_match(one, fact.property, str(fact.equals), Match.EXACT) for one in elements):
        cut = cut or f"{fact.property} is shortened"
    return _no_unless(cut, f"{fact.property} is {states[0]!r}" if states else "no such element is listed")


def _dom_present(fact: DomPresentFact, pages: Pages) -> FactResult:
    dom = pages.evidence.dom
    if dom is None:
        return unavailable_result(pages.evidence.absent.get("dom", NO_DOM))
    count = len(parse_selector(fact.selector).select(dom))
    return (
        known_result(True, f"{count} nodes match {fact.selector}") if count else _not_seen(fact, pages, "0 nodes match")
    )


def _dom_attribute(fact: DomAttributeFact, pages: Pages) -> FactResult:
    dom = pages.evidence.dom
    if dom is None:
        return unavailable_result(pages.evidence.absent.get("dom", NO_DOM))
    name = fact.attribute.lower()
    values = [dom[node].attributes.get(name) for node in parse_selector(fact.selector).select(dom)]
    return _one_of(fact, pages, values, name)


def _dom_style(fact: DomStyleFact, pages: Pages) -> FactResult:
    dom = pages.evidence.dom
    if dom is None:
        return unavailable_result(pages.evidence.absent.get("dom", NO_DOM))
    name = fact.property.lower()
    styles = [dom[node].styles for node in parse_selector(fact.selector).select(dom)]
    read = [style for style in styles if style is not None and name in style]
    if len(read) < len(styles) and not any(style[name] == fact.expected_value for style in read):
        return unavailable_result(f"style {name} of {fact.selector} was not recorded")
    return _one_of(fact, pages, [style[name] for style in read], name)


def _js(fact: JsFact, pages: Pages) -> FactResult:
    reply = pages.evidence.scripts.get(fact.expression)
    if reply is not None and reply.threw:
        # The page lacks what the script reads, by the policy's actions.
        return known_result(False, f"{' '.join(fact.expression.split())[:SHOWN]} threw {reply.trouble}")
    if reply is not None and reply.stopped:
        return undecided_result(reply.trouble)
    if reply is None or reply.trouble:
        return unavailable_result(reply.trouble if reply else NO_SCRIPT)
    if not isinstance(reply.value, bool):
        return unavailable_result(f"the expression is {str(reply.value)[:SHOWN]!r}; expected true or false")
    return known_result(reply.value, f"{' '.join(fact.expression.split())[:SHOWN]} is {str(reply.value).lower()}")


def _one_of(fact: DomAttributeFact | DomStyleFact, pages: Pages, values: Sequence[str | None], name: str) -> FactResult:
    if not values:
        return _not_seen(fact, pages, "no node matches")
    if fact.expected_value in values:
        return known_result(True, f"{name} is {fact.expected_value!r}")
    return _not_seen(fact, pages, f"{name} is {values[0]!r} for")


def _not_seen(fact: DomPresentFact | DomAttributeFact | DomStyleFact, pages: Pages, seen: str) -> FactResult:
    """Return the result where no recorded node fits.

    The fact is false on a page that was recorded whole, and undecided on a larger one.
    """
    more = f"the page has more than the {len(pages.evidence.dom or ()):,} elements that are recorded"
    return _no_unless(more if pages.evidence.dom_cut else "", f"{seen} {fact.selector}")


def _page_fact(fact: PageFact, pages: Pages) -> FactResult:
    facts = pages.evidence.page_facts
    if fact.name not in facts:
        return unavailable_result(f"the page declares no {fact.name}")
    value = facts[fact.name]
    return known_result(compare(value, fact.op, fact.value), f"{fact.name} is {value!r}")


def _download(fact: DownloadFact, pages: Pages) -> FactResult:
    files = pages.evidence.downloads
    if files is None:
        return unavailable_result(pages.evidence.absent.get("downloads", NO_DOWNLOADS))
    named = [
        file
        for file in files
        if file.size >= fact.min_bytes
        and find_text(
            fact.name, fact.match, [comparable(file.name, fact.match, fact.case_sensitive)], fact.case_sensitive
        )
        is not None
    ]
    right = [file for file in named if not fact.sha256 or file.sha256 == fact.sha256]
    unread = [file.name for file in named if fact.sha256 and not file.sha256]
    if unread and not right:
        return unavailable_result(f"the contents of {unread[0]!r} were not recorded")
    names = ", ".join(f"{file.name!r} ({file.size} bytes)" for file in right or files)
    evidence = f"downloaded {names}" if names else "nothing was downloaded"
    cut = "further files were still on their way" if pages.evidence.downloads_cut else ""
    return known_result(True, evidence) if right else _no_unless(cut, evidence)


def _signal(fact: SignalFact, pages: Pages) -> FactResult:
    value = _metric(fact.metric, pages.evidence)
    if isinstance(value, str):
        return unavailable_result(value)
    holds = value >= fact.threshold if fact.comparison == "gte" else value <= fact.threshold
    return known_result(holds, f"{fact.metric} is {value:g}, {fact.comparison} {fact.threshold:g}")


def _metric(name: str, evidence: GradingEvidence) -> float | str:
    """Return the value, or the reason why there is none."""
    if name in evidence.metrics:
        return evidence.metrics[name]
    signals = evidence.signals
    if signals is None:
        return "signals were not recorded"
    if name.startswith("counts.") and name.removeprefix("counts.") in set(Trouble):
        return signals.counts.get(Trouble(name.removeprefix("counts.")), 0)
    field = "gpu_bytes" if name == "gpu_memory_mb" else W8_METRICS.get(name, name)
    value = getattr(signals, field, None) if field in type(signals).model_fields else None
    if isinstance(value, int | float):
        return value / 2**20 if name == "gpu_memory_mb" else value
    return f"{name}: {signals.absent.get(field, 'there is no signal of that name')}"


def _subscore(fact: SubscoreFact, pages: Pages) -> FactResult:
    value = subscore(fact.key, pages.evidence)
    if value is None:
        cause = pages.evidence.absent.get("domdiff", f"{fact.key} was not computed")
        return undecided_result(cause) if pages.evidence.domdiff_cut else unavailable_result(cause)
    return FactResult(value=value, evidence=f"{fact.key} is {value:.4g}")


def subscore(key: str, evidence: GradingEvidence) -> float | None:
    """Return one part of the DOM similarity by its name; ``None`` if not computed.

    Args:
        key: Our name or W8's.
    """
    scores = evidence.domdiff or {}
    value = scores.get(key, scores.get(key.removesuffix("Similarity")))
    return None if value is None else min(1.0, max(0.0, value))


def _server(fact: SqlFact | HttpFact, pages: Pages) -> FactResult:
    if pages.evidence.server is None:
        return unavailable_result(NO_SERVER)
    answer = find_answer(fact, pages.evidence.server)
    if answer is None:
        return unavailable_result(f"the server was not asked: {question_of(fact)}")
    if answer.error is not None:
        return unavailable_result(answer.error)
    if isinstance(fact, SqlFact):
        return _of_rows(fact, answer.rows)
    return _of_value(fact, value_at(answer.value, fact.at[len(answer.at) :]))


def _judge(fact: JudgeFact, pages: Pages) -> FactResult:
    return unavailable_result(NO_JUDGE)


_CHECKS: dict[str, Callable[[Any, Pages], FactResult]] = {
    "url": _url,
    "text": _text,
    "answer": _answer,
    "element": _element,
    "element_state": _element_state,
    "dom_element_present": _dom_present,
    "dom_element_attribute_equals": _dom_attribute,
    "dom_element_style_property": _dom_style,
    "js": _js,
    "page_fact": _page_fact,
    "download": _download,
    "signal_threshold": _signal,
    "domdiff_subscore": _subscore,
    "server_sql": _server,
    "server_http": _server,
    "judge": _judge,
}


def _of_rows(fact: SqlFact, answer: Sequence[tuple[Any, ...]]) -> FactResult:
    rows = [tuple(row) for row in answer]
    return known_result(_same_rows(rows, list(fact.rows), fact.ordered), f"{len(rows)} rows: {rows[:MAX_ROWS]!r}")


def _of_value(fact: HttpFact, value: Any) -> FactResult:
    """Return the result of an HTTP fact.

    Args:
        value: Part of the answer that the fact's ``at`` leads to.
    """
    where = f"{fact.path} {'.'.join(map(str, fact.at))}".strip()
    return known_result(compare(value, fact.op, fact.value), f"{where} is {_shown(value)}")


def _shown(value: Any) -> str:
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else repr(value)


def _same_rows(rows: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]], ordered: bool) -> bool:
    if ordered or len(rows) != len(wanted):
        return rows == wanted
    remaining = list(rows)
    for row in wanted:
        if row not in remaining:
            return False
        remaining.remove(row)
    return True
