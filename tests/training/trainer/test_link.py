"""The link between a run's owner and its trainer's processes: news arrive at once, and each side
notices that the other is gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from training.trainer.control import link
from training.trainer.control.link import LinkToOwner, OwnerLink


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(link, "LOST_SECONDS", 3.0)
    monkeypatch.setattr(link, "BACK_SECONDS", 0.5)


@pytest.fixture
def owner() -> Iterator[OwnerLink]:
    made = OwnerLink()
    yield made
    made.close()


class Process:
    """A trainer's process that notes why it would have ended."""

    def __init__(self, address: str, token: str, name: str = "rank 0") -> None:
        self.why: list[str] = []
        self.link = LinkToOwner(address, token, name, self.why.append)


def until(condition: Callable[[], bool], seconds: float = 20) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds
        time.sleep(0.01)
    return time.monotonic() - start


class Wire:
    """Between the two: can be cut, so that nothing passes and nobody is told."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = host, int(port)
        self.whole = threading.Event()
        self.whole.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            far = socket.create_connection(self._to)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                self.whole.wait()
                sink.sendall(data)


def test_news_arrive_at_once_in_both_directions(owner: OwnerLink) -> None:
    process = Process(owner.address, owner.token)
    looks = owner.looks
    threading.Timer(0.3, owner.announce_batch, (4,)).start()
    start = time.monotonic()
    assert process.link.wait(4, 10) == 4 and 0.25 < time.monotonic() - start < 2
    assert process.link.wait(5, 0.1) == 4, "nobody has told of 5"
    threading.Timer(0.3, process.link.notify_owner).start()
    start = time.monotonic()
    assert owner.wait(looks, 10) == looks + 1 and 0.25 < time.monotonic() - start < 2
    late = Process(owner.address, owner.token, "rank 1")
    assert late.link.wait(4, 10) == 4, "what was told before it came is told again"


def test_the_processes_end_when_the_owner_says_so(owner: OwnerLink) -> None:
    processes = [Process(owner.address, owner.token, f"rank {rank}") for rank in range(3)]
    owner.announce_batch(1)
    assert [process.link.wait(1, 10) for process in processes] == [1, 1, 1]
    owner.close()
    until(lambda: all(process.why == ["its owner has ended it"] for process in processes), 2)


def test_a_process_whose_owner_has_died_ends_within_seconds() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    process = Process(address, "secret")
    connection, _ = listener.accept()
    connection.sendall(b"welcome\n")
    connection.close()
    listener.close()
    until(lambda: bool(process.why), 10)
    assert process.why[0].startswith(f"its owner at {address} is gone (")


def test_a_link_that_is_cut_for_less_than_the_limit_is_made_again(owner: OwnerLink) -> None:
    wire = Wire(owner.address)
    process = Process(wire.address, owner.token, "node 1")
    owner.announce_batch(1)
    assert process.link.wait(1, 10) == 1
    wire.whole.clear()
    owner.announce_batch(2)
    assert process.link.wait(2, 1.5) == 1 and not owner.lost_nodes()
    wire.whole.set()
    assert process.link.wait(2, 5) == 2 and not process.why


def test_both_sides_notice_a_link_that_stays_cut(owner: OwnerLink) -> None:
    wire = Wire(owner.address)
    node, rank = Process(wire.address, owner.token, "node 1"), Process(wire.address, owner.token, "rank 1")
    owner.announce_batch(1)
    assert node.link.wait(1, 10) == rank.link.wait(1, 10) == 1
    wire.whole.clear()
    until(lambda: bool(owner.lost_nodes()), 6)
    assert owner.lost_nodes().keys() == {"node 1"}, "a rank that computes may be silent"
    until(lambda: bool(node.why and rank.why), 6)


def test_a_killed_node_is_missed_and_a_closed_one_is_not(owner: OwnerLink) -> None:
    host, _, port = owner.address.rpartition(":")
    for name, last in (("node 0", b"\n"), ("node 1", b"bye\n")):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"hello {owner.token} {name}\n".encode())
            assert connection.recv(100).startswith(b"welcome")
            connection.sendall(last)
            time.sleep(0.2)
    assert until(lambda: bool(owner.lost_nodes()), 6) < 2
    time.sleep(3)
    assert owner.lost_nodes().keys() == {"node 0"}


def test_who_does_not_know_the_token_is_told_nothing(owner: OwnerLink) -> None:
    host, _, port = owner.address.rpartition(":")
    owner.announce_batch(1)
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(b"hello guess node 0\n")
        assert stranger.recv(100) == b""
    assert Process(owner.address, "guess").link.wait(1, 0.5) == 0
