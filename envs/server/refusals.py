"""Refusals of the environment server: an HTTP status, a code and a message for each error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from envs.server.sessions import SessionCode, SessionError
from envs.types import BrowserError, CapacityError, ConfigError, RollwrightError, SiteError, TaskError

RETRY_SECONDS = 2
"""Seconds after which a client without a place should ask again: a short episode's length."""

MAX_MESSAGE = 2000
"""Characters of a message: it repeats what the client sent."""

STATUS = {
    SessionCode.UNKNOWN: 404,
    SessionCode.CLOSED: 410,
    SessionCode.EXPIRED: 410,
    SessionCode.TAKEN: 409,
    SessionCode.STALE_EPOCH: 409,
    SessionCode.WRONG_STEP: 409,
    SessionCode.OTHER_ACTION: 409,
    SessionCode.NO_EPISODE: 409,
    SessionCode.LENT: 409,
    SessionCode.DRAINING: 503,
}
"""HTTP status of the refusals of a `SessionTable`."""


class Refusal(RollwrightError):
    """A request that is refused with this status; ``code`` is the reason for programs."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


def refusal_of(error: RollwrightError | HTTPException) -> Refusal:
    """Return the refusal that reports an error to a client."""
    match error:
        case Refusal():
            return error
        case HTTPException():
            code = {404: "no_such_address", 405: "no_such_method"}.get(error.status_code, "http")
            message = f"{error.detail}; docs/environment-server.md has the addresses"
            return Refusal(error.status_code, code, message, **(error.headers or {}))
        case SessionError():
            return Refusal(STATUS[error.code], error.code.value, str(error))
        case CapacityError():
            return Refusal(503, "capacity", str(error))
        case TaskError():
            return Refusal(422, "task", str(error))
        case ConfigError():
            return Refusal(422, "config", str(error))
        case BrowserError() | SiteError():
            return Refusal(502, "browser", str(error))
    return Refusal(500, "internal", f"{type(error).__name__}: {error}")


def answer_refusal(_: Request, error: Exception) -> Response:
    """Return the answer to a request that raised an error of ours or of the routes."""
    assert isinstance(error, RollwrightError | HTTPException)
    return refusal_answer(refusal_of(error))


def refusal_answer(refusal: Refusal) -> Response:
    """Return ``{"error": {"code": …, "message": …}}``; 429 and 503 say when to ask again."""
    headers = {name.replace("_", "-"): value for name, value in refusal.headers.items()}
    if refusal.status in (429, 503):
        headers["retry-after"] = str(RETRY_SECONDS)
    error = {"code": refusal.code, "message": str(refusal)[:MAX_MESSAGE]}
    # Escaped: what the client sent may be no UTF-8.
    return Response(json.dumps({"error": error}), refusal.status, headers, "application/json")


def answer_failure(_: Request, error: Exception) -> Response:
    """Return the answer to a request that met a fault of the server; its log has the traceback."""
    return refusal_answer(Refusal(500, "internal", f"a fault of the server: {type(error).__name__}"))


HANDLERS = {RollwrightError: answer_refusal, HTTPException: answer_refusal, Exception: answer_failure}
"""Starlette's exception handlers of a server of environments."""


def json_answer(value: Mapping[str, Any], status: int = 200) -> Response:
    """Return a JSON answer."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def invalid(error: ValidationError) -> Refusal:
    """Return the refusal of a body with wrong fields."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    problems = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in details[:3]]
    return Refusal(422, "invalid", "; ".join(problems))
