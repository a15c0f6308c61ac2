"""Chromium's remote debugging pipe: a descriptor to read from and one to write to, which live as
long as the process.

Unlike a socket it cannot be dropped or half open. A process has one pipe only, so a new `CdpClient`
uses it again. When our ends are closed, Chromium exits.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from envs.cdp.envelopes import ENVELOPE, HEADER

logger = logging.getLogger(__name__)


class Pipe(asyncio.Protocol):
    """Our ends of the pipe, in one event loop. `open` and `close` it.

    Messages are envelopes (`envs.cdp.envelopes`), which say how long they are.
    """

    def __init__(self, reading: int, writing: int, *, max_size: int) -> None:
        """
        Args:
            reading: Descriptor to read from; the pipe owns it from now on.
            writing: Descriptor to write to; likewise.
            max_size: Bytes of one message. A longer one, which a page can cause, is skipped.
        """
        self._files = os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0)
        self._max_size = max_size
        self._reading: asyncio.ReadTransport | None = None
        self._writing: asyncio.WriteTransport | None = None
        self._read_buffer = bytearray()
        self._bytes_to_skip = 0
        self._pending_writes: list[bytes] = []
        self.on_message: Callable[[bytes], None] = lambda _message: None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolves with the reason when the browser closes the pipe or sends malformed data."""

    async def open(self) -> None:
        """Have the event loop read and write."""
        loop = asyncio.get_running_loop()
        self._reading, _ = await loop.connect_read_pipe(lambda: self, self._files[0])
        self._writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._files[1])

    def send(self, message: bytes) -> None:
        """Send a message, with all others of this turn of the loop.

        Messages are written together because each write wakes the browser, which then competes for
        our core. When the browser has exited, a message is dropped; `ended` has the reason.
        """
        if not self._pending_writes:
            asyncio.get_running_loop().call_soon(self._write)
        self._pending_writes.append(message)

    def abort(self) -> None:
        """Hand nothing on any more, until somebody else takes the pipe."""
        self.on_message = lambda _message: None

    def close(self) -> None:
        """Close our ends, whatever is still to be written; Chromium ends by itself."""
        if self._reading is not None:
            self._reading.close()
        if self._writing is not None and not self._writing.is_closing():
            self._writing.abort()
        if self._reading is None or self._writing is None:
            for file in self._files:
                file.close()

    # ------------------------------------------------------------------------------- called by the
    # event loop

    def data_received(self, data: bytes) -> None:
        if self._bytes_to_skip:
            data, self._bytes_to_skip = data[self._bytes_to_skip :], max(0, self._bytes_to_skip - len(data))
        self._read_buffer += data
        while len(self._read_buffer) >= HEADER:
            if not self._read_buffer.startswith(ENVELOPE):
                self._end(f"what came is no message: it begins with {self._read_buffer[:HEADER].hex(' ')}")
                return
            size = HEADER + int.from_bytes(self._read_buffer[len(ENVELOPE) : HEADER], "big")
            if size > self._max_size:
                logger.error("a message of %d bytes was left out; at most %d are read", size, self._max_size)
                self._bytes_to_skip = max(0, size - len(self._read_buffer))
                del self._read_buffer[:size]
                continue
            if len(self._read_buffer) < size:
                return
            message = bytes(self._read_buffer[:size])
            del self._read_buffer[:size]
            self.on_message(message)

    def eof_received(self) -> None:
        self._end("the browser closed it")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "it was closed"))

    def _write(self) -> None:
        data = b"".join(self._pending_writes)
        self._pending_writes.clear()
        if self._writing is not None and not self._writing.is_closing():
            self._writing.write(data)

    def _end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
        self.close()
