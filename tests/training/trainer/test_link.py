"""The link between a run's owner and its trainer's processes: news arrive at once, and each side
notices that the other is gone."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener

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
            try:
                far = socket.create_connection(self._to)
            except ConnectionRefusedError:  # its owner has ended
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                self.whole.wait()
                sink.sendall(data)


def test_news_arrive_at_once_in_both_directions(owner: OwnerLink) -> None:
    process = Process(owner.address, owner.token)
    looks = owner.wait(0, 10)
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
    listener = Listener(("127.0.0.1", 0), authkey=b"secret")
    address = f"127.0.0.1:{listener.address[1]}"
    process = Process(address, "secret")
    listener.accept().close()
    listener.close()
    until(lambda: bool(process.why), 10)
    assert process.why[0].startswith(f"its owner at {address} is gone (")


def test_a_process_ends_where_another_program_has_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):  # until it is closed
                while True:
                    server.accept()[0].sendall(b"\0\0\0\x08GET / HT")

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        process = Process(address, "secret")
        until(lambda: bool(process.why), 10)
    assert process.why == [f"its owner at {address} is gone (the other side does not know the key)"]


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
    until(lambda: owner.looks == 2)
    wire.whole.clear()
    until(lambda: bool(owner.lost_nodes()), 6)
    assert owner.lost_nodes().keys() == {"node 1"}, "a rank that computes may be silent"
    until(lambda: bool(node.why and rank.why), 6)


def test_a_killed_node_is_missed_and_a_closed_one_is_not(owner: OwnerLink) -> None:
    host, _, port = owner.address.rpartition(":")
    for name, left in (("node 0", False), ("node 1", True)):
        with Client((host, int(port)), authkey=owner.token.encode()) as connection:
            assert json.loads(connection.recv_bytes()) == {"batch": 0, "end": False}
            connection.send_bytes(json.dumps({"name": name, "notified": 0, "left": left}).encode())
            time.sleep(0.2)
    assert until(lambda: bool(owner.lost_nodes()), 6) < 2
    time.sleep(3)
    assert owner.lost_nodes().keys() == {"node 0"}


def test_a_node_that_leaves_is_not_missed(owner: OwnerLink) -> None:
    looks = owner.looks
    process = Process(owner.address, owner.token, "node 0")
    assert owner.wait(looks, 10) > looks
    process.link.leave()
    time.sleep(1)
    assert not owner.lost_nodes() and not process.why


def test_the_rank_that_others_wait_for_is_named(owner: OwnerLink) -> None:
    """By its steps, or since it is silent; progress alone wakes nobody."""
    wire = Wire(owner.address)
    addresses = [owner.address, owner.address, wire.address]
    ranks = [Process(address, owner.token, f"rank {index}").link for index, address in enumerate(addresses)]
    until(lambda: owner.looks == 3)
    for rank, steps in zip(ranks, (3, 2, 3), strict=True):
        for _ in range(steps):
            rank.count_step()
    until(lambda: owner.hanging_ranks() == ["rank 1"])
    ranks[1].count_step()
    until(lambda: owner.hanging_ranks() == [])
    assert owner.looks == 3
    wire.whole.clear()
    until(lambda: owner.hanging_ranks() == ["rank 2"])


def test_who_does_not_know_the_token_is_told_nothing(owner: OwnerLink) -> None:
    host, _, port = owner.address.rpartition(":")
    owner.announce_batch(1)
    with pytest.raises(AuthenticationError):
        Client((host, int(port)), authkey=b"guess")
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(b"\0\0\0\x05guess")
        heard = b"".join(iter(lambda: stranger.recv(100), b""))
        assert heard.find(b"#CHALLENGE#") == 4 and b"batch" not in heard
    guessing = Process(owner.address, "guess")
    assert guessing.link.wait(1, 0.5) == 0 and not guessing.why


def test_strangers_who_say_nothing_keep_no_process_out(owner: OwnerLink) -> None:
    host, _, port = owner.address.rpartition(":")
    owner.announce_batch(1)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert Process(owner.address, owner.token).link.wait(1, 10) == 1
