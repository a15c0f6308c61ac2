"""The transport of a `CdpClient`: a WebSocket with JSON, or a pipe with CBOR."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

MAX_MESSAGE = 256 * 2**20
"""Maximum bytes of one message. A screenshot has 0.1 MB, the snapshot of a large page 10 MB. A pipe
skips a longer message, a socket is closed."""


class Wire(Protocol):
    """Carries messages both ways, in order."""

    on_message: Callable[[bytes], None]
    """Receiver of messages; set it before the first one is sent (a browser never speaks first)."""
    ended: asyncio.Future[str]
    """Resolved with the reason when the wire is gone."""

    def send(self, message: bytes) -> None:
        """Send a message; dropped when the wire is gone."""
        ...

    def abort(self) -> None:
        """Stop handing messages on, without a closing handshake."""
        ...


class WireFormat(NamedTuple):
    """Encoding of messages."""

    write: Callable[[dict[str, Any]], bytes]
    read: Callable[[bytes], dict[str, Any]]
    """Decodes a message; its ``result`` may still be encoded."""
    read_result: Callable[[str, Any, dict[str, Any]], dict[str, Any]]
    """Decodes a ``result``, given the method's name and the state that a session keeps between
    answers."""
