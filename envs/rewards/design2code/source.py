"""Reward part: visual similarity of a submitted page to its reference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from envs.episodes.page_renderer import MAX_PIXELS, PageRenderer, RenderedPage
from envs.rewards.compose import Component
from envs.rewards.design2code.score import Clip, DesignScore, design_score
from envs.rewards.evidence import GradingEvidence
from envs.types import RewardPart, Submit, WebTask

DESIGNS = "design2code"
"""Tasks of this site have the part."""

HOLDS_AT = 0.9
"""Score from which the page counts as built. Ours, the paper has no such mark: a page with all its
text in place and in colour has about .95 when its pictures are missing."""

NOTHING = "no page was submitted"


class DesignSource:
    """Draws what was handed in, and the reference, in contexts of the pool that are no
    episode's."""

    component: ClassVar = Component.VISUAL

    def __init__(self, drawer: PageRenderer, reference: Callable[[WebTask], str], clip: Clip | None = None) -> None:
        """
        Args:
            reference: HTML of the page whose picture a task shows.
            clip: Takes the place of SSIM. It is given the pages without their letters, which is
                what the paper's painting over of text is after.
        """
        self._drawer = drawer
        self._reference = reference
        self._clip = clip

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """One part for tasks of the site: 0 where nothing was handed in, which is a failure of the
        policy. Where one of the pages is too large to be drawn whole the episode abstains.

        Raises:
            BrowserError: a page could not be drawn. SiteError: there is no reference.
        """
        if task.site != DESIGNS:
            return ()
        html = submitted(evidence)
        if html is None:
            return (RewardPart(name=DESIGNS, value=0.0, weight=1.0, evidence=NOTHING, holds_at=HOLDS_AT),)
        reference = await self._drawer.reference(await asyncio.to_thread(self._reference, task))
        built = await self._drawer.render(html)
        if reference.cut or built.cut:
            size = " x ".join(f"{most:,}" for most in MAX_PIXELS)
            cause = f"the {'reference' if reference.cut else 'submitted page'} is larger than {size} pixels, and was not seen whole"
            return (RewardPart(name=DESIGNS, value=None, weight=1.0, evidence=cause, holds_at=HOLDS_AT, required=True),)
        part = (await asyncio.to_thread(compare_designs, reference, built, self._clip)).part()
        return (part.model_copy(update={"holds_at": HOLDS_AT}),)


def submitted(evidence: GradingEvidence) -> str | None:
    """The page that ended an episode; ``None`` without one.

    One that was refused did not end it.
    """
    last = evidence.steps[-1] if evidence.steps else None
    return last.action.html if last is not None and isinstance(last.action, Submit) and last.error is None else None


def compare_designs(reference: RenderedPage, built: RenderedPage, clip: Clip | None = None) -> DesignScore:
    """The score of a drawn page."""
    pictures = (reference.blank, built.blank) if clip is not None else (reference.picture, built.picture)
    return design_score(reference.blocks, built.blocks, pictures, clip)
