"""Messages of a DevTools client, as JSON."""

from __future__ import annotations

import base64
from typing import Any

import orjson

from envs.cdp import Rectangles, Rows, json_format

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
"""Error codes of JSON-RPC."""


MAX_ID = 2**53
"""Calls have lesser ids, which every client can count."""


class BadCall(Exception):
    """A client's message cannot be read; ``answer`` says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = {"error": {"code": code, "message": message}}


def read(raw: str | bytes) -> dict[str, Any]:
    """Read a call of a client.

    Raises:
        BadCall: It is no call.
    """
    try:
        message = json_format.read(raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw)
    except (ValueError, RecursionError) as error:
        raise BadCall(PARSE_ERROR, f"JSON: {error}") from error
    problem = _problem(message)
    if problem:
        raise BadCall(INVALID_REQUEST, problem)
    return message


def write(message: dict[str, Any]) -> bytes:
    """Encode an answer or an event; what a pipe has in its own way becomes what JSON has."""
    return orjson.dumps(message, default=_as_json)


def _problem(message: object) -> str:
    """Say what is wrong with a message; empty if nothing is."""
    if not isinstance(message, dict):
        return "Message must be an object"
    if type(message.get("id")) is not int or abs(message["id"]) >= MAX_ID:
        return "Message must have integer 'id' property"
    if not isinstance(message.get("method"), str):
        return "Message must have string 'method' property"
    if not isinstance(message.get("params") or {}, dict):
        return "Message has a 'params' property that is no object"
    if not isinstance(message.get("sessionId", ""), str):
        return "Message may have string 'sessionId' property"
    return ""


def _as_json(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Rows):
        return list(value)
    if isinstance(value, Rectangles):
        return value.values.tolist()
    raise TypeError(f"{type(value).__name__} is no value of the DevTools protocol")
