"""Checks that a generated task is solvable: plays its plan and grades the result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from envs.bundled.generate.generate import solution_of
from envs.bundled.generate.moves import Plan
from envs.bundled.generate.text_browser import TextBrowser
from envs.bundled.sites import APPLICATIONS, BundledSite
from envs.rewards import GradingEvidence, grade_by_program, record_answers
from envs.types import RewardBundle, TaskError, WebTask


class NoStartPage(TaskError):
    """The path of a task is no page of its site."""


class Checker:
    """Plays plans on bundled sites that are served for it. Made by `checker`."""

    def __init__(self, sites: dict[str, BundledSite], client: httpx.AsyncClient) -> None:
        self._sites = sites
        self._client = client

    def serves(self, site: str) -> bool:
        """Return True if the site of this name is bundled."""
        return site in self._sites

    async def solve(self, task: WebTask) -> RewardBundle:
        """Return the reward of the task's own solution. Any but a full one means a broken task."""
        return await self.play(task, solution_of(task))

    async def play(self, task: WebTask, plan: Plan, seed: int | None = None) -> RewardBundle:
        """Return the reward of any plan, in the world of ``seed`` (default: the task's first).

        Raises:
            NoStartPage: the task's path does not exist.
            TaskError: a move cannot be made, the task has no rubric, or its site is not bundled.
        """
        if task.rubric is None or not self.serves(task.site):
            raise TaskError(
                f"{task.task_id} has no rubric or is on {task.site}, which is none of {', '.join(self._sites)}"
            )
        site = self._sites[task.site]
        episode = await site.open_episode(task, next(iter(task.seeds.values())).start if seed is None else seed)
        try:
            self._client.cookies.clear()
            reader = TextBrowser(self._client)
            await reader.go(site.origin + episode.path)
            if reader.status != httpx.codes.OK:
                raise NoStartPage(f"its start page {task.path} answers {reader.status}; correct its path")
            for move in plan:
                await reader.make(move)
            evidence = GradingEvidence(
                final=reader.observe(task.instruction or ""),
                answer=reader.answer,
                server=await record_answers(task.rubric, episode.state),
            )
        finally:
            await episode.close()
        return grade_by_program(task.rubric, evidence, expected_hash=task.rubric_hash)


@asynccontextmanager
async def checker() -> AsyncIterator[Checker]:
    """Serve the bundled sites while the context is open, for one task at a time.

    Example::

        async with checker() as check:
            reward = await check.solve(task)
    """
    sites = {name: BundledSite(application) for name, application in APPLICATIONS.items()}
    try:
        for site in sites.values():
            await site.start()
        async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as client:
            yield Checker(sites, client)
    finally:
        for site in sites.values():
            await site.close()
