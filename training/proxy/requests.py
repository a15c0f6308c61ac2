"""Requests of OpenAI's chat completions, and the refusals in OpenAI's form.

What a request may not ask for is refused by name, never ignored: a penalty, a nucleus or a grammar
would change the distribution that turns are sampled from, and the trainer would not know of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envs.types import RollwrightError

MAX_TEMPERATURE = 5.0
"""Highest temperature, as in ``policy.temperature``."""


class RefusedCall(RollwrightError):
    """A call that is answered with an error in OpenAI's form."""

    def __init__(self, message: str, *, code: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.param, self.status = code, param, status

    def document(self) -> dict[str, Any]:
        """Return the body of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImageUrl(_Given):
    """Address of an image; only ``data:`` addresses are taken."""

    url: str
    detail: str | None = None
    """Ignored: the proxy has one pixel budget."""


class ContentPart(_Given):
    """A text or an image of a message."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None


class CalledFunction(_Given):
    """Name and JSON arguments of a tool call."""

    name: str
    arguments: str = "{}"


class ReturnedToolCall(_Given):
    """A call of a tool in an assistant's message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(_Given):
    """A message. The fields after ``tool_call_id`` may only be empty, as clients send them back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    """Ignored: chat templates do not show it."""
    tool_calls: tuple[ReturnedToolCall, ...] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    annotations: tuple[Any, ...] | None = Field(None, max_length=0)
    audio: None = None
    function_call: None = None

    @property
    def parts(self) -> tuple[ContentPart, ...]:
        """Its content as parts."""
        if isinstance(self.content, str):
            return (ContentPart(type="text", text=self.content),)
        return self.content or ()


class StreamOptions(_Given):
    """Options of a streamed answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


class ChatRequest(_Given):
    """A request of ``POST /v1/chat/completions``."""

    model: str
    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE)
    seed: int | None = None
    logprobs: bool | None = False
    user: str | None = None
    metadata: dict[str, str] | None = None
    n: int | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | tuple[str, ...] | None = None
    response_format: dict[str, Any] | None = None
    store: bool | None = None

    @property
    def turn_tokens(self) -> int | None:
        """Largest number of tokens of the turn; ``None`` if the request names none."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def shown_tools(self) -> tuple[dict[str, Any], ...]:
        """The tools that the prompt shows: none where ``tool_choice`` is ``none``."""
        return () if self.tool_choice == "none" else self.tools or ()


NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "n": (None, 1),
        "top_p": (None, 1.0),
        "top_logprobs": (None, 0),
        "presence_penalty": (None, 0.0),
        "frequency_penalty": (None, 0.0),
        "logit_bias": (None, {}),
        "stop": (None, "", ()),
        "response_format": (None, {"type": "text"}),
        "tool_choice": (None, "auto", "none"),
        "store": (None, False),
    }
)
"""Parameters that are known, with the only values that they may have."""


def read_request(body: bytes) -> ChatRequest:
    """Read the body of a request.

    Raises:
        RefusedCall: It is no JSON object, has an unknown parameter, or a value that is not
            supported; the first one is named.
    """
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedCall(f"the body is no JSON: {error}", code="invalid_json") from error
    if not isinstance(given, dict):
        raise RefusedCall("the body is no JSON object", code="invalid_json")
    try:
        request = ChatRequest.model_validate(given)
    except ValidationError as error:
        raise _refusal(error.errors()) from error
    for name, values in NEUTRAL.items():
        if (value := getattr(request, name)) not in values:
            shown = orjson.dumps(value).decode()
            raise RefusedCall(
                f"{name}={shown[:200]} is not supported: leave it out. It would change the distribution that turns are sampled "
                "from, or ask for more than the one turn that is recorded",
                code="unsupported_value",
                param=name,
            )
    for number, tool in enumerate(request.tools or ()):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise RefusedCall(
                'a tool is {"type": "function", "function": {"name": …, "parameters": …}}',
                code="invalid_value",
                param=f"tools[{number}]",
            )
    return request


def _refusal(errors: Sequence[Any]) -> RefusedCall:
    """Return the refusal of the first unknown parameter, or else of the first wrong value."""
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    if unknown:
        param = _path(unknown[0]["loc"])
        return RefusedCall(f"Unknown parameter: {param!r}.", code="unknown_parameter", param=param)
    # Of the errors of a union's members, the deepest is of the member that was meant.
    worst = max(errors, key=lambda error: len(error["loc"]))
    param = _path(worst["loc"])
    code = "missing_required_parameter" if worst["type"] == "missing" else "invalid_value"
    return RefusedCall(f"{param}: {worst['msg']}", code=code, param=param)


def _path(place: Sequence[int | str]) -> str:
    """Return a field's path, as ``messages[0].content``, without the names of union members."""
    names = [part for part in place if isinstance(part, int) or part.isidentifier()]
    path = ""
    for part in names:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return path
