"""verifiers 0.4: a taskset of our tasks, and a harness that plays their episodes.

::

    vf-eval rollwright_web --env.taskset.tasks '["miniwob/click-test"]' --env.taskset.seeds '[7]' \\
        --env.agent.runtime.type subprocess --no-push -m MODEL --client.base-url http://127.0.0.1:8000/v1

verifiers finds an environment by the name of a module that has no parent:
`scripts/setup_frameworks` makes ``rollwright_web``, which imports all that is public here.

The model's turn is the text of an action; the page is the next user message. The episode is played
in verifiers' own process, on browsers that all rollouts share. One that abstained, or that could
not be opened, is an error of its trace, which has no reward; one that verifiers ended early has the
metric ``abstained`` 1. ``trace.info["trajectory"]`` is our record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from envs.adapters.shared_host import on_host, shared_host
from envs.prompts import ObservationMode, PromptName, StepRenderer
from envs.registry import choose_task, seed_of
from envs.types import BrowserError, ConfigError, WebTask

try:
    import openai
    import verifiers.v1 as vf
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "envs.adapters.verifiers_v1 needs verifiers 0.4: scripts/setup_frameworks verifiers_v1"
    ) from error

__all__ = ["BrowserHarness", "BrowserTaskset"]


class BrowserTaskData(vf.TaskData):
    """A task of ours with a seed."""

    task: str | WebTask
    seed: int


class BrowserTask(vf.Task[BrowserTaskData]):
    """Tells the reward of the episode that was played."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def page_reward(self, trace: vf.Trace) -> float:
        """Return the episode's reward; 0.0 if it has none, as ``abstained`` says."""
        return float(trace.info.get("page_reward", 0.0))

    @vf.metric  # type: ignore[untyped-decorator]
    async def abstained(self, trace: vf.Trace) -> float:
        """Return 1.0 for an episode that was not played to its end."""
        return float("page_reward" not in trace.info)

    @vf.metric  # type: ignore[untyped-decorator]
    async def steps(self, trace: vf.Trace) -> float:
        """Return the number of steps of the episode."""
        return float(trace.info.get("steps", 0))


class BrowserTasksetConfig(vf.TasksetConfig):
    """The tasks that are played, under ``--env.taskset``."""

    tasks: list[str | WebTask] = Field(default_factory=list)
    """Ids of `envs.list_tasks`, or rows of a task file."""
    seeds: list[int] | None = None
    """Seeds that each task is played with; the first training seed of each if not given."""


class BrowserTaskset(vf.Taskset[BrowserTask, BrowserTasksetConfig]):
    """Each task with each seed."""

    def load(self) -> Iterator[BrowserTask]:
        """Yield the tasks.

        Raises:
            ConfigError: There is no task.
            TaskError: There is no such task or seed.
        """
        if not self.config.tasks:
            raise ConfigError("tasks: give at least one id of envs.list_tasks(), as '[\"miniwob/click-test\"]'")
        for task in self.config.tasks:
            for given in [None] if self.config.seeds is None else self.config.seeds:
                chosen = choose_task(task, seed=given)
                seed = seed_of(chosen, given)
                name = f"{chosen.task_id} seed {seed}"  # verifiers asks for a prompt; the page takes its place
                data = BrowserTaskData(id=name, name=name, prompt=name, task=task, seed=seed)
                yield BrowserTask(data, self.config.task)


class BrowserHarnessConfig(vf.HarnessConfig):
    """Form of the pages, under ``--env.agent.harness``; fields of `envs.StepRenderer`."""

    mode: ObservationMode = "text"
    screenshot: bool = False
    prompt: PromptName = "vanilla"
    max_sessions: int = 32
    """Maximum number of pages at a time in one process."""


class BrowserHarness(vf.Harness[BrowserHarnessConfig]):
    """Plays an episode in this process; each turn is a call of verifiers' endpoint."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: BrowserTaskData,
        **_: Any,
    ) -> vf.ProgramResult:
        """Play the episode, until its end or until verifiers ends it.

        Raises:
            BrowserError: No page could be opened, or the episode abstained.
        """
        given = self.config
        renderer = StepRenderer(mode=given.mode, screenshot=given.screenshot, prompt=given.prompt)
        options = {**renderer.pool_options, "max_sessions": given.max_sessions}
        host = await asyncio.to_thread(lambda: shared_host(**options))
        env = host.host.open(data.task, seed=data.seed)
        client = openai.AsyncOpenAI(base_url=endpoint, api_key=secret)
        try:
            await on_host(host, env.__aenter__)
            step = await on_host(host, env.reset)
            messages: list[Any] = [*renderer.system_messages(), renderer.user_message(step)]
            while not step.done:
                answer = await client.chat.completions.create(model=ctx.model, messages=messages)
                text = answer.choices[0].message.content or ""
                step = await on_host(host, env.step, text)
                messages += [{"role": "assistant", "content": text}, renderer.user_message(step)]
            assert env.trajectory is not None
            trace.info |= {"trajectory": env.trajectory.model_dump(mode="json"), "steps": len(env.trajectory.steps)}
            if step.abstained is not None:
                raise BrowserError(step.abstained)
            trace.info["page_reward"] = step.reward
        except openai.APIStatusError:
            if trace.stop_condition is None:
                raise  # else verifiers refused a turn, as of its max_turns
        finally:
            await client.close()
            await on_host(host, env.close)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
