"""Link between a run's owner (the flow's process) and the processes of its trainer.

Messages only wake the other side; files decide. The owner listens and every trainer process
connects; both check that the other one knows the link's key. Each side sends its whole state as
JSON, at every change and every `BEAT_SECONDS`. So no side polls for files in a tight loop, a new
connection makes up for lost messages, and each side notices within `LOST_SECONDS` that the other is
gone, on this machine or another. Files are checked every `LOOK_SECONDS` anyway.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from training.trainer.control.processes import exit_orphan

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
MAX_MESSAGE_BYTES = 1000
"""Longest message, ten times what is sent."""

State = dict[str, Any]
Check = Callable[[Connection, bytes], None]


class LinkEnd:
    """Base of both ends. It keeps this end's state and exchanges it with the other end's."""

    def __init__(self, token: str, state: State) -> None:
        self.token = token
        self._state = state
        self._changed = threading.Condition()

    def _change(self, **values: object) -> None:
        with self._changed:
            self._state = {**self._state, **values}
            self._changed.notify_all()

    def _exchange(
        self, peer: socket.socket, receive: Callable[[State], bool], silence: float, checks: tuple[Check, Check]
    ) -> None:
        """Send our states and hand the peer's to ``receive``, until it returns False or the end.

        Raises:
            OSError: The peer does not know the key, or is silent for ``silence`` seconds.
        """
        peer.settimeout(None)  # a Connection needs a blocking socket; the kernel keeps the limits
        limit = struct.pack("@ll", int(silence), int(silence % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            peer.setsockopt(socket.SOL_SOCKET, option, limit)
        over = threading.Event()
        with Connection(peer.detach()) as connection:
            try:
                for check in checks:
                    check(connection, self.token.encode())
                sender = threading.Thread(target=self._send, args=(connection, over), daemon=True)
                sender.start()
                try:
                    while receive(json.loads(connection.recv_bytes(MAX_MESSAGE_BYTES))):
                        pass
                finally:
                    over.set()
                    self._change()
                    sender.join()
            except EOFError:
                return
            except BlockingIOError as error:
                raise TimeoutError("timed out") from error
            except (AuthenticationError, AssertionError) as error:  # answer_challenge asserts
                raise ConnectionError("the other side does not know the key") from error

    def _send(self, connection: Connection, over: threading.Event) -> None:
        sent: State = {}

        def is_news() -> bool:
            return over.is_set() or self._state != sent

        with suppress(OSError):  # the receiving thread ends too
            while not over.is_set():
                with self._changed:
                    self._changed.wait_for(is_news, BEAT_SECONDS)
                    sent = self._state
                connection.send_bytes(json.dumps(sent).encode())


class OwnerLink(LinkEnd):
    """Owner's end of the link. Threads serve its connections; ``close`` ends the processes."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port of ``host``, this machine's address for the trainer's machines."""
        super().__init__(secrets.token_hex(16), {"batch": 0, "end": False})
        self.looks = 0
        """Number of notifications and ended connections of all processes of the trainer."""
        self._processes: dict[str, tuple[State, float]] = {}
        """Last state of each process that has not left, and its `time.monotonic`, by name."""
        self._listener = socket.create_server((host, 0))
        self._listener.settimeout(0.5)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="owner-link", daemon=True).start()

    def announce_batch(self, version: int) -> None:
        """Announce that the batch that makes ``version`` is written."""
        with self._changed:
            self._change(batch=max(self._state["batch"], version))

    def wait(self, seen: int, seconds: float) -> int:
        """Wait up to ``seconds`` until ``looks`` exceeds ``seen``; return it."""
        with self._changed:
            self._changed.wait_for(lambda: self.looks > seen, seconds)
            return self.looks

    def lost_nodes(self) -> dict[str, float]:
        """Return the seconds of silence of each node that is silent beyond `LOST_SECONDS`."""
        now = time.monotonic()
        with self._changed:
            silent = {name: now - heard for name, (_, heard) in self._processes.items() if name.startswith("node")}
        return {name: seconds for name, seconds in silent.items() if seconds > LOST_SECONDS}

    def hanging_ranks(self) -> list[str]:
        """Return the ranks that hold up the others, which wait for them in a collective operation.

        They are those that are silent, or else those with the fewest steps; none if all have as
        many.
        """
        now = time.monotonic()
        with self._changed:
            ranks = {name: noted for name, noted in self._processes.items() if name.startswith("rank")}
        silent = [name for name, (_, heard) in ranks.items() if now - heard > 3 * BEAT_SECONDS]
        steps = {name: state["steps"] for name, (state, _) in ranks.items()}
        behind = [name for name, count in steps.items() if count < max(steps.values())]
        return sorted(silent or behind)

    def close(self) -> None:
        """Tell all processes to end. Does nothing if it is closed already."""
        self._change(end=True)

    def _accept(self) -> None:
        with self._listener:
            while not self._state["end"]:
                with suppress(OSError):  # none came, or one that is gone already
                    threading.Thread(target=self._serve, args=self._listener.accept(), daemon=True).start()

    def _serve(self, peer: socket.socket, address: object) -> None:
        """Serve one connection to its end, in its own thread."""
        last: State = {}

        def receive(state: State) -> bool:
            self._note(state, time.monotonic())
            last.update(state)
            return not state["left"]

        with suppress(OSError):  # the process connects again if it lives
            self._exchange(peer, receive, LOST_SECONDS, (deliver_challenge, answer_challenge))
        if last:
            self._note(last | {"notified": -1}, time.monotonic() - LOST_SECONDS + BACK_SECONDS)

    def _note(self, state: State, heard: float) -> None:
        """Note the state of a process; a new one wakes the flow."""
        with self._changed:
            known, _ = self._processes.pop(state["name"], (None, heard))
            if not state["left"]:
                self._processes[state["name"]] = state, heard
            if known is None or {**state, "steps": 0} != {**known, "steps": 0}:
                self.looks += 1
                self._changed.notify_all()


