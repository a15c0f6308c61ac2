"""The semantic part of a reward: how like a reference page's document the last page's is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from envs.browser.pool import BrowserPool
from envs.browser.tab import Tab
from envs.rewards.chromiumrl.capture import capture_page
from envs.rewards.chromiumrl.records import DomSnapshot
from envs.rewards.chromiumrl.similarity import DomSimilarity, dom_similarity
from envs.rewards.chromiumrl.view import Mode
from envs.rewards.compose import Component
from envs.rewards.evidence import EpisodeEvidence
from envs.sites.base import Site
from envs.types import JudgeError, RewardPart, WebTask

DEADLINE = 60.0
"""Real seconds for a reference page; it is loaded once for each run of a worker."""

KEPT_PAGES = 64
"""Reference pages that are remembered; one of 5,000 nodes takes some megabytes."""

KEPT = 256
"""Comparisons that are remembered: a rubric and the part ask for the same one, and episodes of a group may end on equal pages."""

NOT_RECORDED = "the last page's nodes were not recorded; set rollout.dom_diffs=true"


class ReferenceSource:
    """Loads the page that a task names, as an episode would see it at its beginning, and compares the episode's last page with it."""

    component: ClassVar = Component.SEMANTIC

    def __init__(
        self, pool: BrowserPool, sites: Mapping[str, Site], blob: Callable[[str], bytes], mode: Mode = "native"
    ) -> None:
        """
        Args:
            sites: By name; started.
            blob: The bytes of a blob of the run.
            mode: Which arithmetic; `DomSimilarity`.
        """
        self._pool = pool
        self._sites = sites
        self._blob = blob
        self._mode: Mode = mode
        self._kept: dict[tuple[str, str], DomSnapshot] = {}
        self._found: dict[tuple[str, str, str], DomSimilarity] = {}
        self._loading = asyncio.Lock()

    async def parts(self, task: WebTask, evidence: EpisodeEvidence) -> Sequence[RewardPart]:
        """One part for tasks with a reference, not available where the last page's nodes were not recorded.

        Raises:
            BrowserError: the reference could not be loaded. JudgeError: it is too large.
        """
        if not task.reference:
            return ()
        if not evidence.final_dom:
            return (RewardPart(name="dom_similarity", value=None, weight=1.0, evidence=NOT_RECORDED),)
        return ((await self.similarity(task, evidence.final_dom)).part(),)

    async def similarity(self, task: WebTask, page: str) -> DomSimilarity:
        """How like the task's reference a page is, by the name of its blob.

        Raises:
            BrowserError: the reference could not be loaded. JudgeError: it is too large.
        """
        key = (task.site, task.reference, page)
        if key not in self._found:
            reference = await self._page(self._sites[task.site], task.reference)
            self._found[key] = await asyncio.to_thread(self._compared, reference, page)
            while len(self._found) > KEPT:
                del self._found[next(iter(self._found))]
        return self._found[key]

    async def _page(self, site: Site, path: str) -> DomSnapshot:
        async with self._loading:
            known = self._kept.get((site.name, path))
            if known is not None:
                return known

            async def work(tab: Tab) -> DomSnapshot:
                await tab.load(site.origin + path)
                return await capture_page(tab.cdp)

            page = await self._pool.apart(site, work, deadline=DEADLINE, what=f"loading the reference {path}")
            if page.cut:
                raise JudgeError(f"the reference page {path} of {site.name} has too many nodes to be compared")
            while len(self._kept) >= KEPT_PAGES:
                del self._kept[next(iter(self._kept))]
            self._kept[site.name, path] = page
            return page

    def _compared(self, reference: DomSnapshot, name: str) -> DomSimilarity:
        return dom_similarity(reference, DomSnapshot.model_validate_json(self._blob(name)), self._mode)
