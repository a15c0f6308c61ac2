"""Chromium's debugging pipe: a descriptor to read from and one to write to, which live as long as the process does.

Unlike a socket it cannot be dropped or half open, and there is no other one: who gives a `CdpClient` up takes the same pipe again. When our ends are
closed, Chromium ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from envs.browser.envelopes import ENVELOPE, HEADER


class Pipe(asyncio.Protocol):
    """Our ends, read and written by one event loop. Made by `open`.

    Messages are envelopes (`envs.browser.envelopes`), which say how long they are.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._reading: asyncio.ReadTransport | None = None
        self._writing: asyncio.WriteTransport | None = None
        self._came = bytearray()
        self.on_message: Callable[[bytes], None] = lambda _message: None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the browser has closed its ends or wrote what is no message, with the reason."""

    @classmethod
    async def open(cls, reading: int, writing: int, *, max_size: int) -> Pipe:
        """Take these descriptors over.

        Args:
            max_size: Bytes of one message; a longer one ends the pipe.
        """
        pipe, loop = cls(max_size), asyncio.get_running_loop()
        pipe._reading, _ = await loop.connect_read_pipe(lambda: pipe, os.fdopen(reading, "rb", 0))
        pipe._writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(writing, "wb", 0))
        return pipe

    def send(self, message: bytes) -> None:
        """Send a message. To a browser that is gone it is dropped: `ended` tells."""
        if self._writing is not None and not self._writing.is_closing():
            self._writing.write(message)

    def abort(self) -> None:
        """Hand nothing on any more, until somebody else takes the pipe."""
        self.on_message = lambda _message: None

    def close(self) -> None:
        """Close our ends; Chromium ends by itself."""
        for transport in (self._reading, self._writing):
            if transport is not None:
                transport.close()

    # ------------------------------------------------------------------------------- called by the event loop

    def data_received(self, data: bytes) -> None:
        self._came += data
        while len(self._came) >= HEADER:
            size = HEADER + int.from_bytes(self._came[len(ENVELOPE) : HEADER], "big")
            if not self._came.startswith(ENVELOPE) or size > self._max_size:
                self._end(f"a message of {size} bytes came, which begins with {self._came[:HEADER].hex(' ')}")
                return
            if len(self._came) < size:
                return
            message = bytes(self._came[:size])
            del self._came[:size]
            self.on_message(message)

    def eof_received(self) -> None:
        self._end("the browser closed it")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "it was closed"))

    def _end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
        self.close()
