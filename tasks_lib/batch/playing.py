"""Plays one episode of a batch, with its further attempts, and stores its record."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envs import EnvHost, StepResult, WebEnv
from envs.rewards.judge import Judge
from envs.types import BrowserError, ConfigError, Invalid, SiteError, Step, StopReason, Trajectory
from tasks_lib.batch.agents import Agent, AgentFailed
from tasks_lib.batch.config import BatchConfig
from tasks_lib.batch.page import episode_page
from tasks_lib.batch.results import EpisodeResult, PlannedEpisode, Spending, TokenCount, write_result
from training.ledger.store import atomic_write_bytes, write_json

SCREENSHOTS = "screenshots"
TRACE_SCHEMA = 1


@dataclass(slots=True)
class PlayedTurn:
    """One turn, as the agent saw and said it."""

    url: str
    page: str
    """The page and the task as text."""
    screenshot: str
    """Path of the page's picture in the episode's folder; empty without one."""
    response: str = ""
    error: str = ""
    """Reason why the action was not carried out."""
    seconds: float = 0.0
    """Wall seconds of the agent."""


@dataclass(slots=True)
class Attempt:
    """One attempt of an episode."""

    turns: list[PlayedTurn] = field(default_factory=list)
    pictures: list[bytes] = field(default_factory=list)
    steps: tuple[Step, ...] = ()
    trajectory: Trajectory | None = None
    """``None`` where the attempt ended before its episode did."""
    score: float | None = None
    stop: StopReason = StopReason.ENGINE_ERROR
    error: str | None = None
    again: bool = False
    """True if another attempt may succeed."""
    seconds: float = 0.0

    def abstain(self, stop: StopReason, error: str, *, again: bool) -> None:
        """End without a reward."""
        self.stop, self.error, self.again = stop, error, again

    def look(self, step: StepResult, text: str) -> None:
        """Keep a page, to which a turn follows."""
        name = f"{SCREENSHOTS}/{len(self.turns):03d}.jpg" if step.screenshot else ""
        self.turns.append(PlayedTurn(step.observation.url, text, name))
        self.pictures.append(step.screenshot)

    def end(self, step: StepResult, trajectory: Trajectory) -> None:
        """Keep how the episode ended."""
        self.trajectory, self.score = trajectory, step.reward
        self.stop, self.error = trajectory.stop_reason, step.abstained
        self.again = not trajectory.is_last_attempt


class EpisodePlayer:
    """Plays the episodes of a batch on shared browsers."""

    def __init__(
        self,
        config: BatchConfig,
        host: EnvHost,
        make_agent: Callable[[Spending], Agent],
        judge: Judge | None,
        folder: Path,
    ) -> None:
        """
        Args:
            make_agent: Makes an agent for an attempt.
            judge: An entered judge, for tasks that need one.
            folder: Folder of all episodes.
        """
        self._config, self._host, self._make_agent, self._judge = config, host, make_agent, judge
        self._folder = folder
        self._renderer = config.renderer
        self._opening = asyncio.Semaphore(config.max_concurrent_launch)

    async def play(self, planned: PlannedEpisode) -> EpisodeResult:
        """Play an episode until it has a reward or its attempts are used up, and store it.

        Raises:
            PolicyError, EngineError: the endpoint refuses us, or its budget is used up; nothing is
                stored.
        """
        spent, failures = Spending(), list[str]()
        attempt = await self._attempt(planned, spent)
        while attempt.error is not None and attempt.again and len(failures) < self._config.retry_count:
            failures.append(attempt.error)
            attempt = await self._attempt(planned, spent)
        result = self._result(planned, attempt, spent, failures)
        await asyncio.to_thread(self._store, planned, attempt, result)
        return result

    async def _attempt(self, planned: PlannedEpisode, spent: Spending) -> Attempt:
        attempt, started = Attempt(), time.monotonic()
        limit = self._config.episode_deadline
        try:
            async with asyncio.timeout(limit) as deadline:
                await self._play(planned, self._make_agent(spent), attempt)
        except TimeoutError:
            if not deadline.expired():
                raise
            attempt.abstain(StopReason.DEADLINE, f"not over within {limit:g} s (episode_deadline)", again=True)
        except AgentFailed as failure:
            attempt.abstain(failure.stop, failure.message, again=failure.again)
        except (BrowserError, SiteError) as error:
            attempt.abstain(StopReason.BROWSER_ERROR, str(error), again=True)
        attempt.seconds = time.monotonic() - started
        return attempt

    async def _play(self, planned: PlannedEpisode, agent: Agent, attempt: Attempt) -> None:
        async with AsyncExitStack() as stack:
            async with self._opening:
                env = await stack.enter_async_context(self._opened(planned))
                step = await env.reset()
            while not step.done:
                attempt.look(step, self._renderer.page_text(step))
                turn, asked = attempt.turns[-1], time.monotonic()
                decision = await agent.decide(step)
                turn.response, turn.seconds = decision.response, time.monotonic() - asked
                try:
                    step = await env.step(decision.action)
                except ConfigError as error:
                    raise AgentFailed(StopReason.ENGINE_ERROR, f"{self._config.agent_name}: {error}", False) from error
                attempt.steps = env.steps
                turn.error = step.observation.error or ""
            assert env.trajectory is not None
            attempt.end(step, env.trajectory)

    def _opened(self, planned: PlannedEpisode) -> WebEnv:
        config = self._config
        return self._host.open(
            planned.task,
            seed=planned.seed,
            horizon=config.horizon,
            repeats=config.repeats,
            stop_on_invalid=config.stop_on_invalid,
            judge=self._judge,
            live=config.tasks.live,
        )

    def _result(self, planned: PlannedEpisode, attempt: Attempt, spent: Spending, failures: list[str]) -> EpisodeResult:
        task, trajectory, endpoint = planned.task, attempt.trajectory, self._config.endpoint
        known = endpoint is not None and not spent.unmetered
        tokens = TokenCount(prompt=spent.prompt_tokens, cached=spent.cached_tokens, answer=spent.answer_tokens)
        judged = None if trajectory is None else trajectory.reward.cost
        return EpisodeResult(
            task_id=task.task_id,
            kind=task.kind,
            site=task.site,
            difficulty=task.difficulty,
            seed=planned.seed,
            success=trajectory is not None and trajectory.reward.passed,
            score=attempt.score,
            answer="" if trajectory is None else trajectory.answer,
            steps=len(attempt.steps),
            stop=attempt.stop,
            error=attempt.error,
            blocked=attempt.stop is StopReason.BLOCKED or (trajectory is not None and bool(trajectory.wall)),
            invalid_actions=sum(isinstance(step.action, Invalid) for step in attempt.steps),
            refused_actions=sum(
                step.error is not None and not isinstance(step.action, Invalid) for step in attempt.steps
            ),
            attempts=len(failures) + 1,
            failures=tuple(failures),
            requests=spent.requests,
            tokens=tokens,
            unmetered=spent.unmetered,
            cost=endpoint.dollars(tokens.prompt, tokens.cached, tokens.answer) if endpoint and known else None,
            judge_tokens=0 if judged is None else judged.tokens,
            judge_dollars=0.0 if judged is None else judged.dollars,
            seconds=attempt.seconds,
        )

    def _store(self, planned: PlannedEpisode, attempt: Attempt, result: EpisodeResult) -> None:
        """Write the folder of an episode anew, its result last."""
        folder = self._folder / planned.name
        shutil.rmtree(folder, ignore_errors=True)
        for turn, picture in zip(attempt.turns, attempt.pictures, strict=True):
            if picture:
                atomic_write_bytes(folder / turn.screenshot, picture, sync=False)
        turns, ended = [asdict(turn) for turn in attempt.turns], attempt.trajectory
        trace: dict[str, Any] = {
            "schema": TRACE_SCHEMA,
            "task": planned.task.model_dump(mode="json"),
            "seed": planned.seed,
            "agent": self._config.agent_name,
            "turns": turns,
            "trajectory": None if ended is None else ended.model_dump(mode="json"),
            "steps": [step.model_dump(mode="json") for step in attempt.steps if ended is None],
        }
        write_json(folder / "trace.json", trace)
        atomic_write_bytes(folder / "index.html", episode_page(result, turns).encode(), sync=False)
        write_result(folder, result)
