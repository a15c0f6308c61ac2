"""Episodes of generated tasks as the loop plays and grades them, with an oracle in the place of the
policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from envs.actions.parsing import format_action
from envs.browser import BrowserPool
from envs.bundled.oracles import Oracle
from envs.episodes import part_sources
from envs.prompts import user_text
from envs.sites import Site, make_site
from envs.types import Action, Invalid, Observation, Trajectory, WebTask
from tasks_lib.config import RewardConfig, RolloutConfig
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tasks_lib.worker.reward_stage import RewardStage
from tests.turns import make_turn
from training.records.groups import GroupSpec

from .making import world_seed

SESSIONS = 6

Order = tuple[WebTask, Oracle]
Wording = Callable[[Action, Observation], Action]
"""The same action, with what it is done to named in another way."""


class Oracles:
    """Turns that write down what each task's oracle does."""

    def __init__(self, orders: Sequence[Order], said: Wording) -> None:
        self._oracles = {f"i000000-g{number:04d}": oracle for number, (_, oracle) in enumerate(orders)}
        self._said = said

    async def run(self, situation: Any) -> Any:
        seen = situation.frame.observation
        action = self._oracles[situation.group.group_id](seen, [step.action for step in situation.steps])
        said = action.reason if isinstance(action, Invalid) else format_action(self._said(action, seen))
        prompt = user_text(seen, [step.response for step in situation.steps])
        return make_turn(situation, said, prompt=prompt, prompt_ids=(1,))


def as_it_is(action: Action, seen: Observation) -> Action:
    """By the number of the element."""
    return action


@contextmanager
def no_clock(doing: str) -> Iterator[None]:
    """Measures nothing."""
    yield


async def play_all(orders: Sequence[Order], said: Wording = as_it_is) -> list[Trajectory]:
    """The graded episodes, in the order of the tasks."""
    sites: dict[str, Site] = {name: make_site(name) for name in sorted({task.site for task, _ in orders})}
    turns = Oracles(orders, said)
    stage = RewardStage(RewardConfig(), no_clock, sources=part_sources(), screenshot=lambda name: b"")  # type: ignore[arg-type]
    try:
        for site in sites.values():
            await site.start()
        async with BrowserPool(max_sessions=SESSIONS, screenshots=False) as pool:
            runner = EpisodeRunner(
                pool=pool,
                sites=sites,
                actor=SimpleNamespace(policy_version=0),  # type: ignore[arg-type]
                turns=turns,  # type: ignore[arg-type]
                clock=no_clock,  # type: ignore[arg-type]
                rollout=RolloutConfig(attempts=1),
            )

            async def play(number: int, task: WebTask) -> Trajectory:
                group = GroupSpec(group_id=f"i000000-g{number:04d}", task=task, seeds=(world_seed(task),))
                (ended,) = await runner.run(group, 0, SlotStatus())
                return await stage.grade(task, ended)

            return await asyncio.gather(*(play(number, task) for number, (task, _) in enumerate(orders)))
    finally:
        for site in sites.values():
            await site.close()


def described(task: WebTask, ended: Trajectory) -> str:
    """What became of an episode, for the message of a failure."""
    turns = [(step.response, step.error) for step in ended.steps]
    parts = [(part.name, part.value, part.evidence) for part in ended.reward.parts]
    return f"{task.task_id}: {task.instruction} {ended.stop_reason} {ended.error} after {turns}: {parts}"
