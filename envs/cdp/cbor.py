"""Encodes and decodes DevTools messages in CBOR (RFC 8949) over Chromium's pipe.

CBOR takes Chromium half of the CPU time of JSON.

Chromium's own messages are CBOR; over a WebSocket it translates each into JSON, and a page's
process does so before that. Its dialect is in `envs.cdp.envelopes`.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from math import isfinite
from struct import Struct
from struct import error as StructError
from typing import Any

import cbor2

from envs.cdp.envelopes import ARRAY, BINARY_TAG, BREAK, DOUBLE, ENVELOPE, ENVELOPE_TAG, HEADER, MAP, loads
from envs.cdp.tables import SNAPSHOT, Tables
from envs.cdp.wire import WireFormat

INT32 = range(-(2**31), 2**31)

NUMBER = Struct(">Bd")

NAMES = 1024
"""Names of parameters whose bytes are kept."""

INT64_LIMIT = 2**63
"""Least whole number that JSON messages give as a float too."""


def write(message: dict[str, Any]) -> bytes:
    """Encode a message for the browser.

    Raises:
        TypeError: It holds a value that JSON has not either, or half of a surrogate pair.
    """
    try:
        return _written(message)
    except (UnicodeEncodeError, OverflowError, StructError) as error:
        raise TypeError(f"a message cannot be sent to a browser: {error}") from error


def read(raw: bytes) -> dict[str, Any]:
    """Read a message of the browser; `read_result` then reads its ``result``.

    Raises:
        ValueError: The bytes are no message.
    """
    if raw[: len(ENVELOPE)] != ENVELOPE or raw[HEADER : HEADER + 1] != MAP:
        raise ValueError(f"what came is no message of Chromium's: it begins with {raw[:8].hex(' ')}")
    try:
        message: dict[str, Any] = loads(raw[HEADER:], UNREAD)
        for name, value in message.items():
            if name != "result" and type(value) is bytes:
                message[name] = _as_json(_content(value))
    except cbor2.CBORError as error:
        raise ValueError(f"a message of Chromium's cannot be read: {_cause(error)}") from error
    return message


def read_result(method: str, result: bytes, memory: dict[str, Any]) -> dict[str, Any]:
    """Decode the result of a method.

    It is as JSON would have it, but for bytes where JSON has base64 (`bytearray`), and for the
    columns of a snapshot (`envs.cdp.tables`), whose numbers are not looked at. Halves of surrogate
    pairs, which JavaScript's strings may have, become U+FFFD.

    Raises:
        ValueError: The result cannot be decoded.
    """
    try:
        if method != SNAPSHOT:
            answer: dict[str, Any] = _as_json(_content(result))
        else:
            answer = memory.setdefault(SNAPSHOT, Tables()).read(result)
            answer["strings"] = _as_json(answer["strings"])  # all its text
    except cbor2.CBORError as error:
        raise ValueError(_cause(error)) from error
    return answer


def _cause(error: cbor2.CBORError) -> str:
    """Return what cbor2 says of the innermost envelope."""
    return f"it is broken, or nested too deeply ({str(error).rsplit('tag 24: ', 1)[-1]})"


def _written(value: Any) -> bytes:
    kind = type(value)
    if kind is str:
        return cbor2.dumps(value)
    if kind is float:
        return NUMBER.pack(DOUBLE, value) if isfinite(value) else cbor2.dumps(None)
    if kind is dict:
        content = MAP + b"".join([_name(name) + _written(part) for name, part in value.items()]) + BREAK
    elif isinstance(value, list | tuple):
        content = ARRAY + b"".join(map(_written, value)) + BREAK
    elif value is None or kind is bool:
        return cbor2.dumps(value)
    elif kind is int:
        return cbor2.dumps(value) if value in INT32 else NUMBER.pack(DOUBLE, value)
    elif isinstance(value, Enum):
        return _written(value.value)
    else:
        raise TypeError(f"a {kind.__name__} cannot be sent to a browser")
    return ENVELOPE + len(content).to_bytes(4, "big") + content


@lru_cache(NAMES)
def _name(name: str) -> bytes:
    if type(name) is not str:
        raise TypeError(f"{name!r} cannot be a name in a message to a browser")
    return cbor2.dumps(name)


def _content(raw: bytes, _immutable: bool = False) -> Any:
    """Decode the content of an envelope."""
    return loads(raw, DECODERS)


def _as_json(value: Any) -> Any:
    """Change a value in place to what JSON would give.

    Byte strings are text, whole numbers integers, and what is no number is ``None``.
    """
    kind = type(value)
    if kind is float:
        if value.is_integer() and -INT64_LIMIT <= value < INT64_LIMIT:
            return int(value)
        return value if isfinite(value) else None
    if kind is bytes:
        return value.decode("utf-16-le", "replace")
    if kind is list:
        for place, part in enumerate(value):
            if type(part) in CHANGED:
                value[place] = _as_json(part)
    elif kind is dict:
        for name, part in value.items():
            if type(part) in CHANGED:
                value[name] = _as_json(part)
        if bytes in map(type, value):
            return {_as_json(name): part for name, part in value.items()}
    return value


CHANGED = frozenset({bytes, float, list, dict})

DECODERS = {BINARY_TAG: lambda raw, _immutable: bytearray(raw), ENVELOPE_TAG: _content}
UNREAD = {ENVELOPE_TAG: lambda raw, _immutable: raw}

CBOR = WireFormat(write, read, read_result)
