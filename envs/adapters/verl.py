"""verl: the tool ``step_browser`` for its ``ToolAgentLoop`` (verl 0.9).

Set ``actor_rollout_ref.rollout.multi_turn.tool_config_path`` to
``deployments/frameworks/verl_tool.yaml``, and give each row of the data set its task::

    {"prompt": [{"role": "user", "content": "Use step_browser to carry out the task it shows."}],
     "agent_name": "tool_agent", "data_source": "rollwright",
     "reward_model": {"ground_truth": ""}, "extra_info": {"need_tools_kwargs": True, "tools_kwargs":
     {"step_browser": {"create_kwargs": {"task": "miniwob/click-test", "seed": 7}}}}}

An episode's first call shows its first page and does nothing else. `compute_score` is the reward
function.

verl makes and releases a tool for every single call, so the session is the trajectory's
(``agent_data.request_id``). It is closed at the episode's end, or when its lease ends.

An episode that abstained has the reward ``None`` for its last call, which verl leaves out, and
``abstained`` in the trajectory's ``extra_fields``. A tool cannot take a trajectory out of the loss:
the agent loop of `envs.adapters.verl_loop` does.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakValueDictionary

from pydantic import Field

from envs.adapters.shared_host import on_host, shared_host
from envs.adapters.verl_schema import NAME, action_text, flat_schema
from envs.host import EnvHost
from envs.prompts import StepRenderer
from envs.server import SessionError, SessionTable
from envs.step_result import StepResult
from envs.sync import SyncEnvHost
from envs.types import BrowserError, CapacityError, ConfigError, TaskError

try:
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
except ImportError as error:
    raise ConfigError("verl is missing: it needs an environment of its own (pip install 'verl==0.9.1')") from error

WAIT = 0.2
"""Seconds between two attempts to open a session while all places are taken."""


class VerlToolConfig(StepRenderer):
    """The ``config`` of the tool in verl's YAML file."""

    type: Literal["native"] = "native"
    max_parallel: int = Field(16, ge=1, description="Calls that act at a time in a worker; others wait.")
    max_sessions: int = Field(64, ge=1, description="Episodes at a time in a worker; others wait.")
    lease_seconds: float = Field(600.0, gt=0, description="A session is closed so long after its last call.")


@dataclass
class VerlCall:
    """A tool instance: what verl makes for each call."""

    settings: dict[str, Any]
    session_id: str = ""
    reward: float = 0.0
    own: bool = True
    """The session is this instance's, since no trajectory was named."""


class BrowserTool(BaseTool):  # type: ignore[misc]
    """Does one thing in the browser of the trajectory that calls it."""

    def __init__(self, config: dict[str, Any], tool_schema: Any = None) -> None:
        """
        Args:
            config: Fields of `VerlToolConfig`.
            tool_schema: Schema that the model is shown; that of the mode if not given.
        """
        self.settings = VerlToolConfig(**config)
        self._calls: dict[str, VerlCall] = {}
        self._table: SessionTable | None = None
        self._places = asyncio.Semaphore(self.settings.max_parallel)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        super().__init__(config, tool_schema)

    def get_openai_tool_schema(self) -> Any:
        """Return the schema of the mode's actions, with numbers ``x`` and ``y`` for points."""
        return OpenAIFunctionToolSchema.model_validate(flat_schema(self.settings))

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, Any]:
        """Remember the task of a call; the session is the trajectory's and opens with `execute`.

        Args:
            kwargs: ``create_kwargs`` with ``task`` and options of `envs.EnvHost.open`.
        """
        instance_id = instance_id or uuid.uuid4().hex
        self._calls[instance_id] = VerlCall({**kwargs.get("create_kwargs", {})}, instance_id)
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: Any, **kwargs: Any
    ) -> tuple[Any, float | None, dict[str, Any]]:
        """Carry out an action and show the page; the first call of an episode shows it alone.

        Args:
            parameters: Arguments of the call, as the model wrote them.
            kwargs: ``agent_data`` of the trajectory; without one the session is the instance's.

        Returns:
            What the model is shown; the reward, which is 0 before the episode's end and ``None`` if
            it abstained; and, at the end, ``abstained`` and ``trajectory``.

        Raises:
            TaskError, ConfigError: No task was given, or it is unknown; verl shows the model the
                text.
        """
        call, data = self._calls[instance_id], kwargs.get("agent_data")
        if data is not None:
            call.session_id, call.own = data.request_id, False
        try:
            host = await self._host()
            step, trajectory = await on_host(host, self._step, host.host, call, parameters)
        except SessionError as error:
            return ToolResponse(text=f"The episode is over: {error}"), 0.0, {}
        except BrowserError as error:
            ending: dict[str, Any] = {"abstained": str(error), "trajectory": None}
            response = ToolResponse(text=f"The episode is over without a reward: {error}")
        else:
            image = self.settings.image(step)
            response = ToolResponse(text=self.settings.text(step), **({} if image is None else {"image": [image]}))
            if not step.done:
                return response, 0.0, {}
            ending = {"abstained": step.abstained or "", "trajectory": trajectory}
            call.reward = step.reward or 0.0
        if data is not None:
            data.extra_fields.update(ending)
        return response, None if ending["abstained"] else call.reward, ending

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Return the reward of the instance's action; 0 before the episode's end."""
        return self._calls[instance_id].reward

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget a call; a session that is a trajectory's stays open."""
        call = self._calls.pop(instance_id, None)
        if call is not None and call.own and self._table is not None and call.session_id in self._table.sessions:
            await on_host(await self._host(), self._table.close, call.session_id)

    async def _host(self) -> SyncEnvHost:
        options = {"max_sessions": self.settings.max_sessions, **self.settings.pool_options}
        return await asyncio.to_thread(shared_host, **options)

    async def _step(self, host: EnvHost, call: VerlCall, parameters: Any) -> tuple[StepResult, dict[str, Any] | None]:
        """Carry out a call, in the host's event loop; the calls of one trajectory in turn."""
        if self._table is None or self._table.host is not host:
            self._table = SessionTable(host, lease_seconds=self.settings.lease_seconds)
            await self._table.__aenter__()  # the host's loop ends it
        table, session_id = self._table, call.session_id
        async with self._turns.setdefault(session_id, asyncio.Lock()):
            opened = session_id not in table.sessions
            if opened:
                await self._open(table, call)
            async with self._places:
                step = (
                    await table.reset(session_id) if opened else await table.step(session_id, action_text(parameters))
                )
            if not step.done:
                return step, None
            trajectory = table.sessions[session_id].env.trajectory
            await table.close(session_id)
        return step, None if trajectory is None else trajectory.model_dump(mode="json")

    async def _open(self, table: SessionTable, call: VerlCall) -> None:
        """Open a call's session, as soon as there is a place."""
        options = dict(call.settings)
        if "task" not in options:
            raise TaskError(f"no task: the row needs tools_kwargs.{NAME}.create_kwargs.task")
        end = time.monotonic() + self.settings.lease_seconds
        while True:
            try:
                await table.open(options.pop("task"), session_id=call.session_id, **options)
                return
            except CapacityError:
                if time.monotonic() > end:
                    raise
                options = dict(call.settings)
                await asyncio.sleep(WAIT)


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, float]:
    """Return the reward of a trajectory for verl's ``custom_reward_function``.

    One that abstained has the score 0, for verl needs a number, and the metric ``abstained``.
    """
    extra = extra_info or {}
    return {"score": float(sum(extra.get("tool_rewards", []))), "abstained": float(bool(extra.get("abstained")))}
