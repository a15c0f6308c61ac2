"""SkyRL: web tasks as a `BaseTextEnv`, registered as ``rollwright``.

::

    import skyrl_gym
    from envs.adapters.skyrl import register

    register()
    env = skyrl_gym.make("rollwright", extras={"task": "miniwob/click-test", "seed": 7})
    messages, _ = env.init([])
    output = env.step("click [1]")
    print(output["reward"], output["done"], env.get_metrics())
    env.close()

All environments of a process share one event loop and its browsers, and may be called from any
thread of SkyRL's pool.

SkyRL has no word for an episode without a reward: its generator takes 0 for a result, and fails on
``None``. So an episode that abstains raises `AbstainedError` from ``init`` or ``step``, after its
browser is given back: nothing is trained on it. `RepeatAbstained` makes a generator play it again.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any

try:
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ImportError as error:
    raise ImportError("the SkyRL adapter needs skyrl-gym: pip install 'rollwright[skyrl]'") from error

from envs.adapters.shared_host import shared_host
from envs.adapters.skyrl_options import read_options
from envs.host import MAX_SESSIONS
from envs.registry import seed_of
from envs.step_result import StepResult
from envs.sync import SyncWebEnv
from envs.types import BrowserError, TaskError

ENV_CLASS = "rollwright"
"""Name of the environment in SkyRL's registry and in the rows of a dataset."""

LEASE_DEADLINE = 10.0
"""Seconds that ``init`` waits for a free session. Meanwhile it holds a thread of SkyRL's pool,
which the steps of the others need."""


class AbstainedError(BrowserError):
    """An episode ended without a reward."""


class SkyRLWebEnv(BaseTextEnv):
    """An episode of a web task; a new environment plays the next one."""

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            env_config: Fields of `SkyRLOptions` for all episodes.
            extras: Fields of `SkyRLOptions` for this one: the columns of its row. Other columns are
                left alone.

        Raises:
            ConfigError: An option is wrong.
            TaskError: There is no such task or seed.
        """
        super().__init__()
        self.options = read_options(dict(env_config or {}), dict(extras or {}))
        self.task = self.options.choose()
        self.max_turns = self.task.horizon
        self.seed = seed_of(self.task, self.options.seed)
        self._env: SyncWebEnv | None = None
        self._last: StepResult | None = None
        self._errors, self._passed = 0, False

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Begin the episode.

        Args:
            prompt: Messages of the dataset's row; its system messages stand in the place of ours.

        Returns:
            The system messages and the first page as a user message, and an empty dictionary.

        Raises:
            CapacityError: All sessions are in use: give ``max_sessions`` for all trajectories that
                SkyRL plays at once, or use `RepeatAbstained`.
            AbstainedError: The page did not come up.
        """
        self.close()
        renderer, self.turns = self.options.renderer, 0
        self._errors, self._passed, self._last = 0, False, None
        host = shared_host(
            **renderer.pool_options, max_sessions=self.options.max_sessions, lease_deadline=LEASE_DEADLINE
        )
        self._env = host.open(self.task, seed=self.seed)
        try:
            step = self._env.reset()
        except BrowserError as error:
            self.close()
            raise AbstainedError(f"{self.options.task}: the first page did not come up: {error}") from error
        system = [message for message in prompt if message["role"] == "system"] or renderer.system_messages()
        return [*system, renderer.user_message(step)], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Carry out the model's turn.

        Returns:
            The next page as a user message (a text, or content parts with the screenshot), the
            reward (0.0 until the end) and ``done``. After the end, ``metadata`` holds ``stop`` and
            ``trajectory``.

        Raises:
            TaskError: No episode is going on.
            AbstainedError: The episode ended without a reward.
        """
        if self._env is None:
            raise TaskError("no episode: call init() first")
        self._last = step = self._env.step(action)
        self.turns += 1
        self._errors += bool(step.observation.error)
        metadata: dict[str, Any] = {}
        if step.done:
            assert self._env.trajectory is not None
            self._passed = self._env.trajectory.reward.passed
            metadata = {"stop": step.stop, "trajectory": self._env.trajectory.model_dump(mode="json")}
        if step.done and step.reward is None:
            self.close()
            raise AbstainedError(f"{self.options.task} (seed {self.seed}) ended without a reward: {step.abstained}")
        return BaseTextEnvStepOutput(
            observations=[self.options.renderer.user_message(step)],
            reward=step.reward,
            done=step.done,
            metadata=metadata,
        )

    def close(self) -> None:
        """Give the browser back. Closing twice is one close."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def get_metrics(self) -> dict[str, Any]:
        """Return the episode's numbers, with every key in every episode.

        ``success`` and ``reward`` are 0 without a reward, which ``ended`` and ``abstained`` tell.
        """
        last = self._last
        ended = last is not None and last.done
        reward = last.reward if last is not None and ended else None
        return {
            "success": self._passed,
            "reward": reward or 0.0,
            "steps": self.turns,
            "errors": self._errors,
            "ended": ended,
            "abstained": ended and reward is None,
        }

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        """Average the metrics of episodes; success and reward over those with a reward alone."""
        played = [episode for episode in metrics if episode]  # SkyRL gives empty ones for steps before the last
        graded = [episode for episode in played if episode["ended"] and not episode["abstained"]]
        averages = BaseTextEnv.aggregate_metrics(played)
        for name in ("success", "reward"):
            averages.pop(name, None)
        if graded:
            averages["success"] = sum(episode["success"] for episode in graded) / len(graded)
            averages["reward"] = sum(episode["reward"] for episode in graded) / len(graded)
        return {**averages, "episodes": len(played), "graded": len(graded)}


class RepeatAbstained:
    """Mix-in for SkyRL's generators: plays an abstained episode again, so that its group is whole.

    ::

        class WebGenerator(RepeatAbstained, SkyRLGymGenerator): ...

    It also plays ``max_sessions`` episodes at a time, so that none waits for a session in a thread
    that the others need.
    """

    max_sessions = MAX_SESSIONS
    attempts = 3
    """Attempts of an episode; the error of the last one is raised."""

    @cached_property
    def _places(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.max_sessions)

    async def agent_loop(
        self, prompt: Any, env_class: str, env_extras: dict[str, Any], *args: Any, **options: Any
    ) -> Any:
        """Play an episode with the generator's own loop."""
        for attempt in range(1, self.attempts + 1):
            extras = copy.copy(env_extras)
            try:
                async with self._places:
                    return await super().agent_loop(prompt, env_class, extras, *args, **options)  # type: ignore[misc]
            except AbstainedError:
                if attempt == self.attempts:
                    raise
        raise AssertionError("attempts is less than 1")


def register() -> None:
    """Register ``rollwright`` with SkyRL. A second call does nothing."""
    if ENV_CLASS not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id=ENV_CLASS, entry_point=f"{__name__}:SkyRLWebEnv")
