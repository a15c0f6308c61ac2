"""HTTP routes of the proxy: OpenAI's chat completions, one call recorded before each answer.

The engines return whole turns, so a stream holds one piece; it begins once the turn is recorded,
and a refusal is an HTTP error in a stream too.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from envs.types import EngineError, PolicyError, StorageError
from training.proxy.recorder import Recorder
from training.proxy.records import RecordedCall
from training.proxy.requests import ChatRequest, RefusedCall, read_request

logger = logging.getLogger(__name__)

SESSION_HEADER = "x-rollwright-session"
STEP_HEADER = "x-rollwright-step"
"""Header with the number of the episode's step (from 0) that a call belongs to; optional."""
CALL_HEADER = "x-rollwright-call"
"""Header of an answer, with the call's number in its session."""
MAX_BODY_BYTES = 64 * 2**20
"""Largest body: some hundred screenshots."""


def make_app(recorder: Recorder, api_key: str = "") -> Starlette:
    """Return the application.

    Args:
        api_key: Key that a client has to send; empty: none.
    """
    routes = _Routes(recorder, api_key)
    paths = ("/v1", "/sessions/{session}/v1")
    return Starlette(
        routes=[
            Route("/health", routes.health, methods=["GET"]),
            *(Route(f"{path}/models", routes.models, methods=["GET"]) for path in paths),
            *(Route(f"{path}/chat/completions", routes.chat, methods=["POST"]) for path in paths),
        ],
        exception_handlers={
            RefusedCall: _refused,
            PolicyError: _refused_by_policy,
            EngineError: _engine_failed,
            StorageError: _not_recorded,
            HTTPException: _no_route,
            Exception: _failed,
        },
    )


class _Routes:
    def __init__(self, recorder: Recorder, api_key: str) -> None:
        self._recorder, self._key = recorder, api_key

    async def health(self, request: Request) -> Response:
        """Answer that the proxy is there."""
        return _json({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """List the one model."""
        self._check_key(request)
        name = self._recorder.options.model
        return _json(
            {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "rollwright"}]}
        )

    async def chat(self, request: Request) -> Response:
        """Answer a chat request, streamed or whole."""
        self._check_key(request)
        session, step = _session_of(request), _step_of(request)
        asked = read_request(await _body(request))
        record = await self._recorder.complete(session, step, asked)
        headers = {CALL_HEADER: str(record.index)}
        logprobs = self._logprobs(record) if asked.logprobs else None
        if asked.stream:
            return StreamingResponse(_stream(record, asked, logprobs), media_type="text/event-stream", headers=headers)
        choice = {
            "index": 0,
            "message": _message(record),
            "logprobs": logprobs,
            "finish_reason": _finish_reason(record),
        }
        return _json(_head(record, "chat.completion") | {"choices": [choice], "usage": _usage(record)}, headers=headers)

    def _check_key(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        if self._key and not hmac.compare_digest(given.encode(), f"Bearer {self._key}".encode()):
            raise RefusedCall("Incorrect API key provided.", code="invalid_api_key", status=401)
        if not self._key and "origin" in request.headers:
            # The agent's own browser may show a page that calls this port.
            raise RefusedCall(
                "a page's script has to send a key: --api-key VARIABLE", code="origin_refused", status=403
            )

    def _logprobs(self, record: RecordedCall) -> dict[str, Any]:
        texts = self._recorder.token_texts(record)
        content = [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in zip(texts, record.logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}


def _session_of(request: Request) -> str:
    header, path = request.headers.get(SESSION_HEADER), request.path_params.get("session")
    if header and path and header != path:
        raise RefusedCall(
            f"the header {SESSION_HEADER} says {header[:100]!r} and the path {path[:100]!r}: give one session",
            code="invalid_session",
            param=SESSION_HEADER,
        )
    if not (session := path or header):
        raise RefusedCall(
            f"the call names no session: send the header {SESSION_HEADER}, or use the base URL …/sessions/NAME/v1",
            code="missing_session",
            param=SESSION_HEADER,
        )
    return session


def _step_of(request: Request) -> int | None:
    given = request.headers.get(STEP_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise RefusedCall(
            f"{STEP_HEADER} {given[:40]!r} is no step's number; steps are counted from 0",
            code="invalid_step",
            param=STEP_HEADER,
        )
    return int(given)


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise RefusedCall(f"the body has more than {MAX_BODY_BYTES} bytes", code="request_too_large", status=413)
    return bytes(body)


async def _stream(record: RecordedCall, asked: ChatRequest, logprobs: dict[str, Any] | None) -> AsyncIterator[bytes]:
    head = _head(record, "chat.completion.chunk")
    usage = bool(asked.stream_options and asked.stream_options.include_usage)

    def event(delta: dict[str, Any], finish_reason: str | None = None, **choice: Any) -> bytes:
        one = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **choice}
        return _event(head | {"choices": [one]} | ({"usage": None} if usage else {}))

    yield event({"role": "assistant", "content": ""})
    if record.content or logprobs:
        yield event({"content": record.content or ""}, logprobs=logprobs)
    if record.tool_calls:
        yield event({"tool_calls": [{"index": place, **call} for place, call in enumerate(record.tool_calls)]})
    yield event({}, _finish_reason(record))
    if usage:
        yield _event(head | {"choices": [], "usage": _usage(record)})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def _head(record: RecordedCall, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{record.session}-{record.index}",
        "object": kind,
        "created": int(record.created),
        "model": record.model,
        "system_fingerprint": f"v{record.policy_version}",
    }


def _message(record: RecordedCall) -> dict[str, Any]:
    calls = {"tool_calls": list(record.tool_calls)} if record.tool_calls else {}
    return {"role": "assistant", "content": record.content, "refusal": None, **calls}


def _finish_reason(record: RecordedCall) -> str:
    return "tool_calls" if record.tool_calls else record.finish_reason


def _usage(record: RecordedCall) -> dict[str, int]:
    prompt, turn = len(record.prompt_ids), len(record.response_ids)
    return {"prompt_tokens": prompt, "completion_tokens": turn, "total_tokens": prompt + turn}


def _json(document: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(document), status, headers, "application/json")


def _answer(refusal: RefusedCall, *, retry: bool = False) -> Response:
    """Return an error. OpenAI's client asks again after 5xx, unless the header says not to."""
    return _json(refusal.document(), refusal.status, {} if retry else {"x-should-retry": "false"})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedCall)
    return _answer(error)


async def _refused_by_policy(request: Request, error: Exception) -> Response:
    return _answer(RefusedCall(str(error), code="policy_error"))


async def _engine_failed(request: Request, error: Exception) -> Response:
    return _answer(RefusedCall(str(error), code="engine_unavailable", status=503), retry=True)


async def _not_recorded(request: Request, error: Exception) -> Response:
    logger.error("a call was not recorded, and is not answered: %s", error)
    return _answer(RefusedCall(f"the call could not be recorded: {error}", code="storage_error", status=500))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}; there are POST …/v1/chat/completions, GET …/v1/models, /health"
    return _answer(RefusedCall(message, code="unknown_url", status=error.status_code))


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("a call failed", exc_info=error)
    return _answer(RefusedCall(f"{type(error).__name__}: {error}", code="internal_error", status=500))
