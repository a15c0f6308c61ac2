"""Writes the requests of an episode, for chat completions and for the Responses API. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from envs import StepRenderer, StepResult
from envs.chat import ModelAnswer
from tasks_lib.batch.config import AgentEndpointConfig
from training.policy.context import without_thought

Message = dict[str, Any]
"""A message of the chat format."""

NO_ANSWER = "(no answer)"
"""Stands for an empty answer, which endpoints refuse in a conversation."""
CALLED = "The page after it follows."
"""Result of a turn's last call; the page itself is a user message, which may hold a picture."""
NOT_CALLED = "Not carried out: one action a turn, the last one."


@dataclass(slots=True)
class Conversation:
    """Rounds of one episode: pages and the model's answers to them."""

    renderer: StepRenderer
    rounds: int
    """Pages in a request, the present one included; older turns are one line each."""
    _past: list[tuple[StepResult, ModelAnswer]] = field(default_factory=list)

    def messages(self, step: StepResult) -> list[Message]:
        """Return the messages that ask for the next action."""
        first = max(0, len(self._past) - self.rounds + 1)
        older = [_shown(answer) for _, answer in self._past[:first]]
        written = self.renderer.system_messages()
        for number, (page, answer) in enumerate(self._past[first:], first):
            written.append(self.renderer.user_message(page, older if number == first else ()))
            written += _turn(answer, number)
        return [*written, self.renderer.user_message(step, () if first < len(self._past) else older)]

    def add(self, step: StepResult, answer: ModelAnswer) -> None:
        """Keep a page and the answer to it."""
        self._past.append((step, answer))


def _shown(answer: ModelAnswer) -> str:
    return without_thought(answer.response()) or NO_ANSWER


def _turn(answer: ModelAnswer, number: int) -> list[Message]:
    """Return an answer as messages: with function calls, their results follow it."""
    if not answer.calls:
        return [{"role": "assistant", "content": _shown(answer)}]
    ids = [call.call_id or f"call_{number}_{place}" for place, call in enumerate(answer.calls)]
    calls = [
        {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call_id, call in zip(ids, answer.calls, strict=True)
    ]
    results = [CALLED if call_id == ids[-1] else NOT_CALLED for call_id in ids]
    return [
        {"role": "assistant", "content": without_thought(answer.text) or None, "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": call_id, "content": result}
            for call_id, result in zip(ids, results, strict=True)
        ),
    ]


def chat_request(
    config: AgentEndpointConfig, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the body of a request to ``/chat/completions``.

    Args:
        tools: Functions to call one of; empty for an answer in text.
    """
    body = {"model": config.model, "messages": list(messages), "max_tokens": config.max_tokens}
    return body | _options(config, tools)


def responses_request(
    config: AgentEndpointConfig, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the body of a request to ``/responses``, of which the endpoint keeps nothing."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    items = [item for message in messages if message["role"] != "system" for item in _items(message)]
    body = {"model": config.model, "input": items, "max_output_tokens": config.max_tokens, "store": False}
    if system:
        body["instructions"] = "\n".join(system)
    return body | _options(config, [{"type": "function", "strict": False, **tool["function"]} for tool in tools])


def _options(config: AgentEndpointConfig, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    options: dict[str, Any] = {} if config.temperature is None else {"temperature": config.temperature}
    if tools:
        options |= {"tools": list(tools), "tool_choice": "required", "parallel_tool_calls": False}
    return options


def _items(message: Message) -> list[dict[str, Any]]:
    """Return a message of the chat format as input items of the Responses API."""
    if message["role"] == "tool":
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": message["content"]}]
    content = message["content"]
    if isinstance(content, list):
        content = [_part(part) for part in content]
    items = [] if content is None else [{"role": message["role"], "content": content}]
    for call in message.get("tool_calls", ()):
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    return {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
