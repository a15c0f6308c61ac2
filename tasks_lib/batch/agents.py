"""Agents of a batch: a model behind an endpoint, or a Python callable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from envs import StepResult
from envs.chat import (
    Attempts,
    Budget,
    CallError,
    CallFailed,
    ChatEndpoint,
    Ledger,
    ModelAnswer,
    read_completion,
    read_response,
)
from envs.types import ConfigError, EngineError, Extensions, PolicyError, StopReason
from tasks_lib.batch.config import AgentEndpointConfig, BatchConfig
from tasks_lib.batch.conversation import Conversation, Message, chat_request, responses_request
from tasks_lib.batch.results import Spending

SPENT = "endpoint_spent.sqlite"
"""File in a batch's folder that counts the requests sent."""
WRONG_ENDPOINT = (401, 403, 404)
"""HTTP statuses that every further request would get too."""

AGENTS: Extensions[Callable[..., Any]] = Extensions("agent", "rollwright.agents", {})
"""Functions and classes of users: ``module:function``, or an installed entry point."""


@dataclass(eq=False)
class AgentFailed(Exception):
    """An agent gave no turn, so that its episode abstains."""

    stop: StopReason
    message: str
    again: bool
    """True if another attempt may succeed."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Decision:
    """A turn of an agent."""

    action: Any
    """An action, dictionary or text, as `envs.WebEnv.step` takes it."""
    response: str
    """The turn as text."""


class Agent(Protocol):
    """Plays one attempt."""

    async def decide(self, step: StepResult) -> Decision:
        """Return the next turn.

        Raises:
            AgentFailed: there is none; the episode abstains.
            PolicyError, EngineError: no episode can go on.
        """


@asynccontextmanager
async def opened_agents(config: BatchConfig, folder: Path) -> AsyncIterator[Callable[[Spending], Agent]]:
    """Yield a function that makes an agent for each attempt, which counts what it spends.

    Raises:
        ConfigError: there is no such function, or the endpoint's key is not there.
    """
    if config.endpoint is None:
        name, agent = config.function, find_callable(config.function)
        yield lambda _: CallableAgent(name, agent)
        return
    async with AgentClient(config.endpoint, folder / SPENT) as client:
        tool, renderer = config.agent == "tool", config.renderer
        yield lambda spent: EndpointAgent(client, tool, Conversation(renderer, config.rounds), spent)


class AgentClient(ChatEndpoint):
    """Client of the endpoint that all episodes of a batch share; used as ``async with``."""

    def __init__(self, config: AgentEndpointConfig, spent: Path) -> None:
        """
        Args:
            spent: File in which all starts of the batch count their requests.
        """
        super().__init__(
            "agent",
            config.address,
            config.read_key,
            Budget(config.limits, Ledger(spent)),
            config.timeout,
            config.retries,
            path="/responses" if config.api == "responses" else "/chat/completions",
            per_minute=config.requests_per_minute,
        )
        self._config = config

    async def ask(self, messages: list[Message], tools: list[dict[str, Any]], spent: Spending) -> ModelAnswer:
        """Ask for one turn, within the deadline, and count what it costs.

        Raises:
            AgentFailed: there is no usable answer.
            PolicyError: the endpoint refuses the key or does not know the model.
            EngineError: the budget is used up, or cannot be counted.
        """
        responses = self._config.api == "responses"
        body = (responses_request if responses else chat_request)(self._config, messages, tools)
        reader = read_response if responses else read_completion

        async def read(data: bytes) -> ModelAnswer:
            answer = reader(data)
            spent.add(answer.usage)
            if answer.usage is not None:
                await self.budget.pay(answer.usage.prompt + answer.usage.answer)
            return answer

        attempts = Attempts()
        try:
            async with asyncio.timeout(self._config.deadline):
                return await self.complete(body, read, attempts)
        except TimeoutError:
            last = f" (last: {self.scrub(attempts.trouble)})" if attempts.trouble else ""
            message = f"no answer within {self._config.deadline:g} s (endpoint.deadline){last}"
            raise AgentFailed(StopReason.ENGINE_ERROR, message, again=True) from None
        except CallFailed as failure:
            raise self._failure(failure) from None
        finally:
            spent.requests += attempts.requests

    def _failure(self, failure: CallFailed) -> Exception:
        trouble = self.scrub(str(failure))
        if failure.status in WRONG_ENDPOINT:
            return PolicyError(
                f"endpoint: {self.base_url}{self.path} refuses us ({trouble.removeprefix('HTTP ')}); "
                "check endpoint.address, model and api_key"
            )
        if failure.kind in (CallError.BUDGET, CallError.UNCOUNTED):
            return EngineError(f"endpoint: {trouble}; start the same command again to go on")
        if failure.too_long:
            return AgentFailed(StopReason.CONTEXT_OVERFLOW, f"endpoint: {trouble}", again=False)
        return AgentFailed(StopReason.ENGINE_ERROR, f"endpoint: {trouble}", again=failure.again)


@dataclass(slots=True)
class EndpointAgent:
    """A model behind an endpoint, in one episode."""

    client: AgentClient
    tool: bool
    """True if the model calls a function; else the action ends its text."""
    conversation: Conversation
    spent: Spending

    async def decide(self, step: StepResult) -> Decision:
        tools = list(self.conversation.renderer.tools()) if self.tool else []
        messages = await asyncio.to_thread(self.conversation.messages, step)  # encodes screenshots
        answer = await self.client.ask(messages, tools, self.spent)
        self.conversation.add(step, answer)
        response = answer.response()
        return Decision(response, response)


def find_callable(name: str) -> Callable[..., Any]:
    """Return the function or class that ``function`` names.

    Raises:
        ConfigError: there is none, or it cannot be called.
    """
    agent = AGENTS.find(name)
    if not callable(agent):
        raise ConfigError(f"function: {name} is {agent!r}; expected a function of an observation, or a class of one")
    return agent


class CallableAgent:
    """A Python callable ``agent(observation)`` or ``agent(observation, screenshot)``.

    A class is called once for each episode and gives the callable, so that it can keep notes. A
    function without ``await`` runs in a thread.
    """

    def __init__(self, name: str, agent: Callable[..., Any]) -> None:
        self._name = name
        self._agent: Callable[..., Any] = agent() if isinstance(agent, type) else agent
        self._pictured = _positions(self._agent) > 1

    async def decide(self, step: StepResult) -> Decision:
        given = (step.observation, step.screenshot) if self._pictured else (step.observation,)
        try:
            action = await asyncio.to_thread(self._agent, *given)
            if inspect.isawaitable(action):
                action = await action
        except Exception as error:  # whatever the user's code raises ends its episode, by name
            message = f"{self._name} raised {type(error).__name__}: {error}"
            raise AgentFailed(StopReason.ENGINE_ERROR, message, again=False) from error
        return Decision(action, _as_text(action))


def _positions(agent: Callable[..., Any]) -> int:
    """Return the number of arguments without a default that a callable takes by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(agent).parameters.values()
    return sum(taken.kind in kinds and taken.default is inspect.Parameter.empty for taken in parameters)


def _as_text(action: Any) -> str:
    if isinstance(action, BaseModel):
        return action.model_dump_json()
    return action if isinstance(action, str) else repr(dict(action) if isinstance(action, Mapping) else action)