class LinkToOwner(LinkEnd):
    """Trainer process's end: a thread that listens and ends the process with its owner."""

    def __init__(self, address: str, token: str, name: str, end: Callable[[str], None] = exit_orphan) -> None:
        """Start the thread, which connects.

        Args:
            address: HOST:PORT of the owner.
            token: Key of the owner, which refuses other connections.
            name: Name of this process, such as ``rank 0`` or ``node 1``.
            end: Called with the reason when the owner is gone or tells its processes to end; by
                default the process exits at once.
        """
        super().__init__(token, {"name": name, "notified": 0, "steps": 0, "left": False})
        self._address, self._end = address, end
        self._owner: State = {"batch": 0, "end": False}
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="link-to-owner", daemon=True)
        self._thread.start()

    def wait(self, version: int, seconds: float) -> int:
        """Wait up to ``seconds`` for the batch of ``version``; return the latest announced one."""
        with self._changed:
            self._changed.wait_for(lambda: self._owner["batch"] >= version, seconds)
            return int(self._owner["batch"])

    def notify_owner(self) -> None:
        """Tell the owner to check for files. Without a connection it does so by itself later."""
        self._change(notified=self._state["notified"] + 1)

    def count_step(self) -> None:
        """Count a sign of progress, which the owner learns within `BEAT_SECONDS`."""
        with self._changed:
            self._state = {**self._state, "steps": self._state["steps"] + 1}

    def leave(self) -> None:
        """Tell the owner that this process ends as planned, and close the link."""
        self._change(left=True)
        self._thread.join(BEAT_SECONDS)

    def _receive(self, state: State) -> bool:
        with self._changed:
            self._owner, self._heard = state, time.monotonic()
            self._changed.notify_all()
        return not state["end"]

    def _run(self) -> None:
        host, _, port = self._address.rpartition(":")
        refused, why = 0, "it never answered"
        while not self._state["left"] and time.monotonic() - self._heard < LOST_SECONDS and refused < REFUSALS:
            try:
                peer = socket.create_connection((host, int(port)), timeout=BEAT_SECONDS)
                refused, why = 0, "the connection was closed"
                # Silence of three beats: the connection may be dead, so a new one is made.
                self._exchange(peer, self._receive, 3 * BEAT_SECONDS, (answer_challenge, deliver_challenge))
            except ConnectionRefusedError as error:
                refused, why = refused + 1, str(error)
            except OSError as error:
                why = str(error)
            if self._owner["end"] and not self._state["left"]:
                return self._end("its owner has ended it")
            time.sleep(1)
        if not self._state["left"]:
            self._end(f"its owner at {self._address} is gone ({why})")
