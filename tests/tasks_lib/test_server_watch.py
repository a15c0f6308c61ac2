"""A Prefect server that does not answer is named, waited for, and does not keep Ctrl-C from
working."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Callable

import httpx
import pytest

from tasks_lib.processes import server_watch
from tasks_lib.processes.server_watch import ServerWatch
from training.trainer.control.launch import free_port


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def serve(port: int) -> http.server.ThreadingHTTPServer:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ServerWatch, list[str], list[int]]]:
    """``watch(port, own=…)``: a watch that looks often, what it says, and with which status it
    ends."""
    for name, seconds in {"LOOK_SECONDS": 0.02, "SILENT_SECONDS": 0.1, "ANSWER_SECONDS": 2.0}.items():
        monkeypatch.setattr(server_watch, name, seconds)

    def make(port: int, own: int | None = None) -> tuple[ServerWatch, list[str], list[int]]:
        said: list[str] = []
        ended: list[int] = []
        return ServerWatch(f"http://127.0.0.1:{port}/api", said.append, own, ended.append), said, ended

    return make


def until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("never")


def test_a_call_waits_for_a_server_that_comes_back(watch) -> None:
    port = free_port()
    server = serve(port)
    found, said, ended = watch(port)
    calls = 0

    def call() -> str:
        nonlocal calls
        calls += 1
        return str(httpx.get(f"http://127.0.0.1:{port}/x", trust_env=False).status_code)

    with found:
        assert found.retry_until_reachable(call) == "200" and said == []
        server.shutdown()
        server.server_close()
        threading.Thread(target=lambda: (until(lambda: said and calls > 1), serve(port))).start()
        assert found.retry_until_reachable(call) == "200"
        until(lambda: len(said) == 2)
    assert f"http://127.0.0.1:{port}/api does not answer" in said[0] and "answers again" in said[1]
    assert calls >= 2 and not ended


def test_an_error_of_a_server_that_answers_is_no_outage(watch) -> None:
    port = free_port()
    serve(port)
    found, _, _ = watch(port)

    def refuse() -> None:
        raise httpx.ReadTimeout("of one call")

    with found, pytest.raises(httpx.ReadTimeout):
        found.retry_until_reachable(refuse)


def test_an_interrupt_without_a_server_ends_the_process(watch) -> None:
    found, said, ended = watch(free_port())
    with found:
        until(lambda: said)
        found.interrupted.set()
        until(lambda: ended)
    assert ended == [130] and said[-1].startswith("interrupted: what is whole is kept")


def test_a_server_of_our_own_that_is_gone_is_not_waited_for(watch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])  # a zombie, as a child that was killed is
    until(lambda: server_watch.process_started(gone.pid) is None)
    found, said, ended = watch(free_port(), own=gone.pid)
    with found:
        until(lambda: ended)
    gone.wait()
    assert ended == [1] and "has ended; what is whole is kept: start the same command again" in said[-1]
