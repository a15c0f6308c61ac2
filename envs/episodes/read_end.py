"""Reads what a task's grading needs from the page before the browser is released."""

from __future__ import annotations

from collections.abc import Mapping

from envs.browser import WebSession
from envs.browser.final_page import FinalPage
from envs.rewards.server_answers import record_answers
from envs.rewards.webarena import Helper, read_images, read_pages, read_state
from envs.sites import LiveOptions
from envs.sites.pictures import PictureReader
from envs.types import Recorded, WebTask, needs
from envs.types.evidence import PageText
from envs.types.webarena import WebArenaEval, placed


async def read_end(
    session: WebSession, task: WebTask, live: LiveOptions, helpers: Mapping[str, Helper] | None = None
) -> Recorded | None:
    """Read the evidence at the end of an episode.

    ``None`` for most tasks, which need none.

    Args:
        live: Addresses of sites, for the evaluators of WebArena, and the folder of their pictures.
        helpers: ``func:`` programs of the evaluators (`site_helpers`); ``None`` for only those that
            need no site.

    Raises:
        BrowserError: the browser failed.
    """
    evidence: dict[str, object] = {}
    wanted = needs(task.rubric)
    recorded = await session.evidence(wanted) if wanted else Recorded()
    if session.server is not None and task.rubric is not None:
        evidence["server"] = await record_answers(task.rubric, session.server)
    if task.evaluators is not None:
        evaluators = placed(task.evaluators, live.addresses)
        home = live.addresses.get(task.site, f"https://{task.site}")
        evidence["looked"] = await session.look(lambda page: _look(evaluators, page, home, live, helpers))
    if session.records_network:
        evidence["requests"] = tuple(session.network.har()["log"]["entries"])
    return recorded.model_copy(update=evidence) if wanted or evidence else None


async def _look(
    evaluators: WebArenaEval, page: FinalPage, home: str, live: LiveOptions, helpers: Mapping[str, Helper] | None
) -> tuple[PageText, ...]:
    """Return the texts of the checks of pages, then the results of those of the state, then the
    pictures of those of pictures."""
    last_url, reader = await page.url(), PictureReader.of(live, page.allow)
    images = await read_images(evaluators, page, last_url, reader, last=True)
    texts = await read_pages(evaluators, page, last_url, helpers)
    state = await read_state(evaluators, page, home)
    images |= await read_images(evaluators, page, last_url, reader, last=False)
    return (*texts, *state, *(images[number] for number in sorted(images)))
