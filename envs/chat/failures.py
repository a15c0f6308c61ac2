"""Reads answers of an endpoint: the failure that they mean, or their text. Pure."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 for which a retry may succeed."""


class CallError(StrEnum):
    """Reason why a call gave no result."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    """The connection could not be made, or it broke."""
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    REFUSED = "refused"
    """A status that a retry does not change: a wrong key, model or request."""
    MALFORMED = "malformed"
    """An answer that does not have the requested form."""
    BUDGET = "budget"
    """The budget of requests or tokens is used up; nothing was sent."""
    UNCOUNTED = "uncounted"
    """The request could not be counted in the `Ledger`; nothing was sent."""
    CANCELLED = "cancelled"
    """The deadline or the caller ended the call while it was under way."""


@dataclass(eq=False)
class CallFailed(Exception):
    """A request gave no usable answer."""

    kind: CallError
    message: str
    again: bool = False
    """True if a retry may succeed."""
    retry_after: float | None = None
    """Seconds that the server asks to wait."""
    parameter: str | None = None
    """Refused parameter; a retry without it may succeed. ``None`` if there is none."""
    status: int | None = None
    """HTTP status of the answer, if it was not 200."""
    too_long: bool = False
    """True if the request has more tokens than the model's context."""

    def __str__(self) -> str:
        return self.message


_CAN_BE_LEFT_OUT = (
    "temperature",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "tool_choice",
    "parallel_tool_calls",
    "store",
)
_UNSUPPORTED = re.compile(
    r"(?:un|not |n't )(?:support|recogni|known|permit|allow|expect|accept)|extra inputs|only the default|deprecated",
    re.IGNORECASE,
)
"""Messages that a parameter is not supported, but not that its value is too large."""
_TOO_LONG = re.compile(
    r"context_length_exceeded|(?:maximum|max|model.s) context|context (?:length|window|limit)|(?:prompt|input) is too long",
    re.IGNORECASE,
)
"""Messages of OpenAI, vLLM, SGLang and gateways that a prompt has more tokens than the context."""


def without_parameters(request: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a request without the refused parameters.

    ``max_tokens`` is renamed to ``max_completion_tokens``, and removed if that is refused later.

    Args:
        names: Refused parameters, in the order of their refusal.
    """
    for name in names:
        if name in request:
            renamed = {"max_completion_tokens": request[name]} if name == "max_tokens" else {}
            request = {key: value for key, value in request.items() if key != name} | renamed
    return request


def refused_parameter(status: int, text: str, request: dict[str, Any]) -> str | None:
    """Return the optional parameter that an answer refuses by name; ``None`` if it names none."""
    if status not in (400, 422) or not _UNSUPPORTED.search(text):
        return None
    return next((name for name in _CAN_BE_LEFT_OUT if name in request and re.search(rf"\b{name}\b", text)), None)


def status_failure(status: int, text: str, wait: str | None = None) -> CallFailed:
    """Return the failure that a status other than 200 means.

    Args:
        text: Text of the answer, for the message.
        wait: Header Retry-After of the answer.
    """
    message = f"HTTP {status}: {' '.join(text.split())[:200] or 'no text'}"
    if status == 429 or status >= 500:
        kind = CallError.RATE_LIMITED if status == 429 else CallError.SERVER_ERROR
        return CallFailed(kind, message, again=True, retry_after=retry_after(wait, datetime.now(UTC)))
    too_long = status in (400, 413, 422) and _TOO_LONG.search(text) is not None
    return CallFailed(CallError.REFUSED, message, again=status in PASSING, too_long=too_long)


def retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date); ``None`` if neither."""
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.isdigit() and len(header) < 10:
        return float(header)
    try:
        date = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def content_text(message: dict[str, Any]) -> Any:
    """Return the content of a message, or the joined texts of its parts."""
    content = message["content"]
    if not isinstance(content, list):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def check_error(answer: Any) -> None:
    """Raise if an answer of status 200 holds an error, as gateways write it.

    Raises:
        CallFailed: The error's code is read as an HTTP status; without one it is a server error.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    holders = [answer, *(choices if isinstance(choices, list) else ())]
    error = next((holder["error"] for holder in holders if isinstance(holder, dict) and holder.get("error")), None)
    if error is None:
        return
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    if code == "context_length_exceeded":
        raise status_failure(400, f"{code}: {message} (in an answer of status 200)")
    status = int(str(code)) if re.fullmatch(r"[45]\d\d", str(code)) else 500
    raise status_failure(status, f"{message or error} (in an answer of status 200)")
