"""Grades the episodes of one environment, as a run does, and keeps their pictures for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import copy

from envs.browser import BrowserPool
from envs.episodes import RecordGrader, WebEpisode, part_sources
from envs.episodes.visual_evidence import PageEvidence, VisualRewardSources
from envs.rewards import NO_PARTS
from envs.rewards.compose import WEIGHTS, Component, PartSource
from envs.rewards.functions import FunctionSource, RewardFunction, extra_sources, reward_source
from envs.rewards.judge import Judge
from envs.rewards.webarena import site_helpers
from envs.sites import LiveOptions
from envs.sites.base import Site
from envs.types import BrowserError, RewardBundle, Trajectory, WebTask


class EnvGrader:
    """The grading of an environment's episodes. `open` comes first."""

    def __init__(
        self,
        task: WebTask,
        *,
        reward: RewardFunction | str | None,
        weights: Mapping[str, float] | None,
        judge: Judge | None,
        live: LiveOptions,
    ) -> None:
        """The arguments are those of `envs.open_env`."""
        self._task, self._judge, self._live = task, judge, live
        self._own: PartSource | None = None
        if reward is not None:
            self._own = reward_source(reward, Component.TASK) if isinstance(reward, str) else FunctionSource(reward)
        given = weights or {}
        self._weights = {**WEIGHTS, **given}
        self._extra = extra_sources({name: weight for name, weight in given.items() if name not in set(Component)})
        self._pool: BrowserPool | None = None
        self._site: Site | None = None
        self._grader: RecordGrader | None = None
        self._blobs: dict[str, bytes] = {}

    def open(self, pool: BrowserPool, site: Site) -> None:
        """Use a pool for pages that are drawn, and the task's started site."""
        self._pool, self._site = pool, site
        looks = VisualRewardSources(pool, {self._task.site: site}, self._blobs.__getitem__, None)
        self._grader = RecordGrader(
            self._weights,
            [*part_sources(self._live.addresses, self._judge), *looks.sources, *self._extra],
            screenshot=self._blobs.__getitem__,
            measure=looks.measured,
            own=self._own,
            judge=self._judge,
        )

    def copy(self) -> EnvGrader:
        """Return a grader with the pictures so far, for a fork of the episode."""
        assert self._pool is not None and self._site is not None, "open() comes first"
        other = copy(self)
        other._blobs = dict(self._blobs)
        other.open(self._pool, self._site)
        return other

    def keep(self, data: bytes) -> str:
        """Keep a picture for this episode's grading, and return its name."""
        if not data:
            return ""
        name = hashlib.sha256(data).hexdigest()
        self._blobs[name] = data
        return name

    def forget_pictures(self) -> None:
        """Forget the pictures of the last episode."""
        self._blobs.clear()

    async def grade(self, episode: WebEpisode, episode_id: str) -> Trajectory:
        """Return the record of an ended episode, with its reward."""
        assert self._grader is not None and episode.page is not None
        final_dom = ""
        try:
            if self._task.reference:
                final_dom = PageEvidence(self.keep).page(await episode.inspected())
            await episode.read_end(self._live, site_helpers(self._live.addresses, self._live.logins))
        except BrowserError as error:
            episode.fail(error)
        trajectory = episode.trajectory(
            episode_id=episode_id,
            group_id=self._task.task_id,
            sample=0,
            policy_version=0,
            final_dom=final_dom,
            final_screenshot=self.keep(episode.page.screenshot) if episode.steps else "",
        )
        if trajectory.error is not None:
            return trajectory
        try:
            graded = await self._grader.grade(self._task, trajectory)
        except ExceptionGroup as group:
            (first, *others) = group.exceptions
            if others:
                raise
            raise first from first.__cause__
        return trajectory.model_copy(update={"reward": graded.reward, "wall": graded.wall})


def cause_of(reward: RewardBundle) -> str | None:
    """Return the reason why there is no reward, with the evidence of the missing parts."""
    if reward.abstained != NO_PARTS:
        return reward.abstained
    missing = "; ".join(part.evidence for part in reward.parts if part.value is None)
    return f"{NO_PARTS}{missing and f': {missing}'}; give the task a rubric, or open_env a reward function"
