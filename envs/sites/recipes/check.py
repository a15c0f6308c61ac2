"""Checks a site: the same requests in two episodes and a fork, and what differs.

What differs in answers and state without being ignored would differ between the episodes of a
group, so that their rewards could not be compared.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from html import unescape

import httpx

from envs.sites.base import Site, SiteEpisode
from envs.sites.recipes.recipe import RecordedRequest, SiteRecipe, find_recipe
from envs.sites.recipes.site import unequal
from envs.types import SeedRange, SiteError, WebTask

CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d|\b1[6-9]\d{8}(\.\d+)?\b|\d\d? (a\.m\.|p\.m\.)|\d{1,2}:\d\d"
)
"""Texts that look like a time of the clock."""
RANDOM = re.compile(r"[0-9A-Za-z_-]{16,}|[0-9a-f]{8}-[0-9a-f]{4}-")
"""Texts that look like a random id."""
EXPIRES = re.compile(r"(?i); *expires=[^;]*")
"""Attribute of a cookie: the server's clock and the cookie's age, which Max-Age gives too."""
MAX_SHOWN = 80
"""Characters of a difference that are shown."""
MAX_ERRORS = 500
"""Status from which an answer is a fault of the server."""


@dataclass(frozen=True)
class PlayedRequests:
    """Answers of one episode, and its state at the end."""

    answers: tuple[tuple[int, str], ...]
    state: Mapping[str, str]


@dataclass
class SiteCheck:
    """Result of a check."""

    requests: int
    differences: list[str] = field(default_factory=list)
    """Differences of two episodes, each with a likely cause."""
    changed: list[str] = field(default_factory=list)
    """Files and tables that the requests changed."""
    fork_problem: str = ""
    """Reason why no fork was compared."""

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return not self.differences


def visit_of(recipe: SiteRecipe, path: str = "") -> WebTask:
    """Return a task that enters a site and asks for nothing, at ``path`` or where it is ready."""
    return WebTask(
        task_id=recipe.name, site=recipe.name, kind="visit", path=path or recipe.ready.path, instruction="Look.",
        difficulty=1, horizon=1, seeds={"train": SeedRange(start=0, stop=1)},
    )  # fmt: skip


async def check_site(site: Site, recipe: SiteRecipe) -> SiteCheck:
    """Play the recipe's requests in two episodes of a started site and compare them.

    A third episode after them has to have the state of the seed: a reset that is not exact would
    show there. A fork of a fourth has to answer them once more as its episode does.

    Raises:
        SiteError: An episode cannot be opened, or a recorded request cannot be played.
    """
    requests = recipe.check.requests or tuple(RecordedRequest(path=path) for path in _default_paths(recipe))
    visit = visit_of(recipe)
    fresh = (await _played(site, visit, ())).state
    first, second = await _played(site, visit, requests), await _played(site, visit, requests)
    after = (await _played(site, visit, ())).state
    check = SiteCheck(len(requests))
    check.changed = unequal(fresh, first.state)
    check.differences += _unlike(recipe, requests, first, second)
    check.differences += [
        f"state {name}: the same requests leave other content; make it repeatable, or name it in state.ephemeral"
        for name in unequal(first.state, second.state)
    ]
    check.differences += [f"state {name}: a new instance does not have the seed's" for name in unequal(fresh, after)]
    check.fork_problem = site.fork_problem() if check.ok else "its episodes are not alike"
    if not check.fork_problem:
        check.differences += await _fork_differences(site, recipe, requests)
    return check


async def _fork_differences(site: Site, recipe: SiteRecipe, requests: tuple[RecordedRequest, ...]) -> list[str]:
    """Return how a fork after the requests answers them otherwise than its episode does."""
    visit = visit_of(recipe)
    episode = await site.open_episode(visit, 0)
    episode.keep_answers()
    async with _client(site, episode) as client, AsyncExitStack() as opened:
        await _play(site, episode, client, requests)
        try:
            (fork,) = await site.fork_episode(episode, visit, 0, 1)
            other = await opened.enter_async_context(_client(site, fork))
            await _play(site, fork, other, requests)  # it gets the answers of the episode
            await fork.go_on()
        except SiteError as error:
            return [f"a fork: {error}"]
        first = await _play(site, episode, client, requests, again=True)
        second = await _play(site, fork, other, requests, again=True)
    lost = _unlike(recipe, requests, first, second) or [f"state {name}" for name in unequal(first.state, second.state)]
    return [f"a fork: {line}; set state.memory if the process holds what no file has" for line in lost]


def _unlike(
    recipe: SiteRecipe, requests: tuple[RecordedRequest, ...], one: PlayedRequests, two: PlayedRequests
) -> list[str]:
    return [
        line
        for number, (request, left, right) in enumerate(zip(requests, one.answers, two.answers, strict=True))
        for line in _compared(f"answer {number + 1} ({request.path})", left, right, recipe.check.ignore)
    ]


def _default_paths(recipe: SiteRecipe) -> tuple[str, ...]:
    """Return the paths that are asked where a recipe names none."""
    if recipe.sites:
        return tuple(f"https://{host}{find_recipe(name).ready.path}" for host, name in recipe.sites.items())
    return recipe.warm or (recipe.ready.path,)


async def _played(site: Site, visit: WebTask, requests: tuple[RecordedRequest, ...]) -> PlayedRequests:
    """Play requests in a new episode; without any, it is as it begins."""
    episode = await site.open_episode(visit, 0)
    async with _client(site, episode) as client:
        return await _play(site, episode, client, requests)


@asynccontextmanager
async def _client(site: Site, episode: SiteEpisode) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client that keeps its cookies, and close the episode at the end."""
    # A certificate of ours, which only browsers of episodes trust.
    names = {
        f"https://{host}:{port}": httpx.AsyncHTTPTransport(uds=str(place), verify=False)
        for (host, port), place in episode.routes.items()
    }
    try:
        async with httpx.AsyncClient(
            base_url=site.origin, mounts=names, trust_env=False, follow_redirects=True, timeout=60
        ) as client:
            yield client
    finally:
        await episode.close()


