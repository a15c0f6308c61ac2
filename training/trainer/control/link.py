"""Link between a run's owner (the flow's process) and the processes of its trainer.

Messages only wake the other side; files decide. The owner listens and every trainer process
connects. The owner sends ``batch N``; a process sends ``look`` when it wrote a file that the owner
waits for; both send an empty line every `BEAT_SECONDS`. So no side polls for files in a tight loop,
and each side notices within `LOST_SECONDS` that the other is gone, on this machine or another. A
lost message costs at most `LOOK_SECONDS`, after which files are checked anyway.
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
"""Time between two signs of life."""
LOST_SECONDS = 45.0
"""Silence after which the other side counts as gone. After a shorter one the link is made again."""
LOOK_SECONDS = 2.0
"""Time between two checks for a file that was not announced."""
BACK_SECONDS = 10.0
"""Time in which a process must reconnect after its connection was closed."""
REFUSALS = 3
"""Refused connections in a row, a second apart, after which the owner counts as gone."""
ORPHAN_EXIT_CODE = 86
"""Exit code of a process whose owner or parent is gone."""


class OwnerLink:
    """Owner's end of the link. Threads serve its connections; ``close`` ends the processes."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port of ``host``, this machine's address for the trainer's machines."""
        self.token = secrets.token_hex(16)
        self.changed = threading.Condition()
        self.looks = 0
        """Number of ``look`` messages and ended connections of all processes of the trainer."""
        self._batch = 0
        self._closed = False
        self._heard: dict[str, float] = {}
        """`time.monotonic` of each process's last message, by its name."""
        self._server = _LinkServer((host, 0), self)
        self.address = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()

    def announce_batch(self, version: int) -> None:
        """Announce that the batch that makes ``version`` is written."""
        with self.changed:
            self._batch = max(self._batch, version)
            self.changed.notify_all()

    def wait(self, seen: int, seconds: float) -> int:
        """Wait up to ``seconds`` until ``looks`` exceeds ``seen``; return it."""
        with self.changed:
            self.changed.wait_for(lambda: self.looks > seen, seconds)
            return self.looks

    def lost_nodes(self) -> dict[str, float]:
        """Return the seconds of silence of each node that is silent beyond `LOST_SECONDS`."""
        now = time.monotonic()
        with self.changed:
            silent = {name: now - last for name, last in self._heard.items() if name.startswith("node")}
        return {name: seconds for name, seconds in silent.items() if seconds > LOST_SECONDS}

    def close(self) -> None:
        """Tell all processes to end. Does nothing if it is closed already."""
        with self.changed:
            if self._closed:
                return
            self._closed = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    # ------------------------------------------------------------------ for the connections'
    # threads

    def serve(self, connection: socket.socket) -> None:
        """Serve one connection to its end, in its own thread."""
        connection.settimeout(LOST_SECONDS)
        lines = connection.makefile("rb")
        word, _, rest = lines.readline(200).decode(errors="replace").strip().partition(" ")
        token, _, name = rest.partition(" ")
        if word != "hello" or not secrets.compare_digest(token, self.token):
            return
        with self.changed:
            self._heard[name] = time.monotonic()
        reader = threading.Thread(target=self._hear, args=(name, lines), daemon=True)
        connection.sendall(b"welcome\n")
        reader.start()
        announced = 0
        while reader.is_alive():
            with self.changed:
                if not self._closed and self._batch == announced:
                    self.changed.wait(BEAT_SECONDS)
                closed, batch = self._closed, self._batch
            connection.sendall(b"end\n" if closed else f"batch {batch}\n".encode() if batch != announced else b"\n")
            announced = batch
            if closed:
                return

    def _hear(self, name: str, lines: BinaryIO) -> None:
        with contextlib.suppress(OSError):
            for line in lines:
                with self.changed:
                    self._heard[name] = time.monotonic()
                    if line == b"bye\n":
                        del self._heard[name]
                    elif line == b"look\n":
                        self._look()
        with self.changed:
            if name in self._heard:  # the process has not sent bye
                self._heard[name] = time.monotonic() - LOST_SECONDS + BACK_SECONDS
            self._look()

    def _look(self) -> None:
        self.looks += 1
        self.changed.notify_all()


class _LinkServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], link: OwnerLink) -> None:
        self.link = link
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a broken connection; the other side makes a new one."""


class _Handler(socketserver.BaseRequestHandler):
    server: _LinkServer

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.server.link.serve(self.request)


class LinkToOwner:
    """Trainer process's end: a thread that listens and ends the process with its owner."""

    def __init__(self, address: str, token: str, name: str, end: Callable[[str], None] | None = None) -> None:
        """Start the thread, which connects.

        Args:
            address: HOST:PORT of the owner.
            token: Secret of the owner, which refuses other connections.
            name: Name of this process, such as ``rank 0`` or ``node 1``.
            end: Called with the reason when the owner is gone or sends ``end``; by default the
                process exits at once.
        """
        host, _, port = address.rpartition(":")
        self._address, self._token, self._name = (host, int(port)), token, name
        self._end = end or exit_orphan
        self._batch_announced = threading.Condition()
        self._batch = 0
        self._left = False
        self._connection: socket.socket | None = None
        self._sending = threading.Lock()
        threading.Thread(target=self._run, name="link-to-owner", daemon=True).start()

    def wait(self, version: int, seconds: float) -> int:
        """Wait up to ``seconds`` for the batch of ``version``; return the latest announced one."""
        with self._batch_announced:
            self._batch_announced.wait_for(lambda: self._batch >= version, seconds)
            return self._batch

    def notify_owner(self) -> None:
        """Tell the owner to check for files. Without a connection it does so by itself later."""
        self._send(b"look\n")

    def leave(self) -> None:
        """Tell the owner that this process ends as planned, and close the link."""
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
                            with self._batch_announced:
                                self._batch = int(line.split()[1])
                                self._batch_announced.notify_all()
                    why = "the connection was closed"
            except ConnectionRefusedError as error:
                refused, why = refused + 1, str(error)
            except OSError as error:
                why = str(error)
            time.sleep(1)
        if not self._left:
            self._end(f"its owner at {self._address[0]}:{self._address[1]} is gone ({why})")

    def _talk(self, connection: socket.socket) -> Iterator[bytes]:
        """Yield the owner's lines.

        After three beats of silence the connection may be dead, so it ends and a new one is made.
        """
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
    """Exit this process at once, with the reason on standard error."""
    print(f"trainer: {reason}, exiting", file=sys.stderr, flush=True)
    # Not sys.exit: the main thread may wait in a collective that never completes. Files appear only
    # by rename, so none is left half-written.
    os._exit(ORPHAN_EXIT_CODE)
