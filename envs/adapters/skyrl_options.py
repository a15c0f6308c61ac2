"""Options of the SkyRL environment."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

from pydantic import Field, ValidationError

from envs.host import MAX_SESSIONS
from envs.prompts import StepRenderer
from envs.prompts.system_turn import PromptName
from envs.prompts.user_turn import ObservationMode
from envs.registry import choose_task
from envs.tasks import load_tasks
from envs.types import ConfigError, Record, WebTask


class SkyRLOptions(Record):
    """Options of an environment, from ``env_config`` and, over it, from ``extras``."""

    task: str = Field(description="Id of a task of `envs.list_tasks` or of the task file.")
    seed: int | None = Field(None, description="Seed of the page; the task's first one if not given.")
    max_turns: int | None = Field(None, ge=1, description="Maximum number of steps, under the task's own.")
    instruction: str | None = None
    tasks: str | None = Field(None, description="Path of a task file.")
    mode: ObservationMode = "text"
    screenshot: bool = False
    prompt: PromptName = "vanilla"
    max_sessions: int = Field(MAX_SESSIONS, ge=1, description="Episodes that are played at once in this process.")

    @cached_property
    def renderer(self) -> StepRenderer:
        """Writes what a step shows."""
        return StepRenderer(mode=self.mode, screenshot=self.screenshot, prompt=self.prompt)

    def choose(self) -> WebTask:
        """Return the task, with the horizon of ``max_turns`` if that is less.

        Raises:
            TaskError: There is no such task or seed.
        """
        known = _task_file(self.tasks).get(self.task, self.task) if self.tasks else self.task
        task = choose_task(known, seed=self.seed, instruction=self.instruction)
        return choose_task(task, horizon=min(task.horizon, self.max_turns or task.horizon))


def read_options(env_config: dict[str, Any], extras: dict[str, Any]) -> SkyRLOptions:
    """Join an environment's options.

    Raises:
        ConfigError: One is wrong, or ``env_config`` has an unknown one.
    """
    fields = SkyRLOptions.model_fields
    of_row = {name: value for name, value in extras.items() if name in fields and value is not None}
    try:
        return SkyRLOptions.model_validate({**env_config, **of_row})
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise ConfigError(f"rollwright: {'; '.join(lines)}; options are {', '.join(fields)}") from None


@cache
def _task_file(path: str) -> dict[str, WebTask]:
    return {task.task_id: task for task in load_tasks(path)}