async def _play(
    site: Site, episode: SiteEpisode, client: httpx.AsyncClient, requests: tuple[RecordedRequest, ...], *,
    again: bool = False,
) -> PlayedRequests:  # fmt: skip
    """Enter an episode and play requests; those that are repeated (``again``) may fail."""
    answers = list[tuple[int, str]]()
    if requests:
        await client.get(episode.path)
    for request in requests:
        referer = {"referer": str(client.base_url.join(request.path))}
        if request.body is not None:
            answer = await client.post(request.path, json=request.body, headers=referer)
        elif request.form is not None:
            form = dict(request.form)
            if request.token:
                form[request.token] = _hidden_value(request.token, answers)
                if not (form[request.token] or again):
                    raise SiteError(f"no field {request.token!r} on the page before; correct check.requests")
            answer = await client.post(request.path, data=form, headers=referer)
        else:
            answer = await client.get(request.path)
        if answer.status_code >= MAX_ERRORS and not again:
            raise SiteError(f"site {site.name}: {request.path} answers {answer.status_code}; correct check.requests")
        headers = [
            f"{name}: {EXPIRES.sub('', value)}"
            for one in (*answer.history, answer)
            for name in ("location", "set-cookie")
            for value in one.headers.get_list(name)
        ]
        answers.append((answer.status_code, "\n".join([*headers, answer.text])))
    return PlayedRequests(tuple(answers), await episode.hash_state())


def _hidden_value(name: str, answers: list[tuple[int, str]]) -> str:
    """Return the value of a hidden field of the last page; empty if it has none."""
    page = answers[-1][1] if answers else ""
    for field_text in re.findall(r"<input[^>]*>", page):
        if re.search(rf"""name=["']{re.escape(name)}["']""", field_text) and (
            value := re.search(r"""value=["']([^"']*)["']""", field_text)
        ):
            return unescape(value[1])
    return ""


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
