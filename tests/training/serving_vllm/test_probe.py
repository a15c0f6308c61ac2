"""A server that dies under the probe is left out; the others are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from envs.types import EngineError, PolicyError
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


async def test_the_wrong_one_is_named(probe: Probe) -> None:
    with pytest.raises(PolicyError, match="http://server-2 does not serve v2"):
        await probe.check(clients(None, -1.0, -1.5), 2, FOLDER)
    with pytest.raises(EngineError, match="v2 reached no server"):
        await probe.check(clients(None, None), 2, FOLDER)


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
