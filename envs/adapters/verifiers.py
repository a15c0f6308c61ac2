"""verifiers environment: ``vf-eval`` and trainers on verifiers' `MultiTurnEnv` play our tasks.

::

    vf-eval envs.adapters.verifiers -a '{"tasks": ["miniwob/click-test"], "seeds": [7, 8]}' \\
        -m MODEL -b http://127.0.0.1:8000/v1 -n 2 -r 4

    env = load_environment(["bundled/shop-open"], mode="set_of_marks", prompt="complete")

The model's turn is the text of an action; the page is the next user message. An episode that
abstained, or that could not be opened, is a `vf.InfraError` in ``state["error"]``, which
``max_retries`` plays again, with the metric ``abstained`` 1: leave rollouts with an error out of
training. ``info["trajectory"]`` is our record. verifiers 0.3.1 has this interface as
``verifiers.legacy``; 0.4 has another one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from envs.adapters.shared_host import on_host, shared_host
from envs.env import WebEnv
from envs.prompts import ObservationMode, PromptName, StepRenderer
from envs.registry import choose_task, seed_of
from envs.step_result import StepResult
from envs.sync import SyncEnvHost
from envs.types import BrowserError, ConfigError, WebTask

try:
    import verifiers.legacy as vf

    import datasets as hf_datasets
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "envs.adapters.verifiers needs verifiers 0.3: scripts/setup_frameworks verifiers, or pip install verifiers==0.3.1"
    ) from error

RESULT = "page_result"
"""Key of a state with the reward and the steps of an ended episode."""

MAX_SESSIONS = 32
"""Pages at a time in one process: ``vf-eval``'s own default of rollouts at a time."""


class VerifiersEnv(vf.MultiTurnEnv):
    """Plays an episode in each rollout, on browsers that all rollouts of the process share."""

    def __init__(
        self, rows: Sequence[tuple[str | WebTask, int]], renderer: StepRenderer, max_sessions: int, **options: Any
    ) -> None:
        """
        Args:
            rows: Task, or its id, and seed of each example.
            renderer: Writer of the pages and of the system turn.
            max_sessions: Maximum number of pages at a time in one process.
            options: Arguments of `vf.MultiTurnEnv`.
        """
        self._renderer, self._max_sessions = renderer, max_sessions
        self._host: SyncEnvHost | None = None
        self._playing: dict[str, WebEnv] = {}
        data = [_row(task, seed) for task, seed in rows]
        rubric = vf.Rubric(funcs=[page_reward])
        for metric in (abstained, steps):
            rubric.add_metric(metric)
        super().__init__(dataset=lambda: hf_datasets.Dataset.from_list(data), rubric=rubric, **options)

    async def setup_state(self, state: Any) -> Any:
        """Open the page, which replaces the example's prompt.

        Raises:
            vf.InfraError: No page could be opened.
        """
        if self._host is None:
            options = {**self._renderer.pool_options, "max_sessions": self._max_sessions}
            self._host = await asyncio.to_thread(lambda: shared_host(**options))
        info = state["info"]
        task = info["web_task"] and WebTask.model_validate(info["web_task"])
        env = self._host.host.open(task or info["task_id"], seed=info["seed"])
        try:
            await on_host(self._host, env.__aenter__)
            self._playing[state["trajectory_id"]] = env
            step = await on_host(self._host, env.reset)
        except BrowserError as error:
            raise vf.InfraError(str(error)) from error
        state["prompt"] = [*self._renderer.system_messages(), self._renderer.user_message(step)]
        return state

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        """Do the action of the model's turn, and return the page.

        Raises:
            vf.InfraError: The episode abstained.
        """
        env = self._playing[state["trajectory_id"]]
        assert self._host is not None
        step: StepResult = await on_host(self._host, env.step, _text(messages[-1]["content"]))
        response = [self._renderer.user_message(step)]
        if step.done:
            assert env.trajectory is not None
            state[RESULT] = {"reward": step.reward, "steps": len(env.trajectory.steps)}
            state["info"] = {**state["info"], "trajectory": env.trajectory.model_dump(mode="json")}
            if step.abstained is not None:
                raise vf.InfraError(step.abstained)
            state["final_env_response"] = response
        return response

    @vf.cleanup  # type: ignore[untyped-decorator]
    async def close_page(self, state: Any) -> None:
        """Give the browser back."""
        env = self._playing.pop(state["trajectory_id"], None)
        if env is not None:
            assert self._host is not None
            await on_host(self._host, env.close)


def load_environment(
    tasks: Sequence[str | WebTask],
    seeds: Sequence[int] | None = None,
    *,
    mode: ObservationMode = "text",
    screenshot: bool = False,
    prompt: PromptName = "vanilla",
    max_sessions: int = MAX_SESSIONS,
    **options: Any,
) -> VerifiersEnv:
    """Return the environment; ``vf-eval`` calls it with ``--env-args``.

    Args:
        tasks: Ids of `envs.list_tasks`, or tasks of a file.
        seeds: Seeds that each task is played with; the first training seed of each if not given.
        mode: The same as of `envs.StepRenderer`, as are ``screenshot`` and ``prompt``.
        max_sessions: Maximum number of pages at a time in one process.
        options: Arguments of `vf.MultiTurnEnv`.

    Raises:
        ConfigError: There is no task.
        TaskError: There is no such task or seed.
    """
    if not tasks:
        raise ConfigError('tasks: give at least one id of envs.list_tasks(), as {"tasks": ["miniwob/click-test"]}')
    given = [None] if seeds is None else seeds
    rows = [(task, seed_of(choose_task(task, seed=seed), seed)) for task in tasks for seed in given]
    renderer = StepRenderer(mode=mode, screenshot=screenshot, prompt=prompt)
    return VerifiersEnv(rows, renderer, max_sessions, **options)


def _row(task: str | WebTask, seed: int) -> dict[str, Any]:
    """Return the example of a task; its prompt is replaced by the page when it is played."""
    whole = None if isinstance(task, str) else task.model_dump(mode="json")
    task_id = task if isinstance(task, str) else task.task_id
    info = {"task_id": task_id, "seed": seed, "web_task": whole}
    return {"prompt": [{"role": "user", "content": task_id}], "info": json.dumps(info)}


async def page_reward(state: Any) -> float:
    """Return the episode's reward; 0.0 for a rollout that has none, as ``abstained`` says."""
    reward = (state.get(RESULT) or {}).get("reward")
    return 0.0 if reward is None else float(reward)


async def abstained(state: Any) -> float:
    """Return 1.0 for a rollout with an error, whose reward means nothing."""
    return float(state.get("error") is not None)


async def steps(state: Any) -> float:
    """Return the number of steps of the episode."""
    return float((state.get(RESULT) or {}).get("steps", 0))


def _text(content: Any) -> str:
    """Return the text of a message, of which the content may be in parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or () if part["type"] == "text")
