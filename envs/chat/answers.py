"""Reads answers of OpenAI's two APIs, chat completions and Responses, as one type. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.chat.failures import CallError, CallFailed, check_error, content_text
from envs.types import writable


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model calls."""

    call_id: str
    name: str
    arguments: str
    """JSON as the model wrote it, which may be broken."""

    def as_text(self) -> str:
        """Return the call as a policy writes it, within ``<tool_call>``.

        Raises:
            ValueError: The arguments are no JSON.
        """
        arguments = json.loads(self.arguments) if self.arguments else {}
        text = json.dumps({"name": self.name, "arguments": arguments or {}}, ensure_ascii=False)
        return f"<tool_call>\n{text}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, as the endpoint counts them."""

    prompt: int
    cached: int
    """Tokens of the prompt that the endpoint had in its cache."""
    answer: int
    """Thoughts included."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """Answer of a model to one request."""

    text: str
    calls: tuple[ToolCall, ...]
    cut_off: bool
    """True if the answer reached its length limit."""
    usage: Usage | None
    """``None`` where the endpoint does not say it."""

    def response(self) -> str:
        """Return text and calls as a policy writes them; broken arguments stay as they are."""
        return "\n".join(part for part in (self.text.strip(), *map(_call_text, self.calls)) if part)


def read_completion(data: bytes) -> ModelAnswer:
    """Read a chat completion.

    Raises:
        CallFailed: The data are no chat completion, or an error.
    """
    try:
        completion = json.loads(data)
        check_error(completion)
        choice = completion["choices"][0]
        message = {"content": None, **choice["message"]}
        calls = tuple(
            _tool_call(call.get("id"), call["function"]["name"], call["function"].get("arguments"))
            for call in message.get("tool_calls") or ()
        )
        text = content_text(message) or message.get("refusal") or ""
        usage = _usage(completion.get("usage"), "prompt", "completion")
        return ModelAnswer(writable(text), calls, choice.get("finish_reason") == "length", usage)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise CallFailed(CallError.MALFORMED, "the answer is no chat completion", again=True) from error


def read_response(data: bytes) -> ModelAnswer:
    """Read an answer of the Responses API.

    Raises:
        CallFailed: The data are no response, or an error.
    """
    try:
        response = json.loads(data)
        check_error(response)
        parts = [
            part for item in response["output"] if item.get("type") == "message" for part in item.get("content") or ()
        ]
        text = "".join(part.get("text") or part.get("refusal") or "" for part in parts)
        calls = tuple(
            _tool_call(item.get("call_id"), item["name"], item.get("arguments"))
            for item in response["output"]
            if item.get("type") == "function_call"
        )
        cut_off = (response.get("incomplete_details") or {}).get("reason") == "max_output_tokens"
        return ModelAnswer(writable(text), calls, cut_off, _usage(response.get("usage"), "input", "output"))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise CallFailed(CallError.MALFORMED, "the answer is no response", again=True) from error


def _tool_call(call_id: Any, name: str, arguments: Any) -> ToolCall:
    """Some servers send arguments as an object, or null where there are none."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(str(call_id or ""), writable(str(name)), writable(text))


def _call_text(call: ToolCall) -> str:
    try:
        return call.as_text()
    except (ValueError, RecursionError):
        return f"<tool_call>\n{call.arguments}\n</tool_call>"


def _usage(usage: Any, prompt: str, answer: str) -> Usage | None:
    """Return the tokens, which the two APIs name differently; ``None`` if they are not there."""
    if not isinstance(usage, Mapping):
        return None
    details = usage.get(f"{prompt}_tokens_details") or {}
    asked, cached = usage.get(f"{prompt}_tokens"), details.get("cached_tokens") or 0
    answered = usage.get(f"{answer}_tokens")
    if not (isinstance(asked, int) and isinstance(cached, int) and isinstance(answered, int)):
        return None
    return Usage(asked, cached, answered)
