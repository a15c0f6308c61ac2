"""Makes the request of a chat completion, and reads its answer and its cost. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.chat import check_error, content_text
from envs.rewards.judge.config import JudgeConfig, Structured
from envs.rewards.judge.records import Purpose, data_url
from envs.rewards.judge.schemas import response_format
from envs.rewards.judge.verdict import MalformedReply
from envs.types.text import writable

TOKENS_PER_IMAGE = 1000
"""Estimate for an endpoint that reports no usage.

A 1280x720 picture costs 400 to 1500 tokens in the usual models.
"""
BYTES_PER_TOKEN = 4
"""Estimate for an endpoint that reports no usage."""
MAX_TOKENS = 10**9
"""Maximum token count of one request that is believed of an endpoint.

A larger count is no real usage, and might exceed the integers of a file.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """One message to a judge: instructions (ours), text, and pictures with their captions."""

    purpose: Purpose
    system: str
    text: str
    pictures: tuple[tuple[str, bytes], ...] = ()
    """Pairs of a caption and the picture's bytes."""
    subject: str = ""
    """Fact id or number of the screenshot, for records."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Text of an endpoint's reply, and its cost in tokens."""

    content: str
    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready to be sent."""

    request: dict[str, Any]
    payload: bytes
    key: str
    """Content hash: the name of the reply in the cache."""


def body(question: Question, config: JudgeConfig, vote: int) -> dict[str, Any]:
    """Make the JSON of the request."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": question.text}]
    for caption, picture in question.pictures:
        parts.append({"type": "text", "text": caption})
        parts.append({"type": "image_url", "image_url": {"url": data_url(picture)}})
    request: dict[str, Any] = {
        "model": config.models.of(question.purpose),
        "messages": [
            {"role": "system", "content": question.system},
            {"role": "user", "content": parts},
        ],
        config.length_parameter: config.max_tokens,
    }
    if config.temperature is not None:
        request["temperature"] = config.temperature
    if config.seed is not None:
        request["seed"] = config.seed + vote
    if config.structured is Structured.JSON_SCHEMA:
        request["response_format"] = response_format(question.purpose, config.max_tokens)
    elif config.json_mode:
        request["response_format"] = {"type": "json_object"}
    return request


def prepare(question: Question, config: JudgeConfig, vote: int, style_version: str) -> Prepared:
    """Make the request, its bytes and its content hash.

    The hash covers the model, all text and pictures, temperature, length, seed, vote and the
    version of the prompts. Pictures make this slow (10 ms for 50 of them), so it is called in a
    thread.
    """
    request = body(question, config, vote)
    payload = json.dumps(request, sort_keys=True, separators=(",", ":")).encode()
    # Votes without a seed are the same request.
    vote_prefix = f"{vote}\0" if vote and config.seed is None else ""
    return Prepared(request, payload, hashlib.sha256(f"{style_version}\0{vote_prefix}".encode() + payload).hexdigest())


def read_reply(data: bytes, request: dict[str, Any]) -> Reply:
    """Return the text of a chat completion.

    Raises:
        CallFailed: The answer is an error of the endpoint or of one behind it.
        MalformedReply: The answer is no completion, has no text, or was cut off.
    """
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        begins = data[:60].decode("utf-8", "replace")
        raise MalformedReply(f"the answer is no JSON ({error}); it begins {begins!r}") from error
    check_error(answer)
    try:
        choice = answer["choices"][0]
        content = content_text(choice["message"])
    except (KeyError, IndexError, TypeError) as error:
        raise MalformedReply("the answer has no choices[0].message.content") from error
    if not isinstance(content, str) or not content.strip():
        raise MalformedReply("the content of the answer is empty")
    ended = choice.get("finish_reason")
    if ended in ("length", "content_filter"):
        raise MalformedReply(f"the reply was cut off ({ended}); raise max_tokens if it is the length")
    return with_cost(answer, request, writable(content))


def with_cost(answer: object, request: dict[str, Any], content: str) -> Reply:
    """Return the reply with the endpoint's own token counts, or our estimate."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
    numbers = [count for count in counts if type(count) is int and 0 <= count <= MAX_TOKENS]
    if len(numbers) == 2:
        return Reply(content, numbers[0], numbers[1])
    return Reply(content, estimate(request), _tokens(content), estimated=True)


def cost_without_text(data: bytes, request: dict[str, Any]) -> Reply:
    """Return the cost of an answer without usable text, as a reply without content.

    A completion costs its reported usage or our estimate; anything else costs nothing.
    """
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return Reply("", 0, 0)
    is_answer = isinstance(answer, dict) and ("usage" in answer or "choices" in answer)
    return with_cost(answer, request, "") if is_answer else Reply("", 0, 0)


def estimate(request: dict[str, Any]) -> int:
    """Estimate the prompt tokens of a request, for endpoints that report no usage."""
    system, user = request["messages"]
    texts: Sequence[str] = [part["text"] for part in user["content"] if part["type"] == "text"]
    images = sum(1 for part in user["content"] if part["type"] == "image_url")
    return _tokens(system["content"]) + sum(map(_tokens, texts)) + TOKENS_PER_IMAGE * images


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
