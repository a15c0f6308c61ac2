"""Chromium's dialect of CBOR: envelopes around maps and arrays.

Every map and array lies in an *envelope*, a tag with the number of bytes that follow, and is of
indefinite length; integers have 32 bits; text that is not ASCII is a byte string of UTF-16, and
bytes are a byte string with the tag for base64.

Source: Chromium's ``third_party/inspector_protocol/crdtp/cbor.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cbor2

ENVELOPE = b"\xd8\x18\x5a"
HEADER = len(ENVELOPE) + 4
"""Bytes before the content of an envelope: the tag, and its length in four bytes, the greatest
first."""

MAP, ARRAY, BREAK = b"\xbf", b"\x9f", b"\xff"
"""Begin and end of containers."""

DOUBLE = 0xFB
"""Type of a number of eight bytes."""

BINARY_TAG, ENVELOPE_TAG = 22, 24


def loads(raw: bytes, decoders: Mapping[int, Callable[[Any, bool], Any]]) -> Any:
    """A value, with functions for what is tagged.

    Raises:
        CBORError: it is not whole.
    """
    return cbor2.loads(raw, semantic_decoders=decoders, str_errors="replace")
