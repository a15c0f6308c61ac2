"""Servers that die are started again and get the current version first; a bad version leaves the
last good one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from envs.types import ConfigError, EngineError, PolicyError, ProbeError
from tests.loopback import serving
from training.policy.rendered import RenderedPrompt
from training.serving.engine import GenerationRequest, VersionSpan
from training.serving.vllm.client import ServerClient
from training.serving.vllm.engine import VllmEngine
from training.serving.vllm.probe import ProbeResult
from training.serving.vllm.process import ServerProcess, group_members
from training.serving.vllm.publishing import failed_servers, prepare, publish
from training.serving.vllm.supervisor import LOOK_SECONDS, Replica, Supervisor
from training.serving.waiting import generate_patiently

from .fake_vllm import FakeVllm, fake
from .test_process import fake_command

V0, V1, BAD = Path("/policies/v0"), Path("/policies/v1"), Path("/policies/bad")
REQUEST = GenerationRequest(RenderedPrompt((1, 2), (1, 2), ()), (), "e1/0", "e1", 5, 4, 1.0)
PAUSE = "/pause?mode=keep&clear_cache=true"


def down(supervisor: Supervisor) -> set[int]:
    """The replicas that do not serve the current version."""
    return {index for index, replica in enumerate(supervisor.replicas) if not replica.ready}


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.05)


@pytest.fixture
def servers() -> Iterator[tuple[list[type[FakeVllm]], list[ServerClient]]]:
    """Two servers of somebody else; one refuses folders named bad."""
    kinds = [fake(), fake(refused="bad")]
    with serving(kinds[0]) as first, serving(kinds[1]) as second:
        yield kinds, [ServerClient(first), ServerClient(second)]


Servers = tuple[list[type[FakeVllm]], list[ServerClient]]


async def test_a_publication_is_pause_load_and_resume_on_each_server(servers: Servers) -> None:
    kinds, clients = servers
    for client in clients:
        await prepare(client, Path("/policies"))
    publication = await publish(clients, 3, V1)
    assert (publication.version, publication.failed) == (3, {})
    steps = ["/start_weight_update", PAUSE, "/update_weights", "/finish_weight_update", "/resume"]
    for kind in kinds:
        assert kind.calls[-5:] == steps
        assert kind.label == "3"
    await publish(clients, 4, V1, update="fast", together=False)
    assert kinds[0].calls[-4] == "/pause?mode=keep&clear_cache=false"


async def test_a_server_that_hangs_holds_no_other_one_back(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.serving.vllm.publishing.LATE_SECONDS", 0.05)
    kinds, clients = servers
    kinds[1].stuck = threading.Event()
    try:
        publication = await publish(clients, 3, V1)
        assert publication.failed.keys() == {clients[1].address} and kinds[0].label == "3"
        assert kinds[0].calls[-1] == "/resume", "it generates again"
    finally:
        kinds[1].stuck.set()


async def test_servers_that_refuse_go_on(servers: Servers) -> None:
    kinds, clients = servers
    kinds[0].refused = "bad"
    with pytest.raises(PolicyError, match="/policies/bad is of another model"):
        await publish(clients, 3, BAD)
    assert kinds[1].label == "default"
    assert [kind.calls[-1] for kind in kinds] == ["/resume", "/resume"]


async def test_one_server_that_refuses_a_version_is_left_out(servers: Servers) -> None:
    kinds, clients = servers
    supervisor = Supervisor([Replica(client) for client in clients], Path("/policies"))
    await supervisor.start(1, V1)
    publication = await supervisor.publish(2, BAD)
    assert publication.failed.keys() == {clients[1].address}
    assert [kind.label for kind in kinds] == ["2", "1"] and supervisor.served == (2, BAD)
    assert down(supervisor) == {1} and "of another model" in str(publication.failed[clients[1].address])
    kinds[1].refused = ""
    await until(lambda: not down(supervisor))
    assert kinds[1].label == "2", "it is given the version again"
    await supervisor.close()


async def test_a_bad_version_leaves_the_last_good_one_everywhere(servers: Servers) -> None:
    kinds, clients = servers
    kinds[0].refused = "bad"
    supervisor = Supervisor([Replica(client) for client in clients], Path("/policies"))
    await supervisor.start(1, V1)
    with pytest.raises(PolicyError, match="of another model"):
        await supervisor.publish(2, BAD)
    assert [kind.label for kind in kinds] == ["1", "1"]
    assert supervisor.served == (1, V1) and not down(supervisor)
    await supervisor.close()


async def test_sleeping_servers_wake_before_they_get_weights(servers: Servers) -> None:
    kinds, clients = servers
    supervisor = Supervisor([Replica(client) for client in clients], Path("/policies"))
    await supervisor.start(0, V0)
    await supervisor.sleep()
    await asyncio.sleep(1.5 * LOOK_SECONDS)  # a look that was under way may end
    asleep = [len(kind.calls) for kind in kinds]
    assert all("/sleep?level=1" in kind.calls[-3:] for kind in kinds)
    await asyncio.sleep(1.5 * LOOK_SECONDS)
    assert [len(kind.calls) for kind in kinds] == asleep, "nobody asks a server that sleeps"
    kinds[1].missing = ("/wake_up",)
    await supervisor.publish(1, V1)
    woken = [kind.calls[count:] for kind, count in zip(kinds, asleep, strict=True)]
    assert woken[0][0] == "/wake_up" and woken[0].index("/start_weight_update") > 0 and kinds[0].label == "1"
    assert woken[1][:1] == ["/wake_up"] and not supervisor.asleep
    await until(lambda: not down(supervisor))
    assert kinds[1].label == "1", "one that did not wake up is given the version when it is back"
    await supervisor.close()


class Probing:
    """A probe that finds versions from ``wrong`` on not to be what they should be."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong

    async def check(self, clients: Sequence[ServerClient], version: int, folder: Path) -> ProbeResult:
        if version >= self.wrong:
            raise PolicyError(f"v{version} is not served")
        return ProbeResult(0.0, 0.0, 16)


