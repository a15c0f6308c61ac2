"""TRL: an environment for ``GRPOTrainer(environment_factory=…)`` (TRL 1.16).

::

    prompt = [{"role": "user", "content": "Use the browser to carry out the task.\\n"}]
    rows = [{"prompt": prompt, "task": "miniwob/click-test", "seed": seed} for seed in range(100)]
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-4B",
        train_dataset=Dataset.from_list(rows),
        environment_factory=TrlEnvironment,
    )

Each public method is a tool for the model. ``functools.partial(TrlEnvironment, screenshot=True)``
shows the screenshot, for vision-language models.

An episode that abstained has the reward ``None``: TRL leaves it out of its group's baseline and
gives it no advantage. An episode that the model leaves (it calls no further tool) is graded as it
stands.

Nothing of TRL is imported: the class is plain.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from envs.adapters.shared_host import shared_host
from envs.adapters.trl_tools import ShownPage, TrlTools
from envs.prompts import StepRenderer
from envs.step_result import StepResult
from envs.sync import SyncWebEnv
from envs.types import BrowserError, ConfigError, SiteError, TaskError, Terminate, Trajectory


class TrlEnvironment(TrlTools):
    """One episode at a time. TRL makes few of them and resets each many times."""

    def __init__(
        self,
        *,
        task: str = "",
        mode: Literal["text", "set_of_marks"] = "text",
        screenshot: bool = False,
        max_sessions: int = 64,
        **options: Any,
    ) -> None:
        """
        Args:
            task: Task of rows that name none.
            mode: Elements as text, or their numbers on the screenshot.
            screenshot: Show the screenshot beside the text.
            max_sessions: Episodes at a time in a process.
            options: The same as of `envs.EnvHost.open`, for all episodes.

        Raises:
            ConfigError: The mode shows no element numbers, which the tools take.
        """
        if mode not in ("text", "set_of_marks"):
            raise ConfigError(f"mode {mode!r}: the tools take element numbers; use text or set_of_marks")
        self._shown = StepRenderer(mode=mode, screenshot=screenshot, prompt="plain")
        self._pool = {"max_sessions": max_sessions, **self._shown.pool_options}
        self._task, self._options = task, options
        self._env: SyncWebEnv | None = None
        self._last: StepResult | None = None
        self._ended: Trajectory | None = None
        self._failed = ""

    @property
    def trajectory(self) -> Trajectory | None:
        """The record of the ended episode, for reward functions, which get ``environments``."""
        return self._ended

    @property
    def abstained(self) -> str | None:
        """Reason why the ended episode has no reward."""
        return self._failed or (None if self._last is None else self._last.abstained)

    def reset(self, *, task: str = "", seed: int | None = None, **row: Any) -> ShownPage:
        """Begin an episode of the row's task and return its first page.

        Raises:
            TaskError: There is no such task, or none is named.
        """
        self._close()
        self._last = self._ended = None
        self._failed = ""
        if not (task or self._task):
            raise TaskError("no task: give the data set a column `task`, or TrlEnvironment(task=…)")
        try:
            self._env = shared_host(**self._pool).open(task or self._task, seed=seed, **self._options)
            self._last = self._env.reset()
        except (BrowserError, SiteError) as error:
            self._failed = str(error)
            return f"The page did not open: {error}"
        return self._page(self._last)

    def get_reward(self) -> float | None:
        """Return the episode's reward; ``None`` if it abstained."""
        if self._env is not None and self._last is not None and not self._last.done:
            self._step(Terminate())
        return None if self._failed or self._last is None else self._last.reward

    def _act(self, **arguments: Any) -> ShownPage:
        if self._failed:
            return f"The episode is over without a reward: {self._failed}"
        if self._last is None:
            raise TaskError("no episode: call reset() first")
        if self._last.done:
            return "The episode is over."
        self._step(json.dumps(arguments, ensure_ascii=False))
        return self._page(self._last) if not self._failed else f"The episode is over without a reward: {self._failed}"

    def _step(self, action: Any) -> None:
        """Carry out an action; at the end, give the browser back."""
        assert self._env is not None
        try:
            self._last = self._env.step(action)
        except (BrowserError, SiteError) as error:
            self._failed = str(error)
        if self._failed or (self._last is not None and self._last.done):
            self._ended = self._env.trajectory
            self._close()

    def _page(self, step: StepResult) -> ShownPage:
        text, image = self._shown.text(step), self._shown.image(step)
        return text if image is None else [{"type": "image", "image": image}, {"type": "text", "text": text}]

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()
