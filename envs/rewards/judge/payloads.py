"""The bytes of one chat completion: what is sent, how the answer is read, what its failures mean. Pure."""

from __future__ import annotations

import email.utils
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from envs.rewards.judge.config import JudgeConfig, Structured
from envs.rewards.judge.records import CallError, Purpose, data_url
from envs.rewards.judge.schemas import response_format
from envs.rewards.judge.verdict import MalformedReply
from envs.types.text import writable

PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another try may change."""

TOKENS_PER_IMAGE = 1000
"""Estimate for an endpoint that tells no usage; a 1280x720 picture costs 400 to 1500 in the usual models."""
BYTES_PER_TOKEN = 4
MAX_TOKENS = 10**9
"""Of one request, by the endpoint's word. More is no usage, and might be more than a file's numbers can hold."""


@dataclass(frozen=True, slots=True)
class Question:
    """One message to a judge: instructions (ours), text, and pictures with their captions."""

    purpose: Purpose
    system: str
    text: str
    pictures: tuple[tuple[str, bytes], ...] = ()
    """Caption and bytes."""
    subject: str = ""
    """Fact or screenshot, for records."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What an endpoint said, and what it cost."""

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
    """Its name in the cache."""


class CallFailed(Exception):
    """A request gave nothing."""

    def __init__(
        self,
        kind: CallError,
        message: str,
        *,
        again: bool = False,
        retry_after: float | None = None,
        parameter: str | None = None,
    ) -> None:
        super().__init__(message)
        self.parameter = parameter
        """The one that was refused, without which another try may help."""
        self.kind = kind
        self.again = again
        """Another try may help."""
        self.retry_after = retry_after
        """Seconds that the server asks for."""


def body(question: Question, config: JudgeConfig, vote: int) -> dict[str, Any]:
    """The JSON of the request."""
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
    """Request, bytes and content hash: model, every word and picture, temperature, length, seed, vote, version of the prompts.

    Pictures make this slow (10 ms for 50 of them), so it is called beside the event loop.
    """
    request = body(question, config, vote)
    payload = json.dumps(request, sort_keys=True, separators=(",", ":")).encode()
    apart = f"{vote}\0" if vote and config.seed is None else ""  # votes without a seed are the same request
    return Prepared(request, payload, hashlib.sha256(f"{style_version}\0{apart}".encode() + payload).hexdigest())


_CAN_BE_LEFT_OUT = ("temperature", "seed", "max_tokens", "max_completion_tokens")
_UNSUPPORTED = re.compile(
    r"(?:un|not |n't )(?:support|recogni|known|permit|allow|expect|accept)|extra inputs|only the default|deprecated",
    re.IGNORECASE,
)
"""Not: too large."""


def without_parameters(request: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A request without the parameters that its endpoint refuses, in the order of their refusal; the length is then sent under its other name."""
    for name in names:
        if name in request:
            renamed = {"max_completion_tokens": request[name]} if name == "max_tokens" else {}
            request = {key: value for key, value in request.items() if key != name} | renamed
    return request


def refused_parameter(status: int, said: str, request: dict[str, Any]) -> str | None:
    """The parameter that an answer refuses by name, of those that can be left out; ``None``: it refuses something else."""
    if status not in (400, 422) or not _UNSUPPORTED.search(said):
        return None
    return next((name for name in _CAN_BE_LEFT_OUT if name in request and re.search(rf"\b{name}\b", said)), None)


def check_status(
    response: httpx.Response, said: str, now: datetime | None = None, *, parameter: str | None = None
) -> None:
    """Nothing if the status is 200.

    Args:
        parameter: `refused_parameter` of the answer.

    Raises:
        CallFailed: with what the status means.
    """
    status = response.status_code
    if status == 200:
        return
    message = f"HTTP {status}: {' '.join(said.split())[:200] or 'no text'}"
    if status == 429:
        wait = retry_after(response.headers.get("retry-after"), now or datetime.now(UTC))
        raise CallFailed(CallError.RATE_LIMITED, message, again=True, retry_after=wait)
    if status >= 500:
        wait = retry_after(response.headers.get("retry-after"), now or datetime.now(UTC))
        raise CallFailed(CallError.SERVER_ERROR, message, again=True, retry_after=wait)
    raise CallFailed(CallError.REFUSED, message, again=status in PASSING, parameter=parameter)


def retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds of a Retry-After header, a number or a date; ``None`` if it is neither."""
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.isdigit() and len(header) < 10:
        return float(header)
    try:
        when = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - now).total_seconds())


def read_reply(data: bytes, request: dict[str, Any]) -> Reply:
    """The text of a chat completion.

    Raises:
        CallFailed: it is an error of the endpoint or of one behind it.
        MalformedReply: it is no completion, has no text, or was cut off.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        begins = data[:60].decode("utf-8", "replace")
        raise MalformedReply(f"the answer is no JSON ({error}); it begins {begins!r}") from error
    check_error(found)
    try:
        choice = found["choices"][0]
        content = content_text(choice["message"])
    except (KeyError, IndexError, TypeError) as error:
        raise MalformedReply("the answer has no choices[0].message.content") from error
    if not isinstance(content, str) or not content.strip():
        raise MalformedReply("the content of the answer is empty")
    ended = choice.get("finish_reason")
    if ended in ("length", "content_filter"):
        raise MalformedReply(f"the reply was cut off ({ended}); raise max_tokens if it is the length")
    return with_cost(found, request, writable(content))


def content_text(message: dict[str, Any]) -> Any:
    """The content of a message; of a list of parts the texts, joined."""
    content = message["content"]
    if not isinstance(content, list):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def check_error(found: Any) -> None:
    """Nothing, unless an answer of status 200 holds an error in place of a completion, as gateways write it.

    Raises:
        CallFailed: as for the status that it has as its code; without one, as for a server's error.
    """
    choices = found.get("choices") if isinstance(found, dict) else None
    holders = [found, *(choices if isinstance(choices, list) else ())]
    error = next((each["error"] for each in holders if isinstance(each, dict) and each.get("error")), None)
    if error is None:
        return
    code = error.get("code") if isinstance(error, dict) else None
    status = int(str(code)) if re.fullmatch(r"[45]\d\d", str(code)) else 500
    said = error.get("message") if isinstance(error, dict) else error
    check_status(httpx.Response(status), f"{said or error} (in an answer of status 200)")


def with_cost(found: object, request: dict[str, Any], content: str) -> Reply:
    """The reply with the endpoint's own token counts, or our estimate."""
    usage = found.get("usage") if isinstance(found, dict) else None
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
    numbers = [each for each in counts if type(each) is int and 0 <= each <= MAX_TOKENS]
    if len(numbers) == 2:
        return Reply(content, numbers[0], numbers[1])
    return Reply(content, estimate(request), _tokens(content), estimated=True)


def cost_of_nothing(data: bytes, request: dict[str, Any]) -> Reply:
    """What an answer without a usable text has cost: its own usage if it tells one; no completion, nothing."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return Reply("", 0, 0)
    is_answer = isinstance(found, dict) and ("usage" in found or "choices" in found)
    return with_cost(found, request, "") if is_answer else Reply("", 0, 0)


def estimate(request: dict[str, Any]) -> int:
    """Prompt tokens of a request, roughly: for endpoints that do not tell."""
    system, user = request["messages"]
    texts: Sequence[str] = [part["text"] for part in user["content"] if part["type"] == "text"]
    images = sum(1 for part in user["content"] if part["type"] == "image_url")
    return _tokens(system["content"]) + sum(map(_tokens, texts)) + TOKENS_PER_IMAGE * images


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
