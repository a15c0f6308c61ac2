"""Counts the bytes that pass through a Dask scheduler in this process, both in and out.

Dask counts messages, not their bytes, so the counting sits where a connection's socket is read and
written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from distributed.comm.tcp import TCP, TCPConnector, TCPListener


class DaskTraffic:
    """Bytes of this process's Dask connections over TCP, heartbeats and handshakes included.

    The scheduler and its client live in this process, so a connection between them has both of its
    ends here: it is counted at the listening end only. A message from the client to a worker counts
    twice all the same, as it comes in and as it goes out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted: Counter[str] = Counter()
        """By the address here that listens."""
        self._connected: Counter[str] = Counter()
        """By the address that was called from here."""

    @property
    def total(self) -> int:
        """Bytes read and written so far."""
        with self._lock:
            called = sum(count for address, count in self._connected.items() if address not in self._accepted)
            return self._accepted.total() + called

    @contextmanager
    def count(self) -> Iterator[DaskTraffic]:
        """Count the connections that are opened meanwhile, until they are closed."""
        with (
            patch.object(TCPListener, "comm_class", self._counted("local_address", self._accepted)),
            patch.object(TCPConnector, "comm_class", self._counted("peer_address", self._connected)),
        ):
            yield self

    def _counted(self, key: str, counts: Counter[str]) -> type[Any]:
        """A comm whose stream adds what it reads and writes to the count of that address of the
        comm."""
        traffic = self

        class CountedTCP(TCP):  # type: ignore[misc]
            def __init__(self, stream: Any, *arguments: Any, **options: Any) -> None:
                super().__init__(stream, *arguments, **options)
                address = getattr(self, key)
                # The two methods that Tornado's streams have for their transport; both give a
                # number of bytes or None.
                stream.read_from_fd = traffic._adding(stream.read_from_fd, counts, address)
                stream.write_to_fd = traffic._adding(stream.write_to_fd, counts, address)

        return CountedTCP

    def _adding(self, transfer: Any, counts: Counter[str], address: str) -> Any:
        def counted(buffer: Any) -> int | None:
            try:
                moved: int | None = transfer(buffer)
            finally:
                del buffer  # as in Tornado: a traceback that held it would keep the stream's buffer from being resized
            if moved:
                with self._lock:
                    counts[address] += moved
            return moved

        return counted
