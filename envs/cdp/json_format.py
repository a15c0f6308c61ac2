"""Messages of the DevTools protocol in JSON, as a debugging port speaks it."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from envs.cdp.wire import WireFormat

LONE_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which JavaScript's strings may have and text may not."""


def read(raw: bytes) -> dict[str, Any]:
    """Decode a message of the browser.

    Any string of a page may have half a surrogate pair (``document.title = "\\ud83d"``): it becomes
    U+FFFD.
    """
    try:
        message: dict[str, Any] = orjson.loads(raw)
    except orjson.JSONDecodeError:
        message = _whole(json.loads(raw.decode("utf-8", "replace")))
    return message


def _whole(value: Any) -> Any:
    """Replace the halves of surrogate pairs in a JSON value."""
    if isinstance(value, str):
        return LONE_HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(item) for name, item in value.items()}
    return value


JSON = WireFormat(write=orjson.dumps, read=read, read_result=lambda _method, result, _memory: result)
