"""Watches the Prefect server while a flow runs.

Prefect itself does not: its calls wait for minutes without a message.

While the server does not answer, the run goes on as far as it can and waits where it needs the
server. Ctrl-C ends the run even then, by ending the flow's own processes. Every file is written
atomically, so the run can be resumed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx
import psutil
from prefect.settings import PREFECT_API_URL

from envs.types import RollwrightError
from training.trainer.control.processes import end_processes, process_started

T = TypeVar("T")
LOOK_SECONDS = 2.0
"""Seconds between two checks of the server."""
ANSWER_SECONDS = 2.0
"""Seconds that one check waits: a busy server on one laptop answers within a second."""
SILENT_SECONDS = 6.0
"""Seconds without a server before a message: with the check that notices it, within ten seconds."""
SLOW_SECONDS = 30.0
"""Seconds without an answer of a listening server before a message. It may only be busy."""
END_SECONDS = 3.0
"""Seconds for our processes to end by themselves after Ctrl-C without a server."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""


class ServerWatch:
    """Checks a server every few seconds, in its own thread.

    Args:
        api: Address of the Prefect API.
        say: Prints a line.
        own: Pid of the server where this process started it; when that ends, it is not
            started again.
        end: Ends this process at once; tests give another function.
    """

    def __init__(
        self, api: str, say: Callable[[str], object], own: int | None = None, end: Callable[[int], object] | None = None
    ) -> None:
        self._api, self._say, self._own = api, say, own
        self._end = end or end_process
        self.answers = threading.Event()
        self.answers.set()
        self.interrupted = threading.Event()
        self._over = threading.Event()
        self._slow = False
        """True if something listens at the address and did not answer the last check in time."""
        self._thread = threading.Thread(target=self._watch, name="prefect-server", daemon=True)

    def __enter__(self) -> ServerWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.interrupted.set()  # the thread waits for this
        self._thread.join()

    def retry_until_reachable(self, call: Callable[[], T]) -> T:
        """Return the result of a call of the server's API, tried again until the server answers."""
        while True:
            try:
                return call()
            except (httpx.TransportError, httpx.HTTPStatusError):
                if self._is_healthy():
                    raise
                self.answers.clear()
                self.answers.wait()

    def _watch(self) -> None:
        last, reported = time.monotonic(), False
        while not self._over.is_set():
            if self._is_healthy():
                if reported:
                    self._say(f"the Prefect server at {self._api} answers again: the run goes on")
                last, reported = time.monotonic(), False
                self.answers.set()
            elif not self._over.is_set():
                if self.interrupted.is_set():
                    self._say("interrupted: what is whole is kept; start the same command again to go on")
                    self._end(INTERRUPTED)
                    return
                if self._own is not None and process_started(self._own) is None:
                    self._say(
                        f"error: the Prefect server of this run, at {self._api}, has ended; what is whole is kept: "
                        f"start the same command again to go on"
                    )
                    self._end(1)
                    return
                if not reported and time.monotonic() - last >= (SLOW_SECONDS if self._slow else SILENT_SECONDS):
                    self._say(
                        f"the Prefect server at {self._api} does not answer: the run waits for it where it has to; "
                        f"start the server again, or press Ctrl-C and go on later with the same command"
                    )
                    reported = True
                    self.answers.clear()
            self.interrupted.wait(LOOK_SECONDS) if not self.interrupted.is_set() else self._over.wait(0.5)

    def _is_healthy(self) -> bool:
        try:
            # No secret is sent, so the certificate is not checked; Prefect's own calls check it.
            return httpx.get(f"{self._api}/health", timeout=ANSWER_SECONDS, verify=False).status_code < 500
        except httpx.HTTPError as error:
            self._slow = isinstance(error, httpx.TimeoutException)
            return False


_watch: ServerWatch | None = None


@contextmanager
def watched_server(api: str, own: int | None = None) -> Iterator[None]:
    """Watch the Prefect server of this process while flows run inside. Call it in the main
    thread."""
    global _watch
    with ServerWatch(api, _print_line, own) as _watch:
        previous_handler = signal.getsignal(signal.SIGINT)

        def interrupt(signum: int, frame: object) -> None:
            if _watch is not None:
                _watch.interrupted.set()
            if callable(previous_handler):
                previous_handler(signum, frame)  # type: ignore[arg-type]

        if callable(previous_handler):
            signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
                raise RollwrightError(f"the Prefect server at {api} refused a call: {error}") from error
            raise RollwrightError(
                f"the Prefect server at {api} does not answer ({type(error).__name__}); what is whole is kept: "
                f"start it, and then the same command again"
            ) from error
        finally:
            signal.signal(signal.SIGINT, previous_handler)
            _watch = None


def retry_until_reachable(call: Callable[[], T]) -> T:
    """Return the result of a call of the server's API, tried again until the server answers.

    A flow run that a Prefect worker started has no `watched_server`: its server is watched during
    the wait.
    """
    if _watch is not None:
        return _watch.retry_until_reachable(call)
    try:
        return call()
    except (httpx.TransportError, httpx.HTTPStatusError):
        api = PREFECT_API_URL.value()
        if not api:
            raise
        with ServerWatch(api, _print_line) as watch:
            return watch.retry_until_reachable(call)


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def end_process(status: int) -> None:
    """End this process and its children at once, without exit handlers, which wait for a server."""
    end_processes(psutil.Process().children(recursive=True), END_SECONDS)
    os._exit(status)