@dataclass
class OneWrong:
    """A probe for which one server has other weights while it is `wrong`."""

    address: str
    wrong: bool = False

    async def check(self, clients: Sequence[ServerClient], version: int, folder: Path) -> ProbeResult:
        faults = [ProbeError("other weights") if self.wrong and c.address == self.address else None for c in clients]
        return ProbeResult(0.0, 0.0, 16, failed_servers(clients, version, faults))


@pytest.mark.parametrize("adapter", [False, True])
async def test_a_server_with_other_weights_gives_no_turns_until_it_has_them(
    servers: Servers, tmp_path: Path, adapter: bool
) -> None:
    kinds, clients = servers
    probe = OneWrong(clients[1].address)
    supervisor = Supervisor([Replica(client) for client in clients], tmp_path, probe=probe)  # type: ignore[arg-type]
    folders = [make_adapter(tmp_path, version) if adapter else V1 for version in (1, 2)]
    await supervisor.start(1, folders[0])
    engine = VllmEngine(clients)
    probe.wrong = True
    publication = await supervisor.publish(2, folders[1])
    assert publication.failed.keys() == {clients[1].address} == set(supervisor.behind)
    assert supervisor.served == (2, folders[1]) and "other weights" in supervisor.faults()
    await engine.publish(2, folders[1])
    for episode in range(4):
        await engine.generate(replace(REQUEST, episode=f"e{episode}"))
    tries = len(kinds[1].calls)
    await until(lambda: len(kinds[1].calls) > tries + 5)  # its watcher tries again, in vain
    assert down(supervisor) == {1} and not kinds[1].bodies, "it was asked for no turn"
    # A try gives it the version for a moment, until it is compared.
    await until(lambda: "policy-v2" not in kinds[1].adapters if adapter else kinds[1].label == "1")
    probe.wrong = False
    await until(lambda: not down(supervisor))
    assert "policy-v2" in kinds[1].adapters if adapter else kinds[1].label == "2"
    await engine.close()
    await supervisor.close()


async def test_a_version_that_the_probe_finds_wrong_is_taken_back(servers: Servers) -> None:
    kinds, clients = servers
    supervisor = Supervisor([Replica(client) for client in clients], Path("/policies"), probe=Probing(2))  # type: ignore[arg-type]
    await supervisor.start(1, V1)
    with pytest.raises(PolicyError, match="v2 is not served"):
        await supervisor.publish(2, V1)
    assert [kind.label for kind in kinds] == ["1", "1"] and supervisor.served == (1, V1)
    await supervisor.close()


