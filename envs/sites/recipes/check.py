"""Checks a site: the same requests to two instances, and what differs in answers and state.

What differs without being ignored would differ between the episodes of a group, so that their
rewards could not be compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape

import httpx

from envs.sites.recipes.recipe import RecordedRequest
from envs.sites.recipes.site import RecipeSite, SiteInstance
from envs.types import SiteError

CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d|\b1[6-9]\d{8}(\.\d+)?\b|\d\d? (a\.m\.|p\.m\.)|\d{1,2}:\d\d"
)
"""Texts that look like a time of the clock."""
RANDOM = re.compile(r"[0-9A-Za-z_-]{16,}|[0-9a-f]{8}-[0-9a-f]{4}-")
"""Texts that look like a random id."""
MAX_SHOWN = 80
"""Characters of a difference that are shown."""
MAX_ERRORS = 500
"""Status from which an answer is a fault of the server."""


@dataclass(frozen=True)
class PlayedRequests:
    """Answers of one instance, and its state at the end."""

    answers: tuple[tuple[int, str], ...]
    state: Mapping[str, str]


@dataclass
class SiteCheck:
    """Result of a check."""

    requests: int
    notices: list[str] = field(default_factory=list)
    """Remarks of the template on itself."""
    differences: list[str] = field(default_factory=list)
    """Differences of two instances, each with a likely cause."""
    changed: list[str] = field(default_factory=list)
    """Files and tables that the requests changed."""

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return not self.differences


async def check_site(site: RecipeSite) -> SiteCheck:
    """Play the recipe's requests to two instances of a started site and compare them.

    A third instance after them has to have the state of the seed: a reset that is not exact would
    show there.

    Raises:
        SiteError: An instance cannot be launched, or a recorded request cannot be played.
    """
    recipe = site.recipe
    requests = recipe.check.requests or tuple(
        RecordedRequest(path=path) for path in recipe.warm or (recipe.ready.path,)
    )
    fresh = await _state_of_new(site)
    first, second = await _played(site, requests), await _played(site, requests)
    after = await _state_of_new(site)
    assert site.report is not None
    check = SiteCheck(len(requests), list(site.report.notices))
    check.changed = sorted(name for name in {*fresh, *first.state} if fresh.get(name) != first.state.get(name))
    for number, (one, two) in enumerate(zip(first.answers, second.answers, strict=True)):
        check.differences += _compared(f"answer {number + 1} ({requests[number].path})", one, two, recipe.check.ignore)
    check.differences += [
        f"state {name}: the same requests leave other content; make it repeatable, or name it in state.ephemeral"
        for name in _unequal(first.state, second.state)
    ]
    check.differences += [f"state {name}: a new instance does not have the seed's" for name in _unequal(fresh, after)]
    return check


async def _state_of_new(site: RecipeSite) -> Mapping[str, str]:
    instance = await site.launch()
    try:
        return await site.hash_state(instance)
    finally:
        await site.drop(instance)


async def _played(site: RecipeSite, requests: tuple[RecordedRequest, ...]) -> PlayedRequests:
    instance = await site.launch()
    try:
        answers = await _answers(site, instance, requests)
        return PlayedRequests(tuple(answers), await site.hash_state(instance))
    finally:
        await site.drop(instance)


async def _answers(
    site: RecipeSite, instance: SiteInstance, requests: tuple[RecordedRequest, ...]
) -> list[tuple[int, str]]:
    answers = list[tuple[int, str]]()
    async with httpx.AsyncClient(base_url=site.origin, trust_env=False, follow_redirects=True, timeout=60) as client:
        await client.get(f"/-/begin/{instance.token}?to={site.recipe.ready.path}")
        for request in requests:
            if request.form is None:
                answer = await client.get(request.path)
            else:
                form = dict(request.form)
                if request.token:
                    form[request.token] = _hidden_value(request.token, answers)
                answer = await client.post(request.path, data=form, headers={"referer": f"{site.origin}{request.path}"})
            if answer.status_code >= MAX_ERRORS:
                raise SiteError(
                    f"site {site.name}: {request.path} answers {answer.status_code}; correct check.requests"
                )
            answers.append((answer.status_code, answer.text))
    return answers


def _hidden_value(name: str, answers: list[tuple[int, str]]) -> str:
    """Return the value of a hidden field of the last page."""
    page = answers[-1][1] if answers else ""
    for field_text in re.findall(r"<input[^>]*>", page):
        if re.search(rf"""name=["']{re.escape(name)}["']""", field_text) and (
            value := re.search(r"""value=["']([^"']*)["']""", field_text)
        ):
            return unescape(value[1])
    raise SiteError(f"no field {name!r} on the page before; correct check.requests")


def _compared(where: str, one: tuple[int, str], two: tuple[int, str], ignore: tuple[str, ...]) -> list[str]:
    if one[0] != two[0]:
        return [f"{where}: status {one[0]} and {two[0]}"]
    texts = [one[1], two[1]]
    for pattern in ignore:
        texts = [re.sub(pattern, "", text) for text in texts]
    lines = [text.splitlines() for text in texts]
    if lines[0] == lines[1]:
        return []
    pairs = [pair for pair in zip(*lines, strict=False) if pair[0] != pair[1]]
    if not pairs:
        return [f"{where}: {len(lines[0])} and {len(lines[1])} lines"]
    return [f"{where}: {_cause(*pairs[0])}: {_shown(*pairs[0])}"]


def _cause(one: str, two: str) -> str:
    """Name what a difference of two lines looks like."""
    for cause, pattern in (("a clock", CLOCK), ("a random id", RANDOM)):
        if pattern.sub("", one) == pattern.sub("", two):
            return cause
    return "a count, a cache or an order"


def _shown(one: str, two: str) -> str:
    start = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    start = max(0, start - 20)
    return f"{one[start : start + MAX_SHOWN]!r} and {two[start : start + MAX_SHOWN]!r}"


def _unequal(one: Mapping[str, str], two: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
