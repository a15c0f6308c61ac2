"""Machines read and hash weights before a publication pauses their servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from envs.types import EngineError, PolicyError, StorageError
from tests.loopback import serving
from training.ledger.checkpoint_files import MANIFEST, file_hashes
from training.ledger.store import write_json
from training.serving.vllm.client import ServerClient
from training.serving.vllm.publishing import publish

from .fake_vllm import FakeVllm, fake

Servers = tuple[list[type[FakeVllm]], list[ServerClient]]
READ: dict[str, Any] = {"done": True, "fault": ""}
READING: dict[str, Any] = {"done": False, "fault": ""}
OTHER: dict[str, Any] = {"done": True, "fault": "model.safetensors does not hold what its manifest says"}


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Two servers of this machine."""
    kinds = [fake(), fake()]
    with serving(kinds[0]) as first, serving(kinds[1]) as second:
        yield kinds, [ServerClient(first), ServerClient(second)]


@pytest.fixture
def elsewhere(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """The same two, as servers of another machine."""
    monkeypatch.setattr("training.serving.vllm.publishing.is_here", lambda host: False)
    monkeypatch.setattr("training.serving.vllm.publishing.READ_SECONDS", 0.0)
    return servers


@pytest.fixture
def machines(elsewhere: Servers) -> Servers:
    """The same two, each of a machine of its own by the name of its host."""
    kinds, (first, second) = elsewhere
    return kinds, [first, ServerClient(second.address.replace("127.0.0.1", "localhost"))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published policy with a manifest."""
    place = tmp_path / "v000001"
    place.mkdir()
    save_file({"layer": torch.ones(4)}, place / "model.safetensors")
    write_json(place / MANIFEST, {"version": 1, "files": file_hashes(place)}, sealed=True)
    return place


async def test_damaged_weights_are_found_before_a_server_is_paused(servers: Servers, folder: Path) -> None:
    kinds, clients = servers
    await publish(clients, 1, folder)
    assert [kind.label for kind in kinds] == ["1", "1"]
    save_file({"layer": torch.zeros(4)}, folder / "model.safetensors")
    before = [list(kind.calls) for kind in kinds]
    with pytest.raises(StorageError, match=r"model\.safetensors does not hold what manifest\.json says"):
        await publish(clients, 1, folder)
    assert [kind.calls for kind in kinds] == before, "no server was asked anything"


async def test_another_machine_reads_weights_once_before_the_pause(elsewhere: Servers, folder: Path) -> None:
    kinds, clients = elsewhere
    kinds[0].readings = [READING, READ]
    await publish(clients, 1, folder)
    assert kinds[0].calls[:3] == ["/collective_rpc", "/collective_rpc", "/start_weight_update"]
    assert [kind.label for kind in kinds] == ["1", "1"] and "/collective_rpc" not in kinds[1].calls
    kinds[0].readings = [OTHER]
    before = [len(kind.calls) for kind in kinds]
    with pytest.raises(PolicyError, match="does not hold what its manifest says"):
        await publish(clients, 2, folder)
    assert [len(kind.calls) for kind in kinds] == [before[0] + 1, before[1]], "no server was paused"


@pytest.mark.parametrize("wrong", [0, 1])
async def test_a_machine_that_reads_other_bytes_is_left_out(machines: Servers, folder: Path, wrong: int) -> None:
    kinds, clients = machines
    kinds[wrong].readings, kinds[1 - wrong].readings = [OTHER], [READ]
    publication = await publish(clients, 1, folder)
    assert publication.failed.keys() == {clients[wrong].address}
    assert isinstance(publication.failed[clients[wrong].address], PolicyError)
    assert kinds[1 - wrong].label == "1" and kinds[wrong].calls == ["/collective_rpc"], "it goes on as it was"


@pytest.mark.parametrize("silent", [False, True])
async def test_a_machine_that_does_not_read_in_time_is_left_out(
    machines: Servers, folder: Path, caplog: pytest.LogCaptureFixture, silent: bool
) -> None:
    kinds, clients = machines
    kinds[0].readings, kinds[1].readings = [READING] * 100_000, [READ]
    kinds[0].stuck = stuck = threading.Event()
    if not silent:
        stuck.set()
    publication = await publish(clients, 1, folder, limit=1.0)
    stuck.set()
    (fault,) = publication.failed.values()
    assert isinstance(fault, EngineError) and f"{clients[0].address}: the machine has not read" in str(fault)
    assert [kind.label for kind in kinds] == ["default", "1"]
    assert [record.getMessage() for record in caplog.records] == [f"{fault}; it gets the version later"]


async def test_a_silent_server_leaves_the_reading_to_the_next_one(
    elsewhere: Servers, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.serving.vllm.publishing.LATE_SECONDS", 0.05)
    kinds, clients = elsewhere
    kinds[0].stuck, kinds[1].readings = threading.Event(), [READ]
    publication = await publish(clients, 1, folder, limit=2.0)
    kinds[0].stuck.set()
    assert [kind.label for kind in kinds] == ["default", "1"]
    assert publication.failed.keys() == {clients[0].address}
    assert [record.getMessage().partition(" cannot read ")[0] for record in caplog.records] == [clients[0].address]


async def test_machines_are_asked_at_the_same_time(machines: Servers, folder: Path) -> None:
    """Each answers only while the other one is asked too."""
    kinds, clients = machines
    kinds[0].stuck = kinds[1].stuck = threading.Barrier(2)
    kinds[0].readings, kinds[1].readings = [READ], [READ]
    publication = await publish(clients, 1, folder, limit=5.0)
    assert not publication.failed and [kind.label for kind in kinds] == ["1", "1"]