async def test_a_server_of_somebody_else_that_was_restarted_gets_the_version(servers: Servers) -> None:
    kinds, clients = servers
    supervisor = Supervisor([Replica(client) for client in clients], Path("/policies"))
    await supervisor.start(7, V1)
    kinds[0].label = "default"
    await until(lambda: kinds[0].label == "7")
    await until(lambda: not down(supervisor))
    assert kinds[1].calls.count("/update_weights") == 1
    await supervisor.close()


async def test_publications_do_not_wait_for_a_server_that_comes_back_and_hangs(servers: Servers) -> None:
    kinds, clients = servers
    supervisor = Supervisor([Replica(client) for client in clients], Path("/policies"))
    await supervisor.start(1, V1)
    kinds[0].stuck, before = threading.Event(), kinds[0].calls.count("/start_weight_update")
    kinds[0].label = "default"
    await until(lambda: kinds[0].calls.count("/start_weight_update") > before)
    await asyncio.wait_for(supervisor.publish(2, V1), 20)
    assert [kind.label for kind in kinds] == ["default", "2"] and down(supervisor) == {0}
    kinds[0].stuck.set()
    await until(lambda: not down(supervisor))
    assert kinds[0].label == "2", "it is ready with the newer version only"
    await supervisor.close()


async def test_nothing_of_an_earlier_run_is_left_on_servers_of_somebody_else(servers: Servers, tmp_path: Path) -> None:
    """Both runs have a version 1: its cached prefixes, images and adapters would be taken for the
    other's."""
    kinds, clients = servers
    kinds[0].label, kinds[1].adapters = "1", ("policy-v1", "policy-v4")
    supervisor = Supervisor([Replica(client) for client in clients], Path("/policies"), update="fast")
    await supervisor.start(1, V1)
    assert all(PAUSE in kind.calls for kind in kinds), "every cache is cleared"
    assert [kind.adapters for kind in kinds] == [(), ()]
    await supervisor.publish(2, V1)
    assert [kind.calls.count(PAUSE) for kind in kinds] == [1, 1], "from then on caches are kept as the run says"
    await supervisor.close()


def make_adapter(root: Path, version: int) -> Path:
    """The folder of an adapter of one number, and that of its base model."""
    base, adapter = root / "v0", root / f"v{version}"
    base.mkdir(exist_ok=True)
    (base / "config.json").write_text("{}")
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "../v0"}')
    save_file({"layers.0.lora_A": torch.ones(1)}, adapter / "adapter_model.safetensors")
    return adapter


async def test_a_version_that_is_measured_stays_beside_those_that_are_published(
    servers: Servers, tmp_path: Path
) -> None:
    kinds, clients = servers
    supervisor = Supervisor([Replica(client) for client in clients], tmp_path)
    folders = {version: make_adapter(tmp_path, version) for version in range(1, 6)}
    await supervisor.start(1, folders[1])
    training, measuring = VllmEngine(clients), VllmEngine(clients)
    await training.publish(1, folders[1])
    await supervisor.hold(1, folders[1])
    for version in (2, 3, 4):
        await supervisor.publish(version, folders[version])
        await training.publish(version, folders[version])
        await measuring.publish(1, folders[1])
        for engine, expected in ((training, version), (measuring, 1)):
            turn = await engine.generate(REQUEST)
            assert {span.version for span in turn.version_spans} == {expected}
    late = VllmEngine(clients)
    await late.publish(2, folders[2], or_newer=True)
    turn = await late.generate(REQUEST)
    assert {span.version for span in turn.version_spans} == {4}, "of a version that is gone the newest takes the place"

    kinds[0].adapters, kinds[0].label = (), "default"  # it was restarted
    with pytest.raises(EngineError, match="has no adapter of v1"):
        await clients[0].generate(REQUEST, 1, adapter=True)
    await until(lambda: {"policy-v1", "policy-v4"} == set(kinds[0].adapters))
    await until(lambda: not down(supervisor))
    await supervisor.hold(4, folders[4])
    await supervisor.publish(5, folders[5])
    assert [set(kind.adapters) for kind in kinds] == [{"policy-v4", "policy-v5"}] * 2, "the one before was let go"
    await supervisor.close()


