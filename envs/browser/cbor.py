"""Messages of the DevTools protocol in CBOR (RFC 8949), as Chromium writes them over a pipe: half of the processor time that JSON takes it.

Chromium's own messages are CBOR; over a WebSocket it translates each into JSON, and a page's process does so before that. Its dialect: every map and
array lies in an *envelope*, which is a tag with the number of bytes that follow (``d8 18 5a`` and four bytes), and is of indefinite length; integers
have 32 bits; text that is not ASCII is written as a byte string of UTF-16, and bytes are a byte string with the tag for base64.
(Chromium's ``third_party/inspector_protocol/crdtp/cbor.h``.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import count
from struct import Struct
from typing import Any

import cbor2
import numpy as np
from numpy.typing import NDArray

from envs.browser.wire import Format
from envs.cdp import Rectangles, Rows

SNAPSHOT = "DOMSnapshot.captureSnapshot"

ENVELOPE = b"\xd8\x18\x5a"
HEADER = len(ENVELOPE) + 4
"""Bytes before the content of an envelope."""

MAP, ARRAY, BREAK = b"\xbf", b"\x9f", b"\xff"

Indices = NDArray[np.int64]

INT32 = range(-(2**31), 2**31)

MANY = 512
"""Bytes from which the members of an array are looked at all at once."""

RECTANGLE = np.dtype([("before", "V8"), ("values", [("type", "u1"), ("value", ">f8")], 4), ("after", "u1")])
"""An array of four numbers in its envelope."""

LENGTH, PLACES = np.arange(len(ENVELOPE), HEADER), 1 << np.array([24, 16, 8, 0])
"""Bytes of an envelope's header in which its length is, and what each counts."""

DOUBLE, NUMBER = 0xFB, Struct(">Bd")

SHORT = 64

LONGEST = 1e21
"""From here JavaScript writes whole numbers with an exponent."""

KEPT = 4096
"""Short texts (names of methods and parameters, ids of sessions) whose bytes are kept."""


def write(message: dict[str, Any]) -> bytes:
    """A message for the browser.

    Raises:
        TypeError: there is something in it that JSON does not have either.
    """
    return _written(message)


def read(raw: bytes) -> dict[str, Any]:
    """A message of the browser, in which the ``result`` of a call is still to be read by `read_result`.

    Raises:
        ValueError: it is none.
    """
    if raw[: len(ENVELOPE)] != ENVELOPE or raw[HEADER : HEADER + 1] != MAP:
        raise ValueError(f"what came is no message of Chromium's: it begins with {raw[:8].hex(' ')}")
    try:
        message: dict[str, Any] = _loads(raw[HEADER:], UNREAD)
        for name, value in message.items():
            if name != "result" and type(value) is bytes:
                message[name] = _as_json(_content(value))
    except cbor2.CBORError as error:
        raise ValueError(f"a message of Chromium's cannot be read: {_cause(error)}") from error
    return message


def read_result(method: str, result: bytes) -> dict[str, Any]:
    """What a method answered: as JSON would have it, but for bytes where JSON has base64 (`bytearray`), and for the tables of a snapshot
    (`envs.cdp.Rows`, `envs.cdp.Rectangles`), whose numbers are not looked at. Halves of surrogate pairs, which JavaScript's strings may have, become
    U+FFFD.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        if method != SNAPSHOT:
            answer: dict[str, Any] = _as_json(_content(result))
        else:
            answer = _table(result)  # all its text is in one list
            answer["strings"] = _as_json(answer["strings"])
    except cbor2.CBORError as error:
        raise ValueError(_cause(error)) from error
    return answer


def _cause(error: cbor2.CBORError) -> str:
    """What cbor2 says of the innermost envelope."""
    return f"it is broken, or nested too deeply ({str(error).rsplit('tag 24: ', 1)[-1]})"


def _written(value: Any) -> bytes:
    kind = type(value)
    if kind is str:
        return _short(value) if len(value) < SHORT else cbor2.dumps(value)
    if kind is float:
        return NUMBER.pack(DOUBLE, value)
    if kind is dict:
        content = MAP + b"".join([_short(name) + _written(part) for name, part in value.items()]) + BREAK
    elif isinstance(value, list | tuple):
        content = ARRAY + b"".join(map(_written, value)) + BREAK
    elif value is None or kind is bool:
        return cbor2.dumps(value)
    elif kind is int:
        return cbor2.dumps(value) if value in INT32 else NUMBER.pack(DOUBLE, value)
    else:
        raise TypeError(f"a {kind.__name__} cannot be sent to a browser")
    return ENVELOPE + len(content).to_bytes(4, "big") + content


@lru_cache(KEPT)
def _short(text: str) -> bytes:
    return cbor2.dumps(text)


def _content(raw: bytes, _immutable: bool = False) -> Any:
    """What is in an envelope."""
    return _loads(raw, DECODERS)


def _loads(raw: bytes, decoders: Mapping[int, Callable[[Any, bool], Any]]) -> Any:
    return cbor2.loads(raw, semantic_decoders=decoders, str_errors="replace")


def _table(raw: bytes, _immutable: bool = False) -> Any:
    """The same in a snapshot: its arrays of arrays, which hold numbers only, all at once."""
    members = (
        _members(raw)
        if len(raw) > MANY and raw[1 : 1 + len(ENVELOPE)] == ENVELOPE and raw[1 + HEADER : 2 + HEADER] == ARRAY
        else None
    )
    if members is None:
        return _loads(raw, TABLES)
    starts, ends = members
    if (ends - starts == RECTANGLE.itemsize).all():
        rectangles = np.frombuffer(raw, RECTANGLE, len(starts), 1)["values"]
        if (rectangles["type"] == DOUBLE).all():
            return Rectangles(rectangles["value"].astype(np.float64))
    rows = [raw[start:end] for start, end in zip((starts + HEADER).tolist(), ends.tolist(), strict=True)]
    distinct = dict(zip(dict.fromkeys(rows), count(), strict=False))
    place = np.fromiter(map(distinct.__getitem__, rows), np.int64, len(rows))
    return Rows(cbor2.loads(ARRAY + b"".join(distinct) + BREAK), place)


def _members(raw: bytes) -> tuple[Indices, Indices] | None:
    """Where each member of an array begins with its envelope, and where it ends. ``None`` where what looks like an envelope does not follow the
    one before: there are envelopes in members, or numbers that look like one."""
    data = np.frombuffer(raw, dtype=np.uint8)
    tag, more, long = ENVELOPE
    starts = np.flatnonzero((data[:-2] == tag) & (data[1:-1] == more) & (data[2:] == long))
    if starts[-1] + HEADER >= len(raw):
        return None
    lengths = data[starts[:, None] + LENGTH].astype(np.int64) @ PLACES
    ends = starts + HEADER + lengths
    if starts[0] != 1 or ends[-1] != len(raw) - 1 or (ends[:-1] != starts[1:]).any():
        return None
    return starts, ends


def _as_json(value: Any) -> Any:
    """The value as JSON would have it, changed in place: byte strings are text, and whole numbers integers."""
    kind = type(value)
    if kind is float:
        return int(value) if value.is_integer() and abs(value) < LONGEST else value
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

DECODERS = {22: lambda raw, _immutable: bytearray(raw), 24: _content}
TABLES = {24: _table}
UNREAD = {24: lambda raw, _immutable: raw}
"""By tag: 22 is for bytes, 24 for an envelope."""

CBOR = Format(write, read, read_result)
