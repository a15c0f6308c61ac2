"""A server that dies under the probe is left out; the others are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from envs.types import EngineError, PolicyError, ProbeError
from training.policy.renderer import Renderer
from training.serving.engine import Generation, GenerationRequest, VersionSpan
from training.serving.vllm.probe import Probe, ProbeTurn, TransformersScorer
from training.serving.vllm.publishing import Publication
from training.serving.vllm.supervisor import Replica, Supervisor

from .conftest import READER
from .test_supervisor import down

FOLDER = Path("/policies/v000002")


class Server:
    """A client whose server answers one token with ``logprob``, or is dead."""

    def __init__(self, address: str, logprob: float | None) -> None:
        self.address, self.logprob = address, logprob

    async def generate(self, request: GenerationRequest, version: int, *, adapter: bool = False) -> Generation:
        if self.logprob is None:
            raise EngineError(f"{self.address} cannot be reached")
        return Generation((7,), (self.logprob,), (VersionSpan(version, 0, 1),), "length")


def score(folder: Path, turns: Sequence[ProbeTurn]) -> list[list[float]]:
    """What the checkpoint's log-probs should be: -1 everywhere."""
    return [[-1.0]] * len(turns)


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe(Renderer(READER, ""), score)


def clients(*logprobs: float | None) -> list[Any]:
    return [Server(f"http://server-{number}", value) for number, value in enumerate(logprobs)]


async def test_a_dead_server_does_not_end_the_comparison(probe: Probe) -> None:
    result = await probe.check(clients(None, -1.00001), 2, FOLDER)
    assert result.failed.keys() == {"http://server-0"}
    assert result.mean == pytest.approx(1e-5, rel=1e-3) and result.tokens == 2


async def test_the_wrong_one_is_left_out(probe: Probe) -> None:
    result = await probe.check(clients(None, -1.0, -1.5), 2, FOLDER)
    assert result.mean == 0.0 and list(result.failed) == ["http://server-0", "http://server-2"]
    assert isinstance(result.failed["http://server-2"], ProbeError), "it is not down"
    with pytest.raises(ProbeError, match="http://server-1 does not serve v2"):
        await probe.check(clients(None, -1.5), 2, FOLDER)
    with pytest.raises(EngineError, match="v2 reached no server"):
        await probe.check(clients(None, None), 2, FOLDER)


class Checkpoints:
    """A scorer that gives every token the log-prob of the current version, and counts its calls."""

    def __init__(self) -> None:
        self.logprob, self.calls = -1.0, 0

    def __call__(self, folder: Path, turns: Sequence[ProbeTurn]) -> list[list[float]]:
        self.calls += 1
        return [[self.logprob]] * len(turns)


async def publish_updates(probe: Probe, checkpoints: Checkpoints, found: list[Any], versions: range) -> list[int]:
    """Publish versions that each change log-probs a little; the forward passes after each."""
    calls = []
    for version in versions:
        checkpoints.logprob -= 0.01
        for server in found:
            server.logprob = checkpoints.logprob
        await probe.check(found, version, FOLDER)
        calls.append(checkpoints.calls)
    return calls


@pytest.mark.parametrize(("every", "calls"), [(1, [1, 2, 3, 4]), (3, [1, 1, 1, 2]), (0, [1, 1, 1, 1])])
async def test_a_forward_pass_is_made_at_the_start_and_every_few_versions(every: int, calls: list[int]) -> None:
    checkpoints = Checkpoints()
    probe = Probe(Renderer(READER, ""), checkpoints, every=every)
    assert await publish_updates(probe, checkpoints, clients(-1.0, -1.0), range(1, 5)) == calls


@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [
        (-1.03, -1.2, "server-1"),  # one tensor of the second is wrong
        (-1.02, -1.03, "server-0"),  # the first has the weights of the version before
        (-1.02, -1.02, "server-0"),  # both have
        (-4.0, -4.0, "server-0"),  # both have quite other weights
    ],
)
async def test_a_server_in_doubt_is_compared_with_the_checkpoint(first: float, second: float, wrong: str) -> None:
    checkpoints, found = Checkpoints(), clients(-1.0, -1.0)
    probe = Probe(Renderer(READER, ""), checkpoints, every=0)
    assert await publish_updates(probe, checkpoints, found, range(1, 3)) == [1, 1]
    checkpoints.logprob, found[0].logprob, found[1].logprob = -1.03, first, second
    if first != second:
        assert list((await probe.check(found, 3, FOLDER)).failed) == [f"http://{wrong}"]
        return
    with pytest.raises(ProbeError, match=f"http://{wrong} does not serve v3"):
        await probe.check(found, 3, FOLDER)
    found[0].logprob = found[1].logprob = -1.02  # they went back
    assert (await probe.check(found, 2, FOLDER)).mean == 0.0 and checkpoints.calls == 2
    (started_again,) = clients(-1.2)
    checkpoints.logprob = -1.02
    with pytest.raises(PolicyError, match="does not serve v2"):
        await probe.check([started_again], 2, FOLDER)


async def test_a_version_that_changes_nothing_is_compared_and_passes() -> None:
    checkpoints, found = Checkpoints(), clients(-1.0, -1.0)
    probe = Probe(Renderer(READER, ""), checkpoints, every=0)
    for version in (1, 2):
        await probe.check(found, version, FOLDER)
    assert checkpoints.calls == 2


class Exact(Server):
    """Its log-probs are those of the reader, before temperature where vLLM was started without
    ``--logprobs-mode``."""

    def __init__(self, renderer: Renderer, *, raw: bool) -> None:
        super().__init__("http://server", None)
        self.renderer, self.raw = renderer, raw

    async def generate(self, request: GenerationRequest, version: int, *, adapter: bool = False) -> Generation:
        ids = tuple(self.renderer.encode_response("click [3]"))
        asked = replace(request, temperature=1.0) if self.raw else request
        (logprobs,) = TransformersScorer(self.renderer)(READER, [ProbeTurn(asked, Generation(ids, (), (), "stop"))])
        return Generation(ids, tuple(logprobs), (VersionSpan(version, 0, len(ids)),), "stop")


async def test_log_probs_before_temperature_are_found() -> None:
    renderer = Renderer(READER, "")
    exact, raw = (cast(Any, Exact(renderer, raw=raw)) for raw in (False, True))
    assert (await Probe(renderer).check([exact], 0, READER)).mean == 0.0
    with pytest.raises(PolicyError, match="http://server does not serve v0"):
        await Probe(renderer).check([raw], 0, READER)


async def test_a_server_that_died_under_the_probe_takes_no_turns(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    found = clients(-1.0, None)
    supervisor = Supervisor([Replica(cast(Any, client)) for client in found], FOLDER.parent, probe=probe)

    async def switched(clients: Sequence[Any], version: int, folder: Path, *, used: bool) -> Publication:
        return Publication(version, 0.0, 0.0, {})

    monkeypatch.setattr(supervisor, "_publish", switched)
    publication = await supervisor.publish(2, FOLDER)
    assert publication.failed.keys() == {"http://server-1"}
    assert supervisor.served == (2, FOLDER) and down(supervisor) == {1}
