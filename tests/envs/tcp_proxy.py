"""A TCP proxy that misbehaves on purpose: drops, stalls, resets, and half-open connections."""

from __future__ import annotations

import asyncio
import socket
import struct


class TcpProxy:
    """Relays ``127.0.0.1:port`` to a target port. Faults hit the connections that are open; later
    ones work, unless ``refuse`` is set."""

    def __init__(self, target: int) -> None:
        self.refuse = False
        self.connections = 0
        self._target = target
        self._server: asyncio.Server | None = None
        self._running: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter, asyncio.Event]] = set()

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def drop(self) -> None:
        """Close both sides in order."""
        for client, upstream, _ in self._running:
            client.close()
            upstream.close()

    def reset(self) -> None:
        """Close the client's side with an RST."""
        for client, upstream, _ in self._running:
            raw = client.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.transport.abort()
            upstream.close()

    def stall(self) -> None:
        """Pass nothing on any more, in both directions; `resume` goes on where it stopped."""
        for *_, flowing in self._running:
            flowing.clear()

    def resume(self) -> None:
        for *_, flowing in self._running:
            flowing.set()

    def half_open(self) -> None:
        """Close the browser's side and tell the client nothing."""
        for _, upstream, flowing in self._running:
            flowing.clear()
            upstream.close()

    async def _relay(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self.refuse:
            client.close()
            return
        self.connections += 1
        try:
            back, upstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            client.close()  # the browser is gone, as the client is to find out
            return
        flowing = asyncio.Event()
        flowing.set()
        entry = (client, upstream, flowing)
        self._running.add(entry)
        try:
            await asyncio.gather(_pump(reader, upstream, flowing), _pump(back, client, flowing))
        finally:
            self._running.discard(entry)
            client.close()
            upstream.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
    try:
        while data := await reader.read(65536):
            await flowing.wait()
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side went away: that is what the proxy is for
    await flowing.wait()
    writer.close()
