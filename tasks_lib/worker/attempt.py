"""Plays one episode: policy and browser alternate until it ends.

The policy, the page, the horizon, a deadline or a failure ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from envs.actions import Reader, parse
from envs.browser import BrowserPool, PageStep, WebSession
from envs.episodes import CancelScope, PageEvidence, WebEpisode
from envs.memory import EpisodeMemory
from envs.rewards.webarena import Helper
from envs.sites import LiveOptions, Site
from envs.types import ACTIONS, WITH_MEMORY, BrowserError, EngineError, StepSeconds, StopReason, Trajectory
from tasks_lib.config import RolloutConfig
from tasks_lib.worker.activity import LENT, ActivityClock
from tasks_lib.worker.actors import Actor, Situation
from tasks_lib.worker.live import Doing, PlayedEpisode, SlotStatus
from tasks_lib.worker.oversampling import OverSampling
from tasks_lib.worker.turns import TurnPipeline
from training.records.groups import GroupSpec


@dataclass(slots=True)
class EpisodeRunner:
    """Plays the episodes of one rollout on a worker, and holds the parts that they share.

    ``run`` is called concurrently on one event loop.
    """

    pool: BrowserPool
    sites: Mapping[str, Site]
    """Started sites by name."""
    actor: Actor
    turns: TurnPipeline
    """Pipeline of the actor's turns."""
    clock: ActivityClock
    rollout: RolloutConfig
    live: LiveOptions = field(default_factory=LiveOptions)
    evidence: PageEvidence | None = None
    """Stores the changes of documents by steps (``rollout.dom_diffs``)."""
    keep: Callable[[bytes], str] | None = None
    """Stores the last page's picture and returns the blob's name; ``None``: it is not stored."""
    helpers: Mapping[str, Helper] = field(default_factory=dict)
    """Helper functions of WebArena's checks that need a site."""
    parse: Reader = parse
    """Reads the action of a turn (`rollout.parser`)."""
    oversampling: OverSampling = field(default_factory=OverSampling)
    """Progress of the shard, by which slow episodes are given up."""

    async def run(self, group: GroupSpec, sample: int, slot: SlotStatus, session: str = "") -> list[Trajectory]:
        """Run an episode in up to ``rollout.attempts`` attempts, and return all of them.

        Another attempt follows a failure that is neither the policy's nor a wall. The caller grades
        and stores the attempts.

        Args:
            sample: Number of the episode in its group, from 0.
            slot: Slot whose live status is kept up to date.
            session: Name of the actor's session that the caller has entered.
        """
        attempts: list[Trajectory] = []
        for attempt in range(self.rollout.attempts):
            attempts.append(await self._play_attempt(_Attempt(self, group, sample, attempt, slot, session)))
            # Another attempt would not make a reward known that is not, and a wall outlasts it.
            if attempts[-1].is_last_attempt:
                break
        self.oversampling.record_end()
        if attempts[-1].error is None:
            self.oversampling.record_gradable(group)
        return attempts

    async def _play_attempt(self, attempt: _Attempt) -> Trajectory:
        web, group = attempt.web, attempt.group
        started = time.perf_counter()
        limit = attempt.limit
        try:
            if reason := self.oversampling.reason(group):
                web.abstain(StopReason.ABANDONED, reason)
                return attempt.trajectory(0.0)
            async with limit:
                with self.oversampling.running(group, limit):
                    await attempt.play()
        except BrowserError as error:
            web.fail(error)
        except EngineError as error:
            web.abstain(StopReason.ENGINE_ERROR, str(error))
        except TimeoutError:
            if not limit.expired:
                raise  # the timeout of a part, not the episode's deadline
            if limit.was_cancelled:
                web.abstain(StopReason.ABANDONED, self.oversampling.reason(group))
            else:
                web.abstain(StopReason.DEADLINE, f"not over after {self.rollout.episode_deadline:g} s")
        return attempt.trajectory(time.perf_counter() - started)


