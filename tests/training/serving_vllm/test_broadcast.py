"""A server takes weights from the trainer's sender, and reads the folder where it cannot."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.loopback import serving
from training.ledger.checkpoint_files import file_hashes
from training.ledger.store import write_json
from training.policy.adapters import load_policy
from training.policy.renderer import Renderer
from training.serving.vllm.broadcasting import ask_sender, join_broadcast
from training.serving.vllm.checksums import compare_weights
from training.serving.vllm.client import ServerClient
from training.serving.vllm.in_server.rollwright_broadcast import Broadcast
from training.serving.vllm.probe import probe_picture
from training.serving.vllm.publishing import publish
from training.trainer.sender import WeightSender

from .conftest import Policy, copy_policy, free_port
from .fake_vllm import fake
from .judging import EXACT, WRONG, Judge, ask

CPU = torch.device("cpu")


@pytest.fixture
def sender() -> Iterator[WeightSender]:
    with closing(WeightSender("127.0.0.1", "", CPU)) as made:
        yield made


def offer(sender: WeightSender, version: int, folder: Path) -> None:
    """Offer what transformers loads from a folder, as a trainer has it; the manifest names the
    sender."""
    model = load_policy(folder, torch.float32)
    names = {name for name, _ in model.named_parameters()}
    weights = {name: value for name, value in model.state_dict().items() if name in names}
    sender.offer(version, model, weights, folder)
    write_manifest(folder, sender.name)


def write_manifest(folder: Path, sender: str) -> None:
    document = {"version": 1, "sender": sender, "files": file_hashes(folder)}
    write_json(folder / "manifest.json", document, sealed=True)


@pytest.fixture
def other(policy: Policy, sender: WeightSender) -> Path:
    """A folder of version 1 with the weights of version 2. The sender offers those of version 1, so
    that a server shows what it took."""
    offer(sender, 1, policy(1))
    folder = policy(1).with_name("other")
    shutil.copytree(policy(2), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
    write_manifest(folder, sender.name)
    return folder


async def shown(client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge) -> int:
    """The version, 1 or 2, whose log-probs the server gives."""
    request = ask(renderer, probe_picture(3), key="turn/broadcast")
    turn = await client.generate(request, 1)
    gaps = [differ(policy(version), request, turn).maximum for version in (1, 2)]
    assert min(gaps) <= EXACT and max(gaps) > WRONG
    return 1 + gaps.index(min(gaps))


@pytest.mark.vllm
async def test_a_server_takes_what_is_broadcast(
    client: ServerClient, renderer: Renderer, policy: Policy, differ: Judge, other: Path
) -> None:
    publication = await publish([client], 1, other)
    print(publication)
    assert publication.broadcast == 1
    assert await shown(client, renderer, policy, differ) == 1
    assert not (await compare_weights([client], 1, policy(1))).failed
    assert (await publish([client], 1, other, together=False)).broadcast == 0
    assert await shown(client, renderer, policy, differ) == 2


@pytest.mark.vllm
async def test_a_broadcast_that_breaks_off_leaves_the_folders_weights(
    client: ServerClient,
    renderer: Renderer,
    policy: Policy,
    differ: Judge,
    other: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = []

    def break_off(self: Broadcast, tensors: dict[str, torch.Tensor], seconds: float) -> None:
        listing = [(name, str(one.dtype)[6:], list(one.shape)) for name, one in tensors.items()]
        content = torch.frombuffer(bytearray(json.dumps(listing).encode()), dtype=torch.uint8)
        self._move(torch.tensor([len(content)]).view(torch.uint8))
        self._move(content)
        for name, tensor in list(tensors.items())[: len(tensors) // 2]:
            sent.append(name)
            self._move(tensor.reshape(-1).view(torch.uint8))

    monkeypatch.setattr(Broadcast, "send", break_off)
    assert (await publish([client], 1, other)).broadcast == 0
    assert len(sent) > 5
    assert "read v1 from its folder: RuntimeError" in caplog.text
    assert await shown(client, renderer, policy, differ) == 2
    assert not (await compare_weights([client], 1, policy(2))).failed


@pytest.mark.vllm
async def test_another_models_tensors_leave_the_folders_weights(
    client: ServerClient,
    renderer: Renderer,
    policy: Policy,
    differ: Judge,
    other: Path,
    sender: WeightSender,
    caplog: pytest.LogCaptureFixture,
) -> None:
    version, tensors, fault = sender._offer
    sender._offer = version, {name: value for name, value in tensors.items() if "norm" not in name}, fault
    assert (await publish([client], 1, other)).broadcast == 0
    assert "is of another model: " in caplog.text and "missing" in caplog.text
    assert await shown(client, renderer, policy, differ) == 2


@pytest.mark.parametrize("fault", ["another version", "a trainer that has ended", "no trainer"])
@pytest.mark.vllm
async def test_without_its_trainer_a_version_is_read_from_its_folder(
    client: ServerClient,
    renderer: Renderer,
    policy: Policy,
    differ: Judge,
    other: Path,
    sender: WeightSender,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    if fault == "another version":
        offer(sender, 7, policy(1))
        write_manifest(other, sender.name)
    elif fault == "a trainer that has ended":
        write_manifest(other, f"127.0.0.1:{free_port()}")
    else:
        write_manifest(other, "")
    assert (await publish([client], 1, other)).broadcast == 0
    assert ("it has v7, and not v1" in caplog.text) == (fault == "another version")
    assert await shown(client, renderer, policy, differ) == 2


async def test_a_server_that_cannot_join_leaves_all_to_the_folder(
    tmp_path: Path, sender: WeightSender, caplog: pytest.LogCaptureFixture
) -> None:
    copy_policy(tmp_path / "v1")
    offer(sender, 1, tmp_path / "v1")
    joins = [{"done": False, "fault": ""}, {"done": True, "fault": "no route"}]
    waits = fake(joins=[{"done": False, "fault": ""}] * 1000)
    with serving(waits) as first, serving(fake(joins=joins)) as second:
        clients = [ServerClient(first), ServerClient(second)]
        assert (await join_broadcast(clients, 1, tmp_path / "v1")).servers == frozenset()
        asked = len(waits.bodies)
        await asyncio.sleep(0.3)
        assert len(waits.bodies) == asked, "it is asked again and again"
    assert f"{second} cannot join: no route" in caplog.text


async def test_a_server_that_does_not_answer_is_left_out(tmp_path: Path, sender: WeightSender) -> None:
    """The others join under successive ranks."""
    copy_policy(tmp_path / "v1")
    offer(sender, 1, tmp_path / "v1")
    kinds = [fake(workers=2), fake(workers=1), fake()]
    with serving(kinds[0]) as first, serving(kinds[1]) as second, serving(kinds[2]) as third:
        kinds[2].missing = ("/collective_rpc",)
        clients = [ServerClient(f"http://127.0.0.1:{free_port()}"), ServerClient(first), ServerClient(second)]
        joined = await join_broadcast(clients, 1, tmp_path / "v1")
        assert joined.servers == {first, second}
        asked = [kind.bodies[-1]["kwargs"] for kind in kinds[:2]]
        assert [(one["first_rank"], one["size"]) for one in asked] == [(1, 4), (3, 4)]
        assert {one["name"] for one in asked} == {joined.name}
        assert (await join_broadcast([ServerClient(third)], 1, tmp_path / "v1")).servers == frozenset()


def test_all_receivers_get_all_tensors_as_they_are(sender: WeightSender) -> None:
    tensors = {
        "half": torch.randn(7, 3).bfloat16(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "part": torch.arange(12.0).reshape(3, 4).t(),
    }

    def receive(rank: int) -> dict[str, torch.Tensor]:
        broadcast = Broadcast(sender.address, "three", rank, 3, "gloo", CPU, 20)
        try:
            return dict(broadcast.tensors(broadcast.listing(20)))
        finally:
            broadcast.close()

    def send() -> None:
        broadcast = Broadcast(sender.address, "three", 0, 3, "gloo", CPU, 20)
        broadcast.send(tensors, 20)
        broadcast.close()

    with ThreadPoolExecutor(3) as threads:
        sending, receivers = threads.submit(send), [threads.submit(receive, rank) for rank in (1, 2)]
        sending.result(60)
        for receiver in receivers:
            received = receiver.result(60)
            assert list(received) == list(tensors)
            for name, tensor in tensors.items():
                assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor)


def test_the_store_listens_on_the_way_to_the_servers_only() -> None:
    with closing(WeightSender("localhost", "127.0.0.2:4000", CPU)) as sender:
        host, _, port = sender.address.rpartition(":")
        assert host == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.3", int(port)), 5)


def test_tensors_under_other_names_are_not_offered(tmp_path: Path, sender: WeightSender) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    for tensors, wrong in (
        ({"b": torch.zeros(2)}, "a is None in the trainer"),
        ({"a": torch.zeros(3)}, r"[2]) in its checkpoint"),
        ({"a": torch.zeros(2).bfloat16()}, "('F32', [2]) in its checkpoint"),
    ):
        sender.offer(1, torch.nn.Linear(1, 1), tensors, tmp_path)
        request = {"version": 1, "size": 2, "device": "cpu", "seconds": 5}
        assert wrong in ask_sender(sender.name, request)["fault"]
