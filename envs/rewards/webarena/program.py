"""``program_html``: what an element of a page says after the episode.

Looked at before the browser is given back, compared afterwards.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Protocol

from envs.rewards.webarena.helpers import HELPERS, Helper, UnknownHelper, call
from envs.rewards.webarena.match import OR, clean, exact_match, includes_one, must_include, within
from envs.rewards.webarena.page_helpers import PRICE
from envs.types import BrowserError, PageScriptError, SiteError
from envs.types.evidence import PageText
from envs.types.webarena import PLACEHOLDER, EvalType, PageCheck, WebArenaEval

__all__ = ["PageAccess", "PageScriptError", "compare_page", "read_page", "read_pages"]

LAST = "last"
"""Stands for the page that the episode ended on, as it is."""
SCRIPT = "lambda:"
"""Begins a locator whose value is empty where it is 0 or false (VisualWebArena)."""
MAX_TEXT = 10_000
"""Characters of a text that are kept as they are. A longer one may be a whole page behind a log-in:
of it only what the comparison needs is."""
AROUND = 40
"""Characters that are kept around what was found in a longer one."""
MAX_SHOWN = 160
"""Characters of the page that go into evidence."""


class PageAccess(Protocol):
    """A page that may be looked at and navigated: the episode's own after its end, or a copy with
    its login.

    All raise `BrowserError` when the browser or the site fails.
    """

    async def url(self) -> str:
        """Address that is shown."""
        ...

    async def goto(self, url: str) -> None:
        """Load an address anew, also where it is shown already, and wait until the page is at
        rest."""
        ...

    async def content(self) -> str:
        """HTML of the whole page."""
        ...

    async def evaluate(self, expression: str) -> object:
        """Value of a JavaScript expression, as JSON has it.

        Raises:
            PageScriptError: the expression threw.
        """
        ...


async def read_pages(
    evaluators: WebArenaEval, page: PageAccess, last_url: str, helpers: Mapping[str, Helper] | None = None
) -> tuple[PageText, ...]:
    """Read the text for each check of ``program_html``, in their order; empty where the task has
    none.

    As in the benchmark, a ``last`` page is looked at as the episode left it, and any other is
    loaded anew, also where the episode stands on its address: what was typed and not saved is not
    there. Checks of the ``last`` page come before any navigation. A failed check is recorded with
    its reason, never raised.
    """
    if EvalType.PROGRAM_HTML not in evaluators.eval_types:
        return ()
    checks = evaluators.program_html
    texts: dict[int, PageText] = {}
    for number in sorted(range(len(checks)), key=lambda number: checks[number].url != LAST):
        programs, words = {**HELPERS, **(helpers or {})}, evaluators.visual
        texts[number] = await read_page(checks[number], page, programs, last_url, words=words)
    return tuple(texts[number] for number in range(len(checks)))


async def read_page(
    check: PageCheck, page: PageAccess, helpers: Mapping[str, Helper], last_url: str, *, words: bool = False
) -> PageText:
    """Read the text of a check's element. ``trouble`` names an unknown helper, a missing site, a
    failed browser or site."""
    address = ""
    try:
        address = await _address(check, page, helpers, last_url)
        if (placeholder := PLACEHOLDER.search(address)) is not None:
            return PageText(
                address=address, trouble=f"the address of {placeholder.group()} is not known; give tasks.addresses"
            )
        if check.url != LAST:
            await page.goto(address)
        text = html.unescape(await _text(check, page, helpers, last_url))
        return PageText(address=address, text=as_needed(check, text, words=words))
    except UnknownHelper as error:
        return PageText(address=address, trouble=str(error))
    except (BrowserError, SiteError) as error:
        return PageText(address=address, trouble=f"{type(error).__name__}: {error}")


def compare_page(check: PageCheck, seen: PageText, *, words: bool = False) -> tuple[float | None, str]:
    """Return the share of the required contents that holds (1 or 0 for exact_match), and the
    evidence.

    The share is ``None`` if nothing was seen. Pure.

    Args:
        words: The same as of `must_include`.
    """
    if seen.trouble:
        return None, seen.trouble
    text, wanted = seen.text, check.required_contents
    if wanted.fuzzy_match:
        return None, "only a judge can compare it"
    shown = f"{check.locator or 'the page'} at {seen.address}: {' '.join(text.split())[:MAX_SHOWN]!r}"
    if wanted.exact_match is not None:
        held = exact_match(wanted.exact_match, text)
        return float(held), f"{'is' if held else 'is not'} {wanted.exact_match!r}: {shown}"
    if wanted.must_exclude:
        present = [one for one in wanted.must_exclude if must_include(one, text, alone=True, words=words)]
        share = 1 - len(present) / len(wanted.must_exclude)
        return share, f"has {', '.join(map(repr, present))}: {shown}" if present else f"has none: {shown}"
    if wanted.required_values:
        given = check.locator.startswith((SCRIPT, f"func:{PRICE}"))
        outside = [bounds for bounds in wanted.required_values if not within(bounds, text, fractions=given)]
        share = 1 - len(outside) / len(wanted.required_values)
        return share, f"is not {', '.join(outside)}: {shown}" if outside else f"is within the bounds: {shown}"
    missing = [one for one in wanted.must_include if not includes_one(one, text, words=words)]
    share = 1 - len(missing) / len(wanted.must_include)
    return share, f"lacks {', '.join(map(repr, missing))}: {shown}" if missing else f"has all: {shown}"


def as_needed(check: PageCheck, text: str, *, words: bool = False) -> str:
    """Cut a text to what the check's comparison needs: its beginning, and each match with its
    surroundings.

    The comparison has the same result as with the whole text, but for a judge's. Pure.
    """
    if len(text) <= MAX_TEXT:
        return text
    wanted, plain = check.required_contents, clean(text)
    if wanted.fuzzy_match:
        return text[:MAX_TEXT]  # for the judge
    if wanted.exact_match is not None:
        kept = plain[:MAX_TEXT]
    else:
        kept = plain[:MAX_SHOWN]
        references = (*wanted.must_include, *wanted.must_exclude)
        for needle in (clean(one) for alternatives in references for one in alternatives.split(OR)):
            place = plain.find(needle)
            if place >= 0:
                kept += f" … {plain[max(0, place - AROUND) : place + len(needle) + AROUND]}"
        kept += " …"
    whole, short = (compare_page(check, PageText(address="", text=one), words=words)[0] for one in (text, kept))
    return kept if whole == short else text  # equal to a long reference, or found across a gap


async def _address(check: PageCheck, page: PageAccess, helpers: Mapping[str, Helper], last_url: str) -> str:
    address = check.url
    if address == LAST:
        return last_url
    if address.startswith("func:"):
        address = await call(address, helpers, page=page, last_url=last_url)
    return address.replace("__last_url__", last_url)


async def _text(check: PageCheck, page: PageAccess, helpers: Mapping[str, Helper], last_url: str) -> str:
    if not check.locator:
        return await page.content()
    if check.locator.startswith("func:"):
        return await call(check.locator, helpers, page=page, last_url=last_url)
    try:
        for action in check.prep_actions:
            await page.evaluate(action)
    except PageScriptError:
        pass  # as in the benchmark: what was to be unfolded may be open already; the locator decides
    try:
        value = await page.evaluate(check.locator.removeprefix(SCRIPT))
    except PageScriptError:
        return ""
    return "" if value is None or (check.locator.startswith(SCRIPT) and not value) else str(value)
