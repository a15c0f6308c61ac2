"""The link between a run's owner, the flow's process, and the processes of its trainer.

A message is the bell, files are the truth. The owner listens, every process of the trainer connects: ``batch N`` goes down, ``look`` comes
up when a file was written that the owner waits for, and both sides send an empty line every `BEAT_SECONDS`. So nobody looks for a file
twenty times a second, and each side notices within `LOST_SECONDS` that the other is gone, on this machine or another. A message that is
lost costs `LOOK_SECONDS`: then files are looked at anyhow.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

BEAT_SECONDS = 5.0
"""Between two signs of life."""
LOST_SECONDS = 45.0
"""Silence after which the other side counts as gone; a link that is cut for less is made again."""
LOOK_SECONDS = 2.0
"""Between two looks at a file that was not announced."""
BACK_SECONDS = 10.0
"""In which a process whose connection was closed has to be back."""
REFUSALS = 3
"""Refused connections in a row, a second apart, after which the owner's process is gone."""
ORPHAN_EXIT_CODE = 86
"""Exit code of a process whose owner or parent is gone."""


class OwnerLink:
    """The owner's end. Threads of its own serve the connections; ``close`` ends every process that is connected."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port of ``host``: the address under which the trainer's machines reach this one."""
        self.token = secrets.token_hex(16)
        self.news = threading.Condition()
        self.looks = 0
        """How often a process of the trainer has said that there is something to look at."""
        self._batch = 0
        self._closed = False
        self._heard: dict[str, float] = {}
        """When each process was last heard, by name."""
        self._server = _Server((host, 0), self)
        self.address = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()

    def ring(self, version: int) -> None:
        """The batch that makes ``version`` is written."""
        with self.news:
            self._batch = max(self._batch, version)
            self.news.notify_all()

    def wait(self, seen: int, seconds: float) -> int:
        """Until a process has said ``look`` more often than ``seen``, or for so long; how often it was said."""
        with self.news:
            self.news.wait_for(lambda: self.looks > seen, seconds)
            return self.looks

    def lost_nodes(self) -> dict[str, float]:
        """Nodes that were connected and have been silent for longer than `LOST_SECONDS`, with their seconds."""
        now = time.monotonic()
        with self.news:
            silent = {name: now - last for name, last in self._heard.items() if name.startswith("node")}
        return {name: seconds for name, seconds in silent.items() if seconds > LOST_SECONDS}

    def close(self) -> None:
        """Tell all processes to end. Harmless when it is closed."""
        with self.news:
            if self._closed:
                return
            self._closed = True
            self.news.notify_all()
        self._server.shutdown()
        self._server.server_close()

    # ------------------------------------------------------------------ for the threads of the connections

    def serve(self, connection: socket.socket) -> None:
        """One connection to its end, in its own thread."""
        connection.settimeout(LOST_SECONDS)
        lines = connection.makefile("rb")
        word, _, rest = lines.readline(200).decode(errors="replace").strip().partition(" ")
        token, _, name = rest.partition(" ")
        if word != "hello" or not secrets.compare_digest(token, self.token):
            return
        with self.news:
            self._heard[name] = time.monotonic()
        reader = threading.Thread(target=self._hear, args=(name, lines), daemon=True)
        connection.sendall(b"welcome\n")
        reader.start()
        told = 0
        while reader.is_alive():
            with self.news:
                if not self._closed and self._batch == told:
                    self.news.wait(BEAT_SECONDS)
                closed, batch = self._closed, self._batch
            connection.sendall(b"end\n" if closed else f"batch {batch}\n".encode() if batch != told else b"\n")
            told = batch
            if closed:
                return

    def _hear(self, name: str, lines: BinaryIO) -> None:
        with contextlib.suppress(OSError):
            for line in lines:
                with self.news:
                    self._heard[name] = time.monotonic()
                    if line == b"bye\n":
                        del self._heard[name]
                    elif line == b"look\n":
                        self._look()
        with self.news:
            if name in self._heard:  # it has not said goodbye
                self._heard[name] = time.monotonic() - LOST_SECONDS + BACK_SECONDS
            self._look()

    def _look(self) -> None:
        self.looks += 1
        self.news.notify_all()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], link: OwnerLink) -> None:
        self.link = link
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that breaks is made again by the other side."""


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.server.link.serve(self.request)


class LinkToOwner:
    """A trainer process's end: a thread that listens, and that ends the process when its owner is gone or says so."""

    def __init__(self, address: str, token: str, name: str, end: Callable[[str], None] | None = None) -> None:
        """Connect, in the thread.

        Args:
            name: Of this process, ``rank 0`` or ``node 1``.
            end: Called with the reason when the owner is gone or says ``end``; by default the process exits at once.
        """
        host, _, port = address.rpartition(":")
        self._address, self._token, self._name = (host, int(port)), token, name
        self._end = end or exit_orphan
        self._rung = threading.Condition()
        self._batch = 0
        self._left = False
        self._connection: socket.socket | None = None
        self._sending = threading.Lock()
        threading.Thread(target=self._run, name="link-to-owner", daemon=True).start()

    def wait(self, version: int, seconds: float) -> int:
        """Until the owner has announced the batch of ``version`` or a later one, or for so long; the latest one announced."""
        with self._rung:
            self._rung.wait_for(lambda: self._batch >= version, seconds)
            return self._batch

    def look(self) -> None:
        """Tell the owner that there is something to look at. Nothing happens without a connection: it looks anyhow."""
        self._send(b"look\n")

    def leave(self) -> None:
        """Tell the owner that this process has done its part and is not to be missed; the link ends."""
        self._left = True
        self._send(b"bye\n")
        with self._sending, contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self, line: bytes) -> None:
        with self._sending, contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.sendall(line)

    def _run(self) -> None:
        last, refused, why = time.monotonic(), 0, "it never answered"
        while not self._left and time.monotonic() - last < LOST_SECONDS and refused < REFUSALS:
            try:
                with socket.create_connection(self._address, timeout=BEAT_SECONDS) as connection:
                    for line in self._talk(connection):
                        last, refused = time.monotonic(), 0
                        if line == b"end\n":
                            return None if self._left else self._end("its owner has ended it")
                        if line.startswith(b"batch "):
                            with self._rung:
                                self._batch = int(line.split()[1])
                                self._rung.notify_all()
                    why = "the connection was closed"
            except ConnectionRefusedError as error:
                refused, why = refused + 1, str(error)
            except OSError as error:
                why = str(error)
            time.sleep(1)
        if not self._left:
            self._end(f"its owner at {self._address[0]}:{self._address[1]} is gone ({why})")

    def _talk(self, connection: socket.socket) -> Iterator[bytes]:
        """Lines from the owner. One that sends nothing for three beats may be cut off: then another connection is made."""
        connection.settimeout(3 * BEAT_SECONDS)
        connection.sendall(f"hello {self._token} {self._name}\n".encode())
        lines = connection.makefile("rb")
        if lines.readline(200) != b"welcome\n":
            return
        self._connection, beating = connection, threading.Event()
        threading.Thread(target=self._beat, args=(beating,), daemon=True).start()
        try:
            yield from lines
        finally:
            self._connection = None
            beating.set()

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(BEAT_SECONDS):
            self._send(b"\n")


def exit_orphan(reason: str) -> None:
    """End this process at once, whatever it does."""
    print(f"trainer: {reason}, exiting", file=sys.stderr, flush=True)
    # Not sys.exit: the main thread may sit in a collective that will never complete. Files appear only by rename, so nothing is torn.
    os._exit(ORPHAN_EXIT_CODE)
