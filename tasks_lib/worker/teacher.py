"""A teacher behind a chat-completions endpoint, which plays demonstrations.

It sees the messages and screenshots that the policy would see, and the policy's parser reads its
text. Requests are counted before they are sent, over all workers and restarts of a run.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from envs.actions import Reader, format_action
from envs.rewards.judge import (
    MAX_ANSWER,
    Budget,
    CallError,
    CallFailed,
    Ledger,
    SpendingLimits,
    check_error,
    check_status,
    content_text,
    data_url,
    endpoint_client,
    refused_parameter,
    without_parameters,
)
from envs.types import ACTIONS, WITH_MEMORY, EngineError, Invalid, PolicyError, StorageError, writable
from tasks_lib.config import TeacherConfig
from tasks_lib.worker.actors import EncodedSituation, Turn
from training.config import PolicyConfig
from training.policy.prompts import system_text, tools_text

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer

SPENT = "teacher_spent.sqlite"
"""File in a run's folder that counts the requests sent."""
FIRST_PAUSE = 1.0
"""Seconds before the first retry; each further pause is twice as long."""
MAX_PAUSE = 60.0
"""Longest pause before a retry in seconds."""
WRONG_ENDPOINT = (401, 403, 404)
"""HTTP statuses that every further request would get too."""


class TeacherClient:
    """Client of the endpoint of a `TeacherConfig`; used as ``async with``.

    Args:
        spent: File in which all clients of a run count their requests.

    Raises:
        ConfigError: the environment variable of the key is not set (raised when entered).
    """

    def __init__(self, config: TeacherConfig, spent: Path) -> None:
        self._config = config
        self._budget = Budget(SpendingLimits(config.budget_requests, None), Ledger(spent))
        self._key = ""
        self._left_out: list[str] = []
        """Parameters that the endpoint has refused, left out of further requests."""
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        self._key = self._config.read_key()
        self._http = endpoint_client(self._config.address, self._key)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

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
        body = {"model": config.model, "messages": messages, "temperature": config.temperature}
        body |= {"max_tokens": config.max_tokens} | ({"tools": json.loads(tools)} if tools else {})
        attempt = 0
        while True:
            try:
                return read_answer(await self._post(without_parameters(body, self._left_out)))
            except CallFailed as failure:
                if failure.parameter is not None:  # sent again without it, which is no retry
                    self._left_out += [failure.parameter] if failure.parameter not in self._left_out else []
                    continue
                if not failure.again or attempt == config.retries:
                    raise EngineError(f"teacher: {self._scrub(str(failure))}") from None
                await asyncio.sleep(pause(attempt, failure.retry_after, random.random()))
                attempt += 1

    async def _post(self, body: dict[str, Any]) -> bytes:
        assert self._http is not None, "a TeacherClient is used inside of 'async with'"
        payload = await asyncio.to_thread(lambda: json.dumps(body).encode())
        try:
            if refusal := await self._budget.claim():
                raise CallFailed(CallError.BUDGET, refusal)
        except StorageError as error:  # what cannot be counted is not sent
            raise CallFailed(CallError.UNCOUNTED, str(error)) from error
        address, seconds, data = f"{self._config.address}/chat/completions", self._config.timeout, bytearray()
        try:
            sending = self._http.stream("POST", address, content=payload)
            async with asyncio.timeout(seconds), sending as response:
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > MAX_ANSWER:
                        raise CallFailed(CallError.MALFORMED, f"the answer has over {MAX_ANSWER} bytes", again=True)
        except TimeoutError as error:
            raise CallFailed(CallError.TIMEOUT, f"no answer within {seconds:g} s", again=True) from error
        except httpx.HTTPError as error:
            raise CallFailed(CallError.UNREACHABLE, f"{type(error).__name__}: {error}", again=True) from error
        excerpt = data[:1000].decode("utf-8", "replace")
        if response.status_code in WRONG_ENDPOINT:
            why = self._scrub(" ".join(excerpt.split())[:200])
            raise PolicyError(
                f"teacher: {address} refuses us ({response.status_code}: {why}); check teacher.address, model and api_key"
            )
        check_status(response, excerpt, parameter=refused_parameter(response.status_code, excerpt, body))
        return bytes(data)

    def _scrub(self, text: str) -> str:
        """Hide the key, which endpoints quote in their messages when it is wrong."""
        return text.replace(self._key, "[key]") if self._key else text


def read_answer(data: bytes) -> str:
    """Return the text of a chat completion and its tool calls.

    Raises:
        CallFailed: the data are no chat completion, are empty, were cut off, or are an error.
    """
    try:
        completion = json.loads(data)
        check_error(completion)
        choice = completion["choices"][0]
        message = {"content": None, **choice["message"]}
        parts = [content_text(message) or "", *map(_call_text, message.get("tool_calls") or ())]
        text = "\n".join(part.strip() for part in parts).strip()
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise CallFailed(CallError.MALFORMED, "the answer is no chat completion", again=True) from error
    if choice.get("finish_reason") == "length":
        raise CallFailed(CallError.MALFORMED, "the answer was cut off; raise teacher.max_tokens")
    if not text:
        raise CallFailed(CallError.MALFORMED, "the answer is empty", again=True)
    return writable(text)


def _call_text(call: Mapping[str, Any]) -> str:
    """Write a tool call as the policy does.

    Its arguments are JSON in a string, or null where there are none.
    """
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    text = json.dumps({"name": function["name"], "arguments": arguments or {}}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def pause(attempt: int, retry_after: float | None, draw: float) -> float:
    """Return the seconds before the next attempt.

    They double each time, with jitter (half to whole), unless the server asks for a pause.

    Args:
        attempt: Number of the attempt that failed, from 0.
        retry_after: Seconds that the server asks for.
        draw: Random number, uniform in [0, 1).
    """
    if retry_after is not None:
        return min(MAX_PAUSE, retry_after * (1 + 0.1 * draw))
    return min(MAX_PAUSE, FIRST_PAUSE * 2.0**attempt) * (0.5 + 0.5 * draw)


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
    """The teacher as an actor.

    Its turns carry log-probability 0, as an oracle's do, because they are used for cloning only.

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
