"""Reward part: DOM similarity of the last page to a reference page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from envs.browser.pool import BrowserPool
from envs.browser.tab import Tab
from envs.cdp.client import ConnectionLost
from envs.rewards.chromiumrl.capture import MAX_NODES, capture_page
from envs.rewards.chromiumrl.records import DomSnapshot
from envs.rewards.chromiumrl.similarity import DomSimilarity, dom_similarity
from envs.rewards.chromiumrl.view import Mode
from envs.rewards.compose import Component
from envs.rewards.evidence import GradingEvidence
from envs.sites.base import Site
from envs.types import BrowserError, JudgeError, RewardPart, SiteError, WebTask
from envs.types.errors import again

DEADLINE = 60.0
"""Real seconds for a reference page; it is loaded once for each run of a worker."""

FAILED_SECONDS = 300.0
"""Real seconds before a reference that could not be loaded is tried again; until then every caller
gets the same error."""

MAX_STARTS = 20
"""Budgets that a site's page gets to be ready, as in an episode."""

MAX_ALERTS = 10
"""Maximum number of alerts that are confirmed after a load, as in an episode."""

MAX_CACHED_PAGES = 64
"""Reference pages that are remembered; one of 5,000 nodes takes some megabytes."""

MAX_CACHED = 256
"""Comparisons, and failures to load, that are remembered: a rubric and the part ask for the same
one, and episodes of a group may end on equal pages."""

NOT_RECORDED = "the last page's nodes were not recorded; set rollout.dom_diffs=true"


_Key = tuple[str, str, int]
"""Site, path and seed of a reference."""


class PageTooLarge(JudgeError):
    """Not all of the last page was recorded, so how like the reference it is cannot be decided."""


class ReferenceSource:
    """Loads the page that a task names, as an episode of that seed would see it if it began there,
    and compares the episode's last page with it.

    It is entered in the way of an episode: through the site's own entrance and below the path of
    its address, with its log-in, reset to the seed, in a context that is no episode's.
    """

    component: ClassVar = Component.SEMANTIC

    def __init__(
        self, pool: BrowserPool, sites: Mapping[str, Site], blob: Callable[[str], bytes], mode: Mode = "native"
    ) -> None:
        """
        Args:
            sites: Started sites by name.
            blob: Returns the bytes of a blob of the run.
            mode: Mode of the comparison (`DomSimilarity`).
        """
        self._pool = pool
        self._sites = sites
        self._blob = blob
        self._mode: Mode = mode
        self._kept: dict[_Key, DomSnapshot] = {}
        self._failed: dict[_Key, tuple[float, BrowserError | JudgeError | SiteError]] = {}
        self._found: dict[tuple[_Key, str], DomSimilarity] = {}
        self._loading: dict[_Key, tuple[asyncio.Lock, int]] = {}
        """References that are asked for at the moment: a lock for each, and how many ask."""

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """One part for tasks with a reference, not available where the last page's nodes were not
        recorded. Of a last page that is too large to be compared the episode abstains.

        Raises:
            BrowserError, SiteError: the reference could not be loaded. JudgeError: it is too large.
        """
        if not task.reference:
            return ()
        if not evidence.final_dom:
            return (RewardPart(name="dom_similarity", value=None, weight=1.0, evidence=NOT_RECORDED),)
        try:
            return ((await self.similarity(task, evidence.final_dom, evidence.seed)).part(),)
        except PageTooLarge as error:
            return (RewardPart(name="dom_similarity", value=None, weight=1.0, evidence=str(error), required=True),)

    async def similarity(self, task: WebTask, page: str, seed: int = 0) -> DomSimilarity:
        """Compare a page, by the name of its blob, with the task's reference loaded with a seed.

        Raises:
            BrowserError, SiteError: The reference could not be loaded. JudgeError: It is too large.
            PageTooLarge: The page is.
        """
        site, there = self._sites[task.site], task.model_copy(update={"path": task.reference})
        key = (task.site, task.reference, seed)
        if (key, page) not in self._found:
            reference = await self._page(key, site, there)
            self._found[key, page] = await asyncio.to_thread(self._compared, reference, page)
            similarity = self._found[key, page]
            _drop_oldest(self._found, MAX_CACHED)
            return similarity
        return self._found[key, page]

    async def _page(self, key: _Key, site: Site, task: WebTask) -> DomSnapshot:
        """The reference, loaded by the first who asks; who asks for another one does not wait for
        it."""
        lock, waiting = self._loading.get(key, (asyncio.Lock(), 0))
        self._loading[key] = lock, waiting + 1
        try:
            async with lock:
                return await self._kept_or_loaded(key, site, task)
        finally:
            lock, waiting = self._loading.pop(key)
            if waiting > 1:
                self._loading[key] = lock, waiting - 1

    async def _kept_or_loaded(self, key: _Key, site: Site, task: WebTask) -> DomSnapshot:
        if key in self._kept:
            return self._kept[key]
        if key in self._failed:
            when, failure = self._failed[key]
            if time.monotonic() - when < FAILED_SECONDS:
                raise again(failure)
            del self._failed[key]
        try:
            page = await self._load(site, task, key[2])
        except ConnectionLost:
            raise  # the browser's end is not the page's fault, and the next one may load it
        except (BrowserError, JudgeError, SiteError) as error:
            self._failed[key] = time.monotonic(), again(error)
            _drop_oldest(self._failed, MAX_CACHED)
            raise
        self._kept[key] = page
        _drop_oldest(self._kept, MAX_CACHED_PAGES)
        return page

    async def _load(self, site: Site, task: WebTask, seed: int) -> DomSnapshot:
        episode = await site.open_episode(task, seed)
        try:
            page = await self._pool.scratch_tab(
                site,
                lambda tab: self._begun(tab, site, task, seed, episode.path),
                deadline=DEADLINE,
                what=f"loading the reference {task.path}",
                routes=episode.routes,
            )
        finally:
            await episode.close()
        if page.cut:
            raise JudgeError(
                f"the reference page {task.path} of {site.name} has more than {MAX_NODES:,} nodes, and is not compared"
            )
        return page

    async def _begun(self, tab: Tab, site: Site, task: WebTask, seed: int, path: str) -> DomSnapshot:
        """The page as an episode is shown it first."""
        budget = self._pool.options.settle_budget_ms
        if site.cookies:
            await tab.cdp.send("Network.setCookies", {"cookies": [dict(cookie) for cookie in site.cookies]})
        await tab.load(site.origin + path)
        for _ in range(MAX_ALERTS):
            if tab.dialogs.pending is None:
                break
            await tab.dialogs.answer(True, None)
            await tab.clock.settle(budget)
        script = site.reset_script(task, seed)
        if script:
            await tab.evaluate(script)
            await tab.clock.settle(budget)
        for _ in range(MAX_STARTS):
            if await tab.evaluate(site.ready_script(task)):
                return await capture_page(tab.cdp)
            await tab.clock.settle(budget)
        raise BrowserError(f"the reference {task.path} of {site.name} is not ready after {MAX_STARTS} budgets")

    def _compared(self, reference: DomSnapshot, name: str) -> DomSimilarity:
        page = DomSnapshot.model_validate_json(self._blob(name))
        if page.cut:
            raise PageTooLarge(f"the last page has more than {MAX_NODES:,} nodes, and is not compared")
        return dom_similarity(reference, page, self._mode)


def _drop_oldest(of: dict[Any, Any], most: int) -> None:
    while len(of) > most:
        del of[next(iter(of))]
