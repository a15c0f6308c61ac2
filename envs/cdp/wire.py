"""The transport of a `CdpClient`: a WebSocket with JSON, or a pipe with CBOR."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

MAX_MESSAGE = 256 * 2**20
"""Bytes of one message. A screenshot has 0.1 MB and the snapshot of a large page 10 MB; of a longer one a
pipe is read on, and a socket is given up."""


class Wire(Protocol):
    """Carries messages both ways, in order."""

    on_message: Callable[[bytes], None]
    """To be set before the first message is sent; a browser never speaks first."""
    ended: asyncio.Future[str]
    """Done when it is gone, with the reason."""

    def send(self, message: bytes) -> None:
        """Send a message; dropped when the wire is gone."""
        ...

    def abort(self) -> None:
        """Hand nothing on any more, without a goodbye."""
        ...


class WireFormat(NamedTuple):
    """How messages are written."""

    write: Callable[[dict[str, Any]], bytes]
    read: Callable[[bytes], dict[str, Any]]
    """A message; the ``result`` of a call may still be to be read."""
    read_result: Callable[[str, Any, dict[str, Any]], dict[str, Any]]
    """What a method (by name) answered, from the ``result`` that was read and what a session keeps from one answer to the next."""
