"""One episode: the policy and the browser take turns until the page, the horizon or a failure ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from envs.actions.parsing import parse
from envs.browser import StepResult, WebSession
from envs.browser.context import PageCrashed
from envs.browser.episode import unchanged
from envs.browser.pool import BrowserPool
from envs.memory import EpisodeMemory, typed_secret
from envs.rewards import score
from envs.rewards.webarena import Helper
from envs.scope import Scope
from envs.signals import aggregate
from envs.sites import LiveOptions
from envs.sites.base import Site
from envs.types import (
    Action,
    BrowserError,
    Forget,
    Invalid,
    Observation,
    Recorded,
    Remember,
    Step,
    StepSeconds,
    StopReason,
    Trajectory,
    WebTask,
)
from envs.types.actions import ACTIONS, WITH_MEMORY
from envs.types.signals import EpisodeSignals
from tasks_lib.activity import ActivityClock
from tasks_lib.actors import Actor, Situation
from tasks_lib.config import RolloutConfig
from tasks_lib.ending import EpisodeWatch
from tasks_lib.evidence import read_end
from tasks_lib.live import Doing, Slot
from tasks_lib.looks import PageEvidence
from tasks_lib.spares import Spares
from tasks_lib.turns import TurnPipeline
from training.groups import GroupSpec

NOT_GRADED = "it was not graded yet"
"""Cause of the abstention that an episode has for a reward until it went through the reward stage."""

NOT_NEEDED = "enough other episodes of its group were over"
"""Cause of the abstention of an episode that was given up (`rollout.spare`)."""


@dataclass(slots=True)
class EpisodeRunner:
    """What the episodes of one rollout share on a worker. ``run`` is called concurrently on one event loop."""

    pool: BrowserPool
    sites: Mapping[str, Site]
    """By name; started."""
    actor: Actor
    turns: TurnPipeline
    """Of the actor."""
    clock: ActivityClock
    rollout: RolloutConfig
    live: LiveOptions = field(default_factory=LiveOptions)
    evidence: PageEvidence | None = None
    """Keeps what steps change in documents (``rollout.dom_diffs``)."""
    keep: Callable[[bytes], str] | None = None
    """Stores a blob and gives its name, for the last page's picture; ``None``: that is not kept."""
    helpers: Mapping[str, Helper] = field(default_factory=dict)
    """What WebArena's checks may call beside those that need no site."""
    spares: Spares = field(default_factory=Spares)
    """Of the lot, for all its runners."""

    async def run(self, group: GroupSpec, sample: int, slot: Slot) -> list[Trajectory]:
        """Run an episode, again after a failure that is neither the policy's nor a wall up to ``rollout.attempts`` times; every attempt is
        returned, graded and stored by the caller.

        What it does at each moment is written into ``slot``.
        """
        attempts: list[Trajectory] = []
        for attempt in range(self.rollout.attempts):
            attempts.append(await self._attempt(group, sample, attempt, slot))
            last = attempts[-1]
            # A reward that nobody can tell would be no better known, and a wall stands longer than an episode takes to come back.
            if last.error is None or last.wall or last.stop_reason is StopReason.ABANDONED:
                break
        if last.error is None:
            self.spares.one_more(group)
        return attempts

    async def _attempt(self, group: GroupSpec, sample: int, attempt: int, slot: Slot) -> Trajectory:
        episode = _Episode(self, group, sample, attempt, slot)
        started = time.perf_counter()
        limit = Scope(self.rollout.episode_deadline)
        try:
            if self.spares.has_enough(group):
                episode.abstain(StopReason.ABANDONED, NOT_NEEDED)
                return episode.trajectory(0.0)
            async with limit:
                with self.spares.running(group, limit):
                    await episode.play()
        except PageCrashed as error:
            episode.abstain(StopReason.CRASH, str(error))
        except BrowserError as error:
            episode.abstain(StopReason.BROWSER_ERROR, str(error))
        except TimeoutError:
            if not limit.expired:
                raise  # of something within, whose deadline says nothing of the episode
            if limit.was_cut:
                episode.abstain(StopReason.ABANDONED, NOT_NEEDED)
            else:
                episode.abstain(StopReason.DEADLINE, f"not over after {self.rollout.episode_deadline:g} s")
        return episode.trajectory(time.perf_counter() - started)


