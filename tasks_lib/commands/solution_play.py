"""Plays the known solutions of tasks in a browser, with scripted oracles instead of a policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass

import httpx

from envs.actions import format_action
from envs.browser import BrowserPool
from envs.bundled.oracles import Oracle
from envs.episodes import part_sources
from envs.sites import Site, make_site
from envs.types import Invalid, Trajectory, WebTask
from tasks_lib.config import RewardConfig, RolloutConfig
from tasks_lib.worker.activity import ActivityClock
from tasks_lib.worker.actors import EncodedSituation, Situation, Turn
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tasks_lib.worker.pipeline import Stage
from tasks_lib.worker.reward_stage import RewardStage
from tasks_lib.worker.turns import turn_pipeline
from training.policy.rendered import RenderedPrompt
from training.records.groups import GroupSpec

SESSIONS = 4
"""Concurrent episodes in the browser, enough for two cores."""
MINIWOB = "miniwob"


@dataclass(frozen=True, slots=True)
class SolutionPlay:
    """An episode to play in a browser."""

    task: WebTask
    split: str
    seed: int
    oracle: Oracle


async def play_solutions(plays: Sequence[SolutionPlay]) -> list[Trajectory | str]:
    """Play episodes in a browser as a rollout does, with oracles instead of the policy.

    Returns:
        For each episode its graded record, or the fault of its start page.
    """
    if not plays:
        return []
    actor = _ScriptedActor({_group_id(number): play.oracle for number, play in enumerate(plays)})
    clock = ActivityClock(("browser", "reward"))
    stage = RewardStage(RewardConfig(), clock, sources=part_sources(), screenshot=lambda name: b"")
    async with AsyncExitStack() as stack:
        sites: dict[str, Site] = {}
        for name in sorted({play.task.site for play in plays}):
            sites[name] = make_site(name)
            stack.push_async_callback(sites[name].close)
            await sites[name].start()
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        pool = await stack.enter_async_context(BrowserPool(max_sessions=SESSIONS, screenshots=False))
        runner = EpisodeRunner(
            pool=pool,
            sites=sites,
            actor=actor,
            turns=turn_pipeline(Stage("record", _skip_record), actor, SESSIONS),
            clock=clock,
            rollout=RolloutConfig(),
        )

        turns = asyncio.Semaphore(SESSIONS)

        async def run(number: int, play: SolutionPlay) -> Trajectory | str:
            async with turns:
                if play.task.site == MINIWOB:
                    answer = await client.get(f"{sites[MINIWOB].origin}{play.task.path}")
                    if answer.status_code != httpx.codes.OK:
                        return f"its start page {play.task.path} answers {answer.status_code}; correct path"
                group = GroupSpec(group_id=_group_id(number), task=play.task, seeds=(play.seed,))
                trajectory = (await runner.run(group, 0, SlotStatus()))[-1]
                return await stage.grade(play.task, trajectory)

        try:
            # When one fails or Ctrl-C cancels them, a task group waits for all of them. The browser
            # is closed only then.
            async with asyncio.TaskGroup() as group:
                episodes = [group.create_task(run(number, play)) for number, play in enumerate(plays)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [episode.result() for episode in episodes]


async def _skip_record(situation: Situation) -> EncodedSituation:
    """Return a situation without a prompt and pictures, because nothing is recorded."""
    rendered = RenderedPrompt((0,), (0,), ())
    return EncodedSituation(situation, prompt="", rendered=rendered, pictures=(), screenshot="0" * 64)


@dataclass(frozen=True, slots=True)
class _ScriptedActor:
    """The `Actor` of scripted oracles, without a model."""

    oracles: Mapping[str, Oracle]
    """Oracles by group id."""

    @property
    def policy_version(self) -> int:
        return 0

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, asked: EncodedSituation) -> Turn:
        situation = asked.situation
        history = [step.action for step in situation.steps]
        action = self.oracles[situation.group.group_id](situation.frame.observation, history)
        # An oracle without an action answers the reason, which is no action and ends the episode.
        response = action.reason if isinstance(action, Invalid) else format_action(action)
        return Turn(asked, response, response_ids=(0,), logprobs=(0.0,), policy_version=0)


def _group_id(number: int) -> str:
    return f"i000000-g{number:04d}"