async def test_an_adapter_gets_its_base_on_servers_of_somebody_else(servers: Servers, tmp_path: Path) -> None:
    kinds, clients = servers
    adapter = make_adapter(tmp_path, 3)
    kinds[0].label = kinds[1].label = "7"
    supervisor = Supervisor([Replica(client) for client in clients], tmp_path)
    await supervisor.start(3, adapter)
    for kind in kinds:
        assert (kind.label, kind.adapters) == ("0", ("policy-v3",))
        assert kind.calls.index("/update_weights") < kind.calls.index("/v1/load_lora_adapter")
    await supervisor.close()


class Foreign(ServerClient):
    """A client in which a library fails: an error that is not one of ours."""

    broken = False

    async def check_alive(self, seconds: float) -> None:
        if self.broken:
            raise ValueError("a library's own")
        await super().check_alive(seconds)


async def test_a_foreign_error_of_a_check_is_a_fault_and_watching_goes_on(tmp_path: Path) -> None:
    """Else its watcher ends unseen, and the end of the run with it leaves all servers running."""
    processes = [ServerProcess(fake_command(tmp_path), tmp_path / f"{number}.log") for number in range(2)]
    ill = Foreign(processes[0].command.address)
    replicas = [Replica(ill, processes[0]), Replica(ServerClient(processes[1].command.address), processes[1])]
    supervisor = Supervisor(replicas, Path("/policies"))
    await supervisor.start(7, V1)
    ill.broken = True
    await until(lambda: replicas[0].start_count > 1)
    assert "a library's own" in replicas[0].fault
    ill.broken = False
    await until(lambda: not down(supervisor))
    await supervisor.close()
    assert all(group_members(each.pid) == [] for each in processes if each.pid is not None)


async def test_all_servers_are_stopped_before_the_first_error_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = [ServerProcess(fake_command(tmp_path), tmp_path / f"{number}.log") for number in range(2)]
    supervisor = Supervisor(
        [Replica(ServerClient(each.command.address), each) for each in processes], Path("/policies")
    )
    await supervisor.start(7, V1)
    stop = ServerProcess.stop

    async def failing(process: ServerProcess) -> None:
        await stop(process)
        if process is processes[0]:
            raise OSError("its log is gone")

    monkeypatch.setattr(ServerProcess, "stop", failing)
    with pytest.raises(OSError, match="its log is gone"):
        await supervisor.close()
    assert all(group_members(each.pid) == [] for each in processes if each.pid is not None)


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_died_is_started_again_with_the_version(tmp_path: Path, how: str) -> None:
    process = ServerProcess(fake_command(tmp_path), tmp_path / "server.log")
    replica = Replica(ServerClient(process.command.address), process)
    supervisor = Supervisor([replica], Path("/policies"), answer_seconds=2.0)
    await supervisor.start(7, V1)
    engine = VllmEngine([replica.client])
    await engine.publish(7, V1)
    assert (await engine.generate(REQUEST)).version_spans == (VersionSpan(7, 0, 4),)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    await until(lambda: bool(down(supervisor)))
    turn = await generate_patiently(engine, REQUEST, 60)
    await until(lambda: not down(supervisor))
    assert process.pid != first and replica.start_count == 2
    assert group_members(first) == []
    assert turn.version_spans == (VersionSpan(7, 0, 4),)
    await supervisor.close()
    assert group_members(process.pid) == []


async def test_a_start_that_fails_leaves_no_process(tmp_path: Path) -> None:
    good = ServerProcess(fake_command(tmp_path), tmp_path / "good.log")
    bad = ServerProcess(fake_command(tmp_path, "--broken"), tmp_path / "bad.log")
    supervisor = Supervisor(
        [Replica(ServerClient(each.command.address), each) for each in (good, bad)], Path("/policies")
    )
    with pytest.raises(EngineError, match="no such model"):
        await supervisor.start(0, V0)
    assert all(group_members(each.pid) == [] for each in (good, bad) if each.pid is not None)