class _Episode:
    """The state of one attempt while it is played."""

    def __init__(self, runner: EpisodeRunner, group: GroupSpec, sample: int, attempt: int, slot: Slot) -> None:
        self.runner = runner
        self.slot = slot
        self.group = group
        self.task: WebTask = group.task
        self.sample = sample
        self.attempt = attempt
        self.episode_id = group.episode_id(sample, attempt)
        self.version = runner.actor.policy_version
        self.steps: list[Step] = []
        self.facts: dict[str, float | bool | str] = {}
        self.final: Observation | None = None
        self.stop_reason = StopReason.HORIZON
        self.answer = ""
        self.final_dom = ""
        self.final_screenshot = ""
        self.recorded: Recorded | None = None
        self.error: str | None = None
        self.wall = ""
        self.watch = EpisodeWatch(runner.rollout.repeats)
        self.memory = EpisodeMemory(group.memory) if runner.rollout.memory != "off" else None
        self.acts = 0
        """Steps that went to the page; the others changed the memory."""

    async def play(self) -> None:
        """Reset, then step until done. Raises ``BrowserError``."""
        self.slot.begin(self.episode_id, self.task.kind, self.task.horizon)
        async with self.runner.pool.lease(self.runner.sites[self.task.site]) as session:
            await self._play(session)

    async def _play(self, session: WebSession) -> None:
        started = time.perf_counter()
        with self.runner.clock("browser"):
            frame = await session.reset(self.task, self.group.seeds[self.sample])
        observed = time.perf_counter() - started
        while len(self.steps) < self.task.horizon and not self._over(frame):
            before = frame
            frame, observed = await self._step(session, frame, observed)
            action = self.steps[-1].action
            if isinstance(action, Invalid) and self.runner.rollout.stop_on_invalid:
                self.stop_reason = StopReason.INVALID_ACTION
                break
            if not frame.done and self.watch.repeats(before, action):
                self.stop_reason = StopReason.REPETITION
                break
        self._over(frame)
        self.facts, self.answer = dict(frame.page_facts), frame.said
        self.final = frame.observation.model_copy(update={"notices": frame.earlier_notices + frame.observation.notices})
        if self.runner.evidence is not None and self.task.reference:
            if (
                frame.inspected is None and self.error is None
            ):  # a dialog is open, behind which the page is the last one
                with self.runner.clock("browser"):
                    frame = replace(frame, inspected=await session.look(lambda page: page.inspected()))
            self.final_dom = await asyncio.to_thread(self.runner.evidence.page, frame)
        if self.runner.keep is not None and self.steps and frame.screenshot:
            self.final_screenshot = await asyncio.to_thread(self.runner.keep, frame.screenshot)
        if self.error is None:
            with self.runner.clock("browser"):
                addresses, helpers = self.runner.live.addresses, self.runner.helpers
                self.recorded = await read_end(session, self.task, addresses, helpers)

    def _over(self, frame: StepResult) -> bool:
        """Whether the page or the policy declared the end, or the site cannot be used."""
        unusable = None if frame.done else self.watch.unusable(frame, first=not self.steps)
        if unusable is not None:
            self.abstain(unusable.reason, unusable.message)
            self.wall = unusable.wall
        elif frame.done:
            self.stop_reason = frame.stop or StopReason.DONE
        return frame.done or unusable is not None

    async def _step(self, session: WebSession, frame: StepResult, observe_seconds: float) -> tuple[StepResult, float]:
        clock = time.perf_counter()
        self.slot.now(Doing.TURN)
        memory = self.memory.entries if self.memory is not None else None
        turn = await self.runner.turns.run(Situation(self.group, self.sample, frame, self.steps, memory))
        generated = time.perf_counter()
        parsed = parse(turn.response, ACTIONS if self.memory is None else WITH_MEMORY)
        self.slot.now(Doing.ACT)
        after = await self._act(session, frame, parsed.action)
        acted = time.perf_counter()
        evidence = self.runner.evidence
        dom_diff = "" if evidence is None else await asyncio.to_thread(evidence.change, frame, after)
        self.steps.append(
            Step(
                index=len(self.steps),
                observation=frame.observation,
                screenshot=turn.asked.screenshot,
                prompt=turn.asked.prompt,
                prompt_ids=turn.asked.prompt_ids,
                response=turn.response,
                response_ids=turn.response_ids,
                logprobs=turn.logprobs,
                policy_version=turn.policy_version,
                action=parsed.action,
                form=parsed.form,
                point=after.point,
                error=after.error,
                settled=str(after.settled.reason) if after.settled is not None else "",
                signals=after.signals,
                dom_diff=dom_diff,
                seconds=StepSeconds(observe=observe_seconds, generate=generated - clock, act=acted - generated),
            )
        )
        self.slot.step = len(self.steps)
        return after, 0.0  # the look at the new page is part of the action's time

    async def _act(self, session: WebSession, frame: StepResult, action: Action) -> StepResult:
        """Have an action carried out: by the memory, where the page stands still and is not looked at again, or by the page."""
        if isinstance(action, Remember | Forget):
            assert self.memory is not None, "the parser reads these in an episode with a memory"
            return unchanged(frame, self.memory.apply(action))
        with self.runner.clock("browser"):
            after = await session.step(action, step_id=self.acts)
        self.acts += 1
        if self.memory is not None:
            self.memory.hide(typed_secret(action, frame.observation))
        return after

    def abstain(self, reason: StopReason, message: str) -> None:
        """The episode failed for a reason that is not the policy's."""
        self.stop_reason, self.error = reason, message

    def _signals(self) -> EpisodeSignals | None:
        signals = [step.signals for step in self.steps if step.signals is not None]
        return aggregate(signals) if signals else None

    def trajectory(self, seconds: float) -> Trajectory:
        """The record of the episode as it stands, not graded yet; an abstention if it failed for a reason that is not the policy's."""
        return Trajectory(
            episode_id=self.episode_id,
            group_id=self.group.group_id,
            task_id=self.task.task_id,
            kind=self.task.kind,
            seed=self.group.seeds[self.sample],
            sample=self.sample,
            attempt=self.attempt,
            policy_version=self.version,
            steps=tuple(self.steps),
            final=self.final,
            final_dom=self.final_dom,
            final_screenshot=self.final_screenshot,
            stop_reason=self.stop_reason,
            reward=score([], abstained=self.error or NOT_GRADED),
            page_facts=self.facts,
            signals=self._signals(),
            recorded=self.recorded,
            answer=self.answer,
            memory=self.memory.changes() if self.memory is not None else (),
            error=self.error,
            wall=self.wall,
            seconds=seconds,
        )
