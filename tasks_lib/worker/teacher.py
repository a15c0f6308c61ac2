"""A model behind a chat-completions endpoint: a teacher of demonstrations, or one to evaluate.

It sees the messages and screenshots that the policy would see, and the policy's parser reads its
text. Requests are counted before they are sent, over all workers and restarts of a run.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.actions import Reader, format_action
from envs.chat import (
    Attempts,
    Budget,
    CallError,
    CallFailed,
    ChatEndpoint,
    Ledger,
    SpendingLimits,
    read_completion,
)
from envs.prompts import system_text, tools_text
from envs.rewards.judge import data_url
from envs.types import ACTIONS, WITH_MEMORY, EngineError, Invalid, PolicyError
from tasks_lib.config import EndpointConfig
from tasks_lib.worker.actors import EncodedSituation, Turn
from training.config import PolicyConfig

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer

SPENT = "teacher_spent.sqlite"
"""File in a run's folder that counts the requests sent."""
WRONG_ENDPOINT = (401, 403, 404)
"""HTTP statuses that every further request would get too."""


class TeacherClient(ChatEndpoint):
    """Client of the endpoint of an `EndpointConfig`; used as ``async with``.

    Args:
        spent: File in which all clients of a run count their requests.

    Raises:
        ConfigError: the environment variable of the key is not set (raised when entered).
    """

    def __init__(self, config: EndpointConfig, spent: Path) -> None:
        budget = Budget(SpendingLimits(config.budget_requests, None), Ledger(spent))
        self.setting = config.key_setting.partition(".")[0]
        """Configuration key of the endpoint: ``teacher`` or ``policy_endpoint``."""
        super().__init__(self.setting, config.address, config.read_key, budget, config.timeout, config.retries)
        self._config = config

    async def ask(self, messages: list[dict[str, Any]], tools: str = "") -> str:
        """Ask the teacher and return its text, with tool calls written as ``<tool_call>``.

        Args:
            messages: Messages in the format of chat completions.
            tools: JSON list of functions; empty: none.

        Raises:
            EngineError: no answer after all retries, an answer that was cut off, or the budget is
                used up.
            PolicyError: the endpoint refuses the key or does not know the model; another request
                would be refused too.
        """
        config = self._config
        body = {"model": config.model, "messages": messages, "max_tokens": config.max_tokens}
        if config.temperature is not None:
            body["temperature"] = config.temperature
        if tools:
            body["tools"] = json.loads(tools)
        try:
            return await self.complete(body, _read, Attempts())
        except CallFailed as failure:
            trouble = self.scrub(str(failure))
            if failure.status in WRONG_ENDPOINT:
                raise PolicyError(
                    f"{self.setting}: {self.base_url}/chat/completions refuses us ({trouble.removeprefix('HTTP ')}); "
                    f"check {self.setting}.address, model and api_key"
                ) from None
            raise EngineError(f"{self.setting}: {trouble}") from None


async def _read(data: bytes) -> str:
    return read_answer(data)


def read_answer(data: bytes) -> str:
    """Return the text of a chat completion and its tool calls.

    Raises:
        CallFailed: the data are no chat completion, are empty, were cut off, or are an error.
    """
    answer = read_completion(data)
    try:
        parts = [answer.text, *(call.as_text() for call in answer.calls)]
    except (ValueError, RecursionError) as error:
        raise CallFailed(
            CallError.MALFORMED, "the answer is no chat completion: a tool call without JSON", again=True
        ) from error
    if answer.cut_off:
        raise CallFailed(CallError.MALFORMED, "the answer was cut off; raise teacher.max_tokens")
    text = "\n".join(part.strip() for part in parts).strip()
    if not text:
        raise CallFailed(CallError.MALFORMED, "the answer is empty", again=True)
    return text


def chat_messages(asked: EncodedSituation, system: str) -> list[dict[str, Any]]:
    """Return the policy's messages in the format of chat completions.

    Screenshots come before the text of their message.
    """
    pictures = iter(asked.pictures)
    shown = [(message.role, message.text, len(message.pictures)) for message in asked.context]
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for role, text, count in (*shown, ("user", asked.prompt, 1)):
        images = [{"type": "image_url", "image_url": {"url": data_url(next(pictures).jpeg)}} for _ in range(count)]
        messages.append({"role": role, "content": [*images, {"type": "text", "text": text}] if images else text})
    return messages


@dataclass(slots=True)
class TeacherActor:
    """The model at an endpoint as an actor.

    Its turns carry log-probability 0, as an oracle's do: they are cloned or only measured.

    The prompt ``plain`` does not list the actions, which a teacher must know. So the teacher is
    asked with the prompt ``vanilla``, and the action of its answer is rewritten in the plain form.
    With every other prompt its text is kept.
    """

    client: TeacherClient
    renderer: Renderer
    policy: PolicyConfig
    parse: Reader
    """Parser of the run, which reads the action of a text."""
    policy_version: int

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, asked: EncodedSituation) -> Turn:
        asked.situation.began()
        policy, plain = self.policy, self.policy.prompt == "plain"
        system = system_text("vanilla" if plain else policy.prompt, policy.observation)
        messages = await asyncio.to_thread(chat_messages, asked, system)
        response = await self.client.ask(messages, tools_text(policy.prompt, policy.observation))
        if plain:
            response = self._plain(response, asked)
        ids = tuple(self.renderer.encode_response(response))
        return Turn(asked, response, ids, (0.0,) * len(ids), self.policy_version)

    def _plain(self, text: str, asked: EncodedSituation) -> str:
        action = self.parse(text, ACTIONS if asked.situation.memory is None else WITH_MEMORY).action
        return text if isinstance(action, Invalid) else format_action(action)