async def test_an_engine_waits_until_one_server_has_the_version(servers: Servers) -> None:
    kinds, clients = servers
    engine = VllmEngine(clients)
    with pytest.raises(PolicyError, match="call publish"):
        await engine.generate(REQUEST)
    kinds[0].label = "2"
    arrival = asyncio.create_task(engine.publish(3, V1))
    await asyncio.sleep(0.3)
    assert not arrival.done(), "an older version is not this one"
    kinds[1].label = "3"
    await arrival
    async with engine.session("e1"):
        assert (await engine.generate(REQUEST)).finish_reason == "length"
    assert sum(len(kind.bodies) for kind in kinds) == 1
    await engine.close()


async def test_a_server_that_is_behind_gets_no_turns_until_it_has_caught_up(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("training.serving.vllm.engine.FOLLOW_SECONDS", 0.02)
    kinds, clients = servers
    kinds[0].label, kinds[1].label = "4", "5"
    engine = VllmEngine(clients)

    async def play(episode: int) -> None:
        await engine.generate(replace(REQUEST, episode=f"e{episode}"))

    await engine.publish(5, V1)
    for episode in range(4):
        await play(episode)
    assert [len(kind.bodies) for kind in kinds] == [0, 4]
    assert caplog.messages == [f"{clients[0].address} does not have v5: it gets no turns until it does"]
    kinds[0].label = "5"
    await until(lambda: len(caplog.messages) == 2)
    assert caplog.messages[1] == f"{clients[0].address} has v5 now, and gets turns again"
    for episode in range(4, 8):
        await play(episode)
    assert [len(kind.bodies) for kind in kinds] == [4, 4]
    kinds[0].label = "4"
    with pytest.raises(EngineError, match="has gone back to v4: v5 was requested"):
        await engine.generate(replace(REQUEST, episode="e4"))
    await engine.generate(replace(REQUEST, episode="e4"))
    assert [len(kind.bodies) for kind in kinds] == [5, 5], "its episodes go to the other one"
    await engine.close()


async def test_a_server_with_another_key_ends_no_run_while_one_answers(servers: Servers) -> None:
    kinds, clients = servers
    kinds[0].label = kinds[1].label = "5"
    kinds[0].api_key = "another"
    engine = VllmEngine(clients)
    await engine.publish(5, V1)
    for episode in range(3):
        await engine.generate(replace(REQUEST, episode=f"e{episode}"))
    assert [len(kind.bodies) for kind in kinds] == [0, 3]
    kinds[1].api_key = "another"
    with pytest.raises(EngineError, match="401"):
        await engine.generate(replace(REQUEST, episode="e0"))
    with pytest.raises(ConfigError, match="401"):
        await VllmEngine(clients).publish(5, V1)
    await engine.close()


async def test_a_newer_version_takes_the_place_only_where_it_may(servers: Servers) -> None:
    kinds, clients = servers
    kinds[0].label, kinds[1].label = "9", "9"
    training, measuring = VllmEngine(clients), VllmEngine(clients)
    await training.publish(5, V1, or_newer=True)
    assert {span.version for span in (await training.generate(REQUEST)).version_spans} == {9}
    arrival = asyncio.create_task(measuring.publish(5, V1))
    await asyncio.sleep(0.3)
    assert not arrival.done(), "an evaluation is of its own version"
    kinds[0].label = "5"
    await arrival
    for episode in range(4):
        turn = await measuring.generate(replace(REQUEST, episode=f"e{episode}"))
        assert {span.version for span in turn.version_spans} == {5}, "the server with the newer version is left out"
    for engine in (training, measuring):
        await engine.close()


async def test_turns_of_a_failed_server_go_to_another(servers: Servers) -> None:
    kinds, clients = servers
    engine = VllmEngine(clients)
    for kind in kinds:
        kind.label = "3"
    await engine.publish(3, V1)
    kinds[0].generated = staticmethod(lambda _body: (500, {"error": {"message": "EngineCore encountered an issue"}}))
    with pytest.raises(EngineError, match="EngineCore"):
        await engine.generate(REQUEST)
    assert (await engine.generate(REQUEST)).finish_reason == "length"
    assert [len(kind.bodies) for kind in kinds] == [1, 1]
    await engine.close()