class _Attempt:
    """The state of one attempt while it is played."""

    def __init__(
        self, runner: EpisodeRunner, group: GroupSpec, sample: int, attempt: int, slot: SlotStatus, session: str
    ) -> None:
        self.runner = runner
        self.slot = slot
        self.session = session
        self.group = group
        self.sample = sample
        self.attempt = attempt
        self.episode_id = group.episode_id(sample, attempt)
        self.version = runner.actor.policy_version
        self.final_dom = ""
        self.final_screenshot = ""
        rollout = runner.rollout
        self.limit = CancelScope(rollout.episode_deadline)
        """Deadline of the attempt. Failures of the engine do not count."""
        self.web = WebEpisode(
            group.task,
            group.seeds[sample],
            repeats=rollout.repeats,
            stop_on_invalid=rollout.stop_on_invalid,
            memory=EpisodeMemory(group.memory) if rollout.memory != "off" else None,
        )

    async def play(self) -> None:
        """Reset, then step until the episode is over. Raises ``BrowserError``."""
        task = self.group.task
        self.slot.begin(self.episode_id, task.kind, task.horizon, task.task_id, self.version, self.view)
        async with self.runner.pool.lease(self.runner.sites[task.site]) as session:
            with self.runner.clock(LENT):
                await self._play(session)

    async def _play(self, session: WebSession) -> None:
        runner, web = self.runner, self.web
        started = time.perf_counter()
        session.tell = self.slot.tell
        with runner.clock("browser"):
            frame = await web.begin(session)
        observed = time.perf_counter() - started
        while not web.over:
            frame, observed = await self._step(frame, observed)
        self.slot.set_doing(Doing.JUDGE)
        if runner.evidence is not None and web.task.reference:
            with runner.clock("browser"):
                frame = await web.inspected()
            self.final_dom = await asyncio.to_thread(runner.evidence.page, frame)
        if runner.keep is not None and web.steps and frame.screenshot:
            self.final_screenshot = await asyncio.to_thread(runner.keep, frame.screenshot)
        with runner.clock("browser"):
            await web.read_end(runner.live, runner.helpers)

    async def _step(self, frame: PageStep, observe_seconds: float) -> tuple[PageStep, float]:
        web, started = self.web, time.perf_counter()
        self.slot.set_doing(Doing.QUEUE)
        memory = web.memory.entries if web.memory is not None else None
        began = partial(self.slot.set_doing, Doing.TURN)
        situation = Situation(self.group, self.sample, frame, web.steps, memory, self.session, began, self.limit.extend)
        turn = await self.runner.turns.run(situation)
        generated = time.perf_counter()
        if turn.finish_reason == "context_overflow":
            tokens = len(turn.asked.rendered.ids)
            web.abstain(
                StopReason.CONTEXT_OVERFLOW,
                f"the prompt of step {len(web.steps)} has {tokens} tokens, which leaves no room for policy.max_new_tokens in the model's context",
            )
            return frame, 0.0
        parsed = self.runner.parse(turn.response, ACTIONS if web.memory is None else WITH_MEMORY)
        self.slot.set_doing(Doing.EXECUTE)
        with self.runner.clock("browser"):
            after = await web.act(parsed.action)
        acted = time.perf_counter()
        evidence = self.runner.evidence
        dom_diff = "" if evidence is None else await asyncio.to_thread(evidence.change, frame, after)
        web.record(
            parsed.action,
            {
                "screenshot": turn.asked.screenshot,
                "prompt": turn.asked.prompt,
                "prompt_ids": turn.asked.rendered.ids,
                "context": turn.asked.context,
                "cut_rounds": turn.asked.cut_rounds,
                "response": turn.response,
                "response_ids": turn.response_ids,
                "logprobs": turn.logprobs,
                "policy_version": turn.policy_version,
                "version_spans": turn.version_spans,
                "finish_reason": turn.finish_reason,
                "form": parsed.form,
                "dom_diff": dom_diff,
                "seconds": StepSeconds(observe=observe_seconds, generate=generated - started, act=acted - generated),
            },
        )
        self.slot.step = len(web.steps)
        self.slot.version = turn.policy_version
        self.slot.screenshot = turn.asked.screenshot
        return after, 0.0  # observing the new page is part of the action's time

    def view(self) -> PlayedEpisode:
        """Return what is known of the attempt now; called in another thread, while it is played."""
        page = self.web.page
        instruction = page.observation.instruction if page is not None else self.group.task.instruction or ""
        return PlayedEpisode(instruction, tuple(self.web.steps), page.screenshot if page is not None else b"")

    def trajectory(self, seconds: float) -> Trajectory:
        """Return the record of the attempt so far, without a reward.

        It is an abstention if the attempt failed for a reason that is not the policy's.
        """
        return self.web.trajectory(
            episode_id=self.episode_id,
            group_id=self.group.group_id,
            sample=self.sample,
            attempt=self.attempt,
            policy_version=self.version,
            final_dom=self.final_dom,
            final_screenshot=self.final_screenshot,
            seconds=seconds,
        )
