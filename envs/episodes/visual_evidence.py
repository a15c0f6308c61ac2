"""DOM and screenshot evidence of an episode, and rewards that compare it with references.

The evidence is kept while an episode is played and compared in the reward stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from envs.browser import BrowserPool, PageStep
from envs.episodes.page_renderer import PageRenderer
from envs.episodes.reference_page import PageTooLarge, ReferenceSource
from envs.rewards import GradingEvidence, PartSource
from envs.rewards.chromiumrl import DomSnapshot, Mode, step_diff
from envs.rewards.design2code import Clip
from envs.rewards.design2code.source import DesignSource
from envs.sites import Design2CodeSite
from envs.sites.base import Site
from envs.types import BrowserError, JudgeError, SiteError, WebTask


@dataclass(frozen=True, slots=True)
class PageEvidence:
    """Keeps documents and their changes per step as blobs beside the trajectory.

    Configured by ``rollout.dom_diffs``. The pages come from a pool that captures the document at
    each look.
    """

    put: Callable[[bytes], str]
    """Stores a blob and returns its name."""

    def change(self, before: PageStep, after: PageStep) -> str:
        """Store what a step changed and return the blob's name.

        The name is empty if one of the pages could not be read whole, or the page was not touched.
        """
        old, new = before.inspected, after.inspected
        if not isinstance(old, DomSnapshot) or not isinstance(new, DomSnapshot) or old is new or old.cut or new.cut:
            return ""
        return self.put(step_diff(old, new).model_dump_json().encode())

    def page(self, last: PageStep) -> str:
        """Store the nodes of a page and return the blob's name; empty without nodes."""
        if not isinstance(last.inspected, DomSnapshot):
            return ""
        return self.put(last.inspected.model_dump_json(exclude_defaults=True).encode())


class VisualRewardSources:
    """The parts of rewards that need a browser.

    They use browser contexts of their own, so nothing of an episode is touched.
    """

    def __init__(
        self,
        pool: BrowserPool,
        sites: Mapping[str, Site],
        blob: Callable[[str], bytes],
        clip: Clip | None,
        mode: Mode = "native",
    ) -> None:
        """
        Args:
            sites: Started sites by name.
            blob: Returns the bytes of a blob of the run.
            mode: Mode in which documents are compared.
        """
        self._sites = sites
        self._reference = ReferenceSource(pool, sites, blob, mode)
        self.sources: tuple[PartSource, ...] = (DesignSource(PageRenderer(pool), self._page, clip), self._reference)

    async def measured(self, task: WebTask, evidence: GradingEvidence) -> GradingEvidence:
        """Add the similarities to the task's reference, if the rubric needs them."""
        if task.rubric is None or not task.reference or not evidence.final_dom:
            return evidence
        try:
            similarity = await self._reference.similarity(task, evidence.final_dom, evidence.seed)
        except (BrowserError, JudgeError, SiteError) as error:
            absent = {**evidence.absent, "domdiff": str(error)}
            return evidence.model_copy(update={"absent": absent, "domdiff_cut": isinstance(error, PageTooLarge)})
        four = {name: getattr(similarity, name) for name in ("structural", "text", "layout", "style")}
        return evidence.model_copy(
            update={"domdiff": {name: value for name, value in four.items() if value is not None}}
        )

    def _page(self, task: WebTask) -> str:
        site = self._sites[task.site]
        if not isinstance(site, Design2CodeSite):
            raise SiteError(
                f"{task.task_id}: the site {task.site!r} is not the one of Design2Code; it has no references"
            )
        return site.reference(task)
