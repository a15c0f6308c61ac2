"""CUBE tasks (cube-standard): an episode of ours behind CUBE's `Task` and `Tool`.

::

    config = CubeTaskConfig(metadata=TaskMetadata(id="miniwob/click-test"), seed=7)
    task = config.make()
    observation, info = task.reset()
    out = task.step(Action(name="browser", arguments={"action": "click", "element": 1}))

``metadata.id`` is an id of `envs.list_tasks`. The one action ``browser`` has the schema of
`StepRenderer.tools`; ``final_step`` ends the episode. An action that was not carried out sets the
observation's ``error``, and the page tells why. At the end ``info`` has ``stop`` and
``trajectory``. An episode that abstained has no reward: `evaluate`, and so `Task.step`, raises
`BrowserError`. CUBE needs Python 3.12, where `envs` runs too: there call
`envs.adapters.close_hosts` at the end, since 3.12 starts no thread in an interpreter that ends.
"""

from __future__ import annotations

from typing import Any

from envs.adapters.shared_host import shared_host
from envs.prompts import ObservationMode, StepRenderer
from envs.step_result import StepResult
from envs.sync import SyncWebEnv
from envs.types import BrowserError, RollwrightError, TaskError, Trajectory, WebTask

try:
    from cube.core import Action, ActionSchema, AgentStop, ImageContent, Observation, StepError, TextContent
    from cube.task import RuntimeContext, Task, TaskConfig, TaskMetadata
    from cube.tool import Tool, ToolConfig
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("envs.adapters.cube needs cube-standard: scripts/setup_frameworks cube") from error


class CubeToolConfig(ToolConfig):
    """Options of a `CubeTool`."""

    task: str | WebTask = ""
    """The same as of `envs.open_env`; `CubeTaskConfig` fills it in, as it does the seed."""
    seed: int | None = None
    mode: ObservationMode = "text"
    screenshot: bool = False
    max_sessions: int = 16
    """Maximum number of pages of this process, of all tasks together."""

    def make(self, container: Any = None) -> CubeTool:
        """Return the tool; its page opens at the first reset."""
        return CubeTool(self)


class CubeTool(Tool):
    """A page with a task, on the browsers of the process."""

    def __init__(self, config: CubeToolConfig) -> None:
        self.config = config
        self.renderer = StepRenderer(mode=config.mode, screenshot=config.screenshot, prompt="tools")
        self.last: StepResult | None = None
        """Result of the last reset or step; ``None`` before the first reset."""
        self._env: SyncWebEnv | None = None

    @property
    def trajectory(self) -> Trajectory | None:
        """The record of the episode that ended; ``None`` before its end."""
        return None if self._env is None else self._env.trajectory

    @property
    def action_set(self) -> list[Any]:
        """The action ``browser``, and CUBE's own ``final_step``."""
        (tool,) = self.renderer.tools()
        return [ActionSchema(**tool["function"]), *super().action_set]

    def reset(self) -> None:
        """Begin an episode.

        Raises:
            BrowserError: No page could be opened.
        """
        if self._env is None:
            host = shared_host(**self.renderer.pool_options, max_sessions=self.config.max_sessions)
            self._env = host.open(self.config.task, seed=self.config.seed)
        self.last = self._env.reset()

    def execute_action(self, action: Action) -> Observation:
        """Carry out an action, and return the page.

        Raises:
            AgentStop: The action was ``final_step``.
            ValueError: There is no such action.
        """
        if action.name == "final_step":
            if self.last is not None and not self.last.done:
                self._step({"type": "terminate", "status": "success"})
            raise AgentStop(self.observation(action.id))
        if action.name != "browser":
            raise ValueError(f"Action {action.name} does not exist in CubeTool: there are browser, final_step.")
        try:
            self._step(action.arguments)
        except RollwrightError as error:
            return StepError.from_exception(error).to_observation()
        return self.observation(action.id)

    def observation(self, call: str | None = None) -> Observation:
        """Return the page as CUBE's content: the picture, where one is shown, and the text."""
        assert self.last is not None, "reset() comes first"
        contents: list[Any] = [TextContent(data=self.renderer.text(self.last), tool_call_id=call)]
        image = self.renderer.image(self.last)
        if image is not None:
            contents.insert(0, ImageContent(data=image, tool_call_id=call))
        reason = self.last.observation.error
        error = reason and StepError(error_type="ActionError", exception_str=reason, stack_trace="")
        return Observation(contents=contents, error=error or None)

    def close(self) -> None:
        """Give the browser back."""
        if self._env is not None:
            self._env.close()

    def _step(self, action: dict[str, Any]) -> None:
        if self._env is None:
            raise TaskError("no episode: call reset() first")
        self.last = self._env.step(action)


class CubeTask(Task[TaskMetadata, CubeTool]):
    """One episode at a time of one of our tasks."""

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; return the first page.

        Raises:
            BrowserError: No page could be opened.
        """
        self.tool.reset()
        return self.tool.observation(), {"task_id": self.metadata.id}

    def finished(self, obs: Observation | None = None) -> bool:
        """Return True if the episode is over."""
        return self.tool.last is not None and self.tool.last.done

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        """Return the reward, which is 0.0 before the end, and the record of an ended episode.

        Raises:
            BrowserError: The episode abstained.
        """
        last, trajectory = self.tool.last, self.tool.trajectory
        if last is None or not last.done or trajectory is None:
            return 0.0, {}
        if last.reward is None:
            raise BrowserError(f"the episode has no reward: {last.abstained}")
        return last.reward, {"stop": str(last.stop), "trajectory": trajectory.model_dump(mode="json")}


class CubeTaskConfig(TaskConfig[TaskMetadata]):
    """A task and seed, of which a worker makes a `CubeTask`."""

    def make(self, runtime_context: RuntimeContext | None = None) -> CubeTask:
        """Return the task; nothing is opened before its reset."""
        given = self.tool_config or CubeToolConfig()
        tool = given.model_copy(update={"task": given.task or self.metadata.id, "seed": self.seed})
        return CubeTask(metadata=self.metadata, tool_config=tool, runtime_context=runtime_context)
