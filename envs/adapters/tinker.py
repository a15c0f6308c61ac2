"""Tinker: episodes as token-level environments, and builders of groups of them.

::

    from tinker_cookbook.rl.rollouts import do_group_rollout

    renderer = get_renderer("qwen3_instruct", get_tokenizer("Qwen/Qwen3-4B-Instruct-2507"))
    group = TinkerGroupBuilder("miniwob/click-test", renderer, seed=7, group_size=8)
    trajectories = await do_group_rollout(group, policy)

`envs.adapters.tinker_dataset` makes data sets of groups, for ``tinker_cookbook.rl.train``.

An episode that abstained says so by the metric ``abstained`` and ``stop/<reason>``. In its group it
gets the mean reward of the others, so that no advantage changes by it, and its turns are masked
(``parse_error_masked``): it is not trained on, and the group goes on.

Where ``tinker_cookbook`` cannot be imported, `envs.adapters.tinker_types` has its results' fields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from envs.adapters.shared_host import on_host, shared_host
from envs.env import WebEnv
from envs.prompts import StepRenderer
from envs.registry import find_task
from envs.types import BrowserError, ConfigError, RollwrightError, SiteError, StopReason, TaskError, Trajectory, WebTask

try:
    import tinker

    from envs.adapters.tinker_prompts import EpisodePrompts, MessageRenderer
    from envs.adapters.tinker_types import MASKED, EnvBase, GroupBase, NoPrompt, Step, ending
except ImportError as error:
    raise ConfigError("the tinker package is missing: pip install 'rollwright[tinker]'") from error

HOST: Mapping[str, Any] = {"lease_deadline": 3600.0}
"""Options of the shared browsers: the trainer may begin more episodes than there are sessions, and
these wait."""


class TinkerEnv(EnvBase):  # type: ignore[misc]
    """One episode, of tokens; used once."""

    def __init__(
        self,
        task: str | WebTask,
        renderer: MessageRenderer,
        *,
        shown: StepRenderer | None = None,
        max_tokens: int | None = None,
        pool_options: Mapping[str, Any] = HOST,
        **options: Any,
    ) -> None:
        """
        Args:
            task: The same as of `envs.open_env`.
            renderer: Renderer of the model's chat template, such as the cookbook's.
            shown: Renderer of steps; it shows the elements as text if not given.
            max_tokens: Tokens that a prompt may have; an episode whose next prompt has more
                abstains.
            pool_options: Fields of `envs.PoolOptions` of the browsers that the process shares.
            options: The same as of `envs.EnvHost.open`.
        """
        self.trajectory: Trajectory | None = None
        """The record of the ended episode; ``None`` before its end, or if it was cut off."""
        self.abstained: str | None = "the rollout ended before the episode"
        """Reason why there is no reward; ``None`` once the episode is graded."""
        self._task, self._options = task, options
        self._shown = shown or StepRenderer()
        self._pool_options = {**pool_options, **self._shown.pool_options}
        self._prompts = EpisodePrompts(renderer, self._shown)
        self._max_tokens = max_tokens
        self._host: Any = None
        self._env: WebEnv | None = None

    async def initial_observation(self) -> Any:
        """Open the environment and return the first prompt and the stop sequences.

        An episode that cannot begin (its browser or site fails, its prompt is too long) is an
        ``InitialObservationOverflow``, which adds no tokens to the training data.

        Raises:
            TaskError, ConfigError: The errors of `envs.open_env`.
        """
        try:
            self._host = await asyncio.to_thread(shared_host, **self._pool_options)
            env = self._host.host.open(self._task, **self._options)
            self._env = await on_host(self._host, env.__aenter__)
            step = await on_host(self._host, env.reset)
        except (BrowserError, SiteError) as error:
            return NoPrompt(0.0, **await self._fail(StopReason.BROWSER_ERROR, error))
        prompt = await asyncio.to_thread(self._prompts.first, step)
        if self._too_long(prompt):
            return NoPrompt(0.0, **await self._fail(StopReason.CONTEXT_OVERFLOW, self._overflow(prompt)))
        return prompt, self._prompts.stop

    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> Any:
        """Carry out the action in a turn of sampled ids.

        Raises:
            TaskError: There is no episode, or it is over.
        """
        if self._env is None:
            raise TaskError("no episode is going on: await initial_observation() of another environment")
        try:
            step = await on_host(self._host, self._env.step, self._prompts.text(action))
        except (BrowserError, SiteError) as error:
            return self._last(await self._fail(StopReason.BROWSER_ERROR, error))
        if step.done:
            self.trajectory, self.abstained = self._env.trajectory, step.abstained
            assert step.stop is not None
            await self.close()
            return self._last(ending(step.stop, step.abstained), step.reward)
        prompt = await asyncio.to_thread(self._prompts.following, action, step)
        if self._too_long(prompt):
            return self._last(await self._fail(StopReason.CONTEXT_OVERFLOW, self._overflow(prompt)))
        logs = {"error": step.observation.error} if step.observation.error else {}
        return Step(0.0, False, prompt, self._prompts.stop, {}, logs)

    async def close(self) -> None:
        """Give the browser back. Closing twice is one close."""
        env, self._env = self._env, None
        if env is not None:
            await on_host(self._host, env.close)

    def _too_long(self, prompt: tinker.ModelInput) -> bool:
        return self._max_tokens is not None and prompt.length > self._max_tokens

    def _overflow(self, prompt: tinker.ModelInput) -> str:
        return f"a prompt has {prompt.length} tokens, and max_tokens is {self._max_tokens}"

    async def _fail(self, stop: StopReason, why: RollwrightError | str) -> dict[str, Any]:
        """End the episode without a reward; return its metrics and logs."""
        self.abstained = str(why)
        await self.close()
        return ending(stop, self.abstained)

    def _last(self, ending: dict[str, Any], reward: float | None = None) -> Any:
        return Step(reward or 0.0, True, tinker.ModelInput.empty(), self._prompts.stop, **ending)


class TinkerGroupBuilder(GroupBase):  # type: ignore[misc]
    """The episodes of one task with one seed. It can be pickled if its renderer can."""

    def __init__(
        self,
        task: str | WebTask,
        renderer: MessageRenderer,
        *,
        group_size: int,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            group_size: Number of episodes.
            options: The same as of `TinkerEnv`.

        Raises:
            TaskError: There is no such task.
        """
        self.task = find_task(task, seed=seed) if isinstance(task, str) else task
        self.seed = seed
        """Seed of all episodes; ``None``: the task chooses it."""
        self._group_size = group_size
        self._arguments: dict[str, Any] = {"renderer": renderer, **options}
        self._envs: list[TinkerEnv] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_envs": []}

    async def make_envs(self) -> list[TinkerEnv]:
        """Make the group's environments, whose browsers are opened by their first prompts."""
        envs = [TinkerEnv(self.task, seed=self.seed, **self._arguments) for _ in range(self._group_size)]
        self._envs += envs
        return envs

    async def compute_group_rewards(
        self, trajectory_group: Sequence[Any], env_group: Sequence[TinkerEnv]
    ) -> list[tuple[float, dict[str, float | int]]]:
        """Mask the turns of episodes that abstained, and give those the mean of the others.

        The others have their rewards from their last steps, so theirs is 0 here.
        """
        totals = [sum(turn.reward for turn in trajectory.transitions) for trajectory in trajectory_group]
        graded = [total for total, env in zip(totals, env_group, strict=True) if env.abstained is None]
        mean = sum(graded) / len(graded) if graded else 0.0
        rewards: list[tuple[float, dict[str, float | int]]] = []
        for trajectory, env, total in zip(trajectory_group, env_group, totals, strict=True):
            if env.abstained is None:
                rewards.append((0.0, {"group_abstained": 0.0}))
                continue
            for turn in trajectory.transitions:
                turn.metrics[MASKED] = 1.0
            rewards.append((mean - total, {"group_abstained": 1.0}))
        return rewards

    async def cleanup(self) -> None:
        """Give back the browsers of episodes that were cut off. Doing it twice is doing it once."""
        envs, self._envs = self._envs, []
        await asyncio.gather(*(env.close() for env in envs))

    def logging_tags(self) -> list[str]:
        """Return the names by which metrics are averaged: all, the site, and the kind of task."""
        return ["rollwright", self.task.site, f"{self.task.site}/{self.task.kind}"]
