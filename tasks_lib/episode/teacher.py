"""A teacher behind a chat-completions endpoint, which plays demonstrations.

It sees the messages and screenshots that the policy would see, and its text is read by the policy's parser. Requests are counted before
they are sent, over all workers and restarts of a run.
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
    Limits,
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
from tasks_lib.episode.actors import EncodedSituation, Turn
from training.config import PolicyConfig
from training.policy.prompts import system_text, tools_text

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer

SPENT = "teacher_spent.sqlite"
"""In a run's folder: how many requests were sent."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds before a request is sent again: the first time, doubled each time, and at most."""
WRONG_ENDPOINT = (401, 403, 404)
"""Statuses that every further request would get."""


class TeacherClient:
    """Connections to the endpoint of a `TeacherConfig`; used as ``async with``.

    Args:
        spent: File in which all clients of a run count their requests.

    Raises:
        ConfigError: when entered, the variable of the key is not set.
    """

    def __init__(self, config: TeacherConfig, spent: Path) -> None:
        self._config = config
        self._budget = Budget(Limits(config.budget_requests, None), Ledger(spent))
        self._key = ""
        self._left_out: list[str] = []
        """Parameters that the endpoint has refused."""
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
        """What the teacher says; calls of tools are written as ``<tool_call>``.

        Args:
            messages: As chat completions take them.
            tools: JSON list of functions; empty: none.

        Raises:
            EngineError: no answer after all retries, an answer that was cut off, or the budget is used up.
            PolicyError: the endpoint knows neither us nor the model; another request would be refused too.
        """
        config = self._config
        body = {"model": config.model, "messages": messages, "temperature": config.temperature}
        body |= {"max_tokens": config.max_tokens} | ({"tools": json.loads(tools)} if tools else {})
        attempt = 0
        while True:
            try:
                return read_answer(await self._post(without_parameters(body, self._left_out)))
            except CallFailed as failure:
                if failure.parameter is not None:  # left out from now on, which is no retry
                    self._left_out += [failure.parameter] if failure.parameter not in self._left_out else []
                    continue
                if not failure.again or attempt == config.retries:
                    raise EngineError(f"teacher: {self._scrubbed(str(failure))}") from None
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
        said = data[:1000].decode("utf-8", "replace")
        if response.status_code in WRONG_ENDPOINT:
            why = self._scrubbed(" ".join(said.split())[:200])
            raise PolicyError(
                f"teacher: {address} refuses us ({response.status_code}: {why}); check teacher.address, model and api_key"
            )
        check_status(response, said, parameter=refused_parameter(response.status_code, said, body))
        return bytes(data)

    def _scrubbed(self, text: str) -> str:
        """Endpoints quote a wrong key in their message."""
        return text.replace(self._key, "[key]") if self._key else text


def read_answer(data: bytes) -> str:
    """The text of a chat completion and its tool calls.

    Raises:
        CallFailed: it is none, is empty, was cut off, or is an error.
    """
    try:
        found = json.loads(data)
        check_error(found)
        choice = found["choices"][0]
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
    """A call as the policy writes it. Its arguments come as JSON in a string, or as null where there are none."""
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    said = json.dumps({"name": function["name"], "arguments": arguments or {}}, ensure_ascii=False)
    return f"<tool_call>\n{said}\n</tool_call>"


def pause(attempt: int, retry_after: float | None, draw: float) -> float:
    """Seconds before the next try: doubled each time with jitter (half to whole), or what the server asks for.

    Args:
        attempt: 0 for the first try.
        draw: Uniform in [0, 1).
    """
    if retry_after is not None:
        return min(LONGEST_PAUSE, retry_after * (1 + 0.1 * draw))
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt) * (0.5 + 0.5 * draw)


def chat_messages(asked: EncodedSituation, system: str) -> list[dict[str, Any]]:
    """A situation as chat completions take it: the policy's messages, with their screenshots before their text."""
    pictures = iter(asked.pictures)
    shown = [(message.role, message.text, len(message.pictures)) for message in asked.context]
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for role, text, count in (*shown, ("user", asked.prompt, 1)):
        images = [{"type": "image_url", "image_url": {"url": data_url(next(pictures).jpeg)}} for _ in range(count)]
        messages.append({"role": role, "content": [*images, {"type": "text", "text": text}] if images else text})
    return messages


@dataclass(slots=True)
class TeacherActor:
    """The teacher as an actor. Its turns carry log-probability 0, as an oracle's do: they are used for cloning only.

    A policy with the prompt ``plain`` knows its actions without being told, which a teacher does not: it is told WebGym's short answer, and
    the action that is read from its text is written as such a policy writes it. With every other prompt its text is kept.
    """

    client: TeacherClient
    renderer: Renderer
    policy: PolicyConfig
    parse: Reader
    """Of the run."""
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
