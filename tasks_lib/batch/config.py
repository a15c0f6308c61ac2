"""Configuration of a batch: tasks, agent, endpoint and limits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from envs.chat import SpendingLimits
from envs.ends import REPEATS
from envs.prompts import ObservationMode, StepRenderer
from envs.rewards.judge import JudgeConfig
from envs.types import ConfigError
from tasks_lib.config import RUN_NAME, EndpointConfig, Flag, TasksConfig, describe_split, resolve_path
from training.settings import Settings


class AgentEndpointConfig(EndpointConfig):
    """An OpenAI-compatible endpoint whose model is the agent."""

    api: Literal["chat", "responses"] = Field("chat", description="API of the endpoint: /chat/completions, /responses.")
    api_key_file: str = Field("", description="File with the key, in place of a variable.")
    max_tokens: int = Field(4096, ge=16, le=200_000, description="Longest answer, thoughts included.")
    deadline: float = Field(600.0, gt=0, le=86_400, description="Seconds for one turn, with retries.")
    requests_per_minute: float | None = Field(None, gt=0, description="Rate of all requests; null: no limit.")
    budget_tokens: int | None = Field(None, ge=0, description="Tokens of a whole batch; null: no limit.")
    prompt_price: float = Field(0.0, ge=0, le=1e6, description="Dollars per million prompt tokens.")
    cached_price: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="Dollars per million prompt tokens from the endpoint's cache; null: prompt_price.",
    )
    answer_price: float = Field(0.0, ge=0, le=1e6, description="Dollars per million answer tokens.")

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key and self.api_key_file:
            raise ValueError("api_key_file: api_key names a variable with the key; give one of the two")
        return self

    @property
    def limits(self) -> SpendingLimits:
        """Budget of requests and tokens."""
        return SpendingLimits(self.budget_requests, self.budget_tokens)

    def read_key(self) -> str:
        """Read the key from its variable or file; empty if neither is named.

        Raises:
            ConfigError: there is none, or it cannot be sent in a header.
        """
        if not self.api_key_file:
            return super().read_key()
        path = resolve_path(self.api_key_file)
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"endpoint.api_key_file: {path} cannot be read: {error}") from error
        if not (key and key.isascii() and key.isprintable()):
            raise ConfigError(f"endpoint.api_key_file: {path} holds no key: one line of printable ASCII is expected")
        return key

    def dollars(self, prompt: int, cached: int, answer: int) -> float:
        """Return the price of tokens; ``cached`` of the ``prompt`` tokens came from the cache."""
        of_cached = self.prompt_price if self.cached_price is None else self.cached_price
        return ((prompt - cached) * self.prompt_price + cached * of_cached + answer * self.answer_price) / 1e6


class BatchConfig(Settings):
    """Tasks that an agent plays, each in an episode of its own."""

    flow: ClassVar[str] = "flows.batch"
    bare: ClassVar[bool] = False
    FLAGS: ClassVar[Mapping[str, Flag]] = {
        "--tasks": Flag("tasks.file", "value", "FILE", "task file, folder or glob"),
        "--task-ids": Flag("task_ids", "list", "ID", "ids of tasks of the file"),
        "--sites": Flag("sites", "list", "SITE", "sites of tasks of the file"),
        "--agent": Flag("agent", "value", "KIND", "regular (text) or tool (function calling)"),
        "--vlm": Flag("vlm", "switch", "", "show the screenshot"),
        "--max-concurrent": Flag("max_concurrent", "value", "N", "episodes at once"),
        "--max-concurrent-launch": Flag("max_concurrent_launch", "value", "N", "pages that open at once"),
        "--retry-count": Flag("retry_count", "value", "N", "further attempts of an episode without a reward"),
        "--only-failed": Flag("only_failed", "switch", "", "play tasks again whose result has an error"),
    }

    run_id: str = Field("", pattern=RUN_NAME, description="Folder of the batch; empty: batch-TIME.")
    root: str = Field("runs", description="Folder of all runs, on shared storage.")
    tasks: TasksConfig = TasksConfig()
    task_ids: list[str] = Field([], description="Tasks of the file to play; empty: all.")
    sites: list[str] = Field([], description="Sites whose tasks are played; empty: all.")
    split: Literal["held_out", "validation", "train", "demo"] = Field(
        "held_out", description="Split of the page seeds."
    )
    seeds_per_task: int = Field(
        1, ge=1, le=10_000, description="Page seeds of each task, the first of the split, or all."
    )
    endpoint: AgentEndpointConfig | None = Field(None, description="Model that plays.")
    function: str = Field(
        "",
        examples=["my_agents:act"],
        description="Agent in place of an endpoint: module:function, called with an observation (docs/batch.md).",
    )
    agent: Literal["regular", "tool"] = Field(
        "regular", description="Form of a model's answers: text with an action at its end, or a function call."
    )
    prompt: Literal["vanilla", "complete"] = Field("vanilla", description="System turn of the regular agent.")
    observation: ObservationMode = Field("text", description="How a page is shown.")
    vlm: bool = Field(False, description="Show the screenshot beside the text.")
    rounds: int = Field(4, ge=1, le=1000, description="Pages in a request, the present one included.")
    max_concurrent: int = Field(3, ge=1, le=512, description="Episodes at once.")
    max_concurrent_launch: int = Field(4, ge=1, le=512, description="Pages that open at once.")
    retry_count: int = Field(2, ge=0, le=20, description="Further attempts of an episode without a reward.")
    only_failed: bool = Field(False, description="Also play tasks again whose result has an error.")
    episode_deadline: float = Field(1800.0, gt=0, le=86_400, description="Seconds for one episode.")
    horizon: int | None = Field(None, ge=1, le=10_000, description="Most steps of an episode; null: the task's.")
    repeats: int = Field(REPEATS, ge=0, le=100, description="Equal steps in a row that end an episode; 0: off.")
    stop_on_invalid: bool = Field(
        False, description="An invalid action ends the episode; false: show the error and go on."
    )
    judge: JudgeConfig | None = Field(None, description="LLM judge, for tasks that need one (docs/rewards.md).")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.task_ids and self.sites:
            raise ValueError("sites: task_ids names the tasks already; give one of the two")
        if self.repeats == 1:
            raise ValueError("repeats: one step is no repetition; allowed: 0, or 2 and more")
        if not self.run_id:
            object.__setattr__(self, "run_id", f"batch-{datetime.now():%Y%m%d-%H%M%S}")
        return self

    def check_agent(self) -> None:
        """Raise ``ConfigError`` unless there is exactly one agent."""
        if (self.endpoint is None) == (not self.function):
            raise ConfigError(
                "endpoint: give endpoint.address and endpoint.model, or a function, one of the two; a checkpoint is "
                "evaluated by: python -m flows.evaluate --set policy.checkpoint=FOLDER"
            )

    @property
    def run_dir(self) -> Path:
        """Folder of the batch."""
        return Path(self.root).expanduser().resolve() / self.run_id

    @property
    def agent_name(self) -> str:
        """Name of the model or function that plays."""
        return self.function or (self.endpoint.model if self.endpoint is not None else "")

    @property
    def renderer(self) -> StepRenderer:
        """Renderer of what the agent reads."""
        prompt = "tools" if self.agent == "tool" else self.prompt
        return StepRenderer(mode=self.observation, screenshot=self.vlm, prompt=prompt)

    def plan(self) -> str:
        """Describe what this configuration would do, in a sentence."""
        return (
            f"would play {describe_split(self.split)} episodes of {self.tasks.file} with {self.agent_name}, "
            f"{self.max_concurrent} at once, into {self.run_dir}"
        )
