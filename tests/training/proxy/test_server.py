"""The proxy before a vLLM server: its token-level route is asked, and its versions are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from envs.types import ConfigError
from tests.loopback import serving
from training.policy.renderer import Renderer
from training.proxy.following import FollowingEngine
from training.serving.engine import Generation, GenerationRequest

from ..serving_vllm import fake_vllm
from ..serving_vllm.fake_vllm import FakeVllm, fake
from .conftest import READER, RunningProxy, run_proxy
from .test_calls import ASK, JPEG, with_image


@dataclass
class Connecting:
    """An engine that connects at its first turn, in the loop of the proxy's server."""

    origin: str
    renderer: Renderer
    engine: FollowingEngine | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        if self.engine is None:
            self.engine = await FollowingEngine.connect(self.origin, READER, 2, self.renderer)
        return await self.engine.generate(request)


@contextmanager
def proxy_before(kind: type[FakeVllm], renderer: Renderer, root: Path) -> Iterator[RunningProxy]:
    with serving(kind) as origin, run_proxy(root, Connecting(origin, renderer), renderer) as proxy:  # type: ignore[arg-type]
        yield proxy


def test_calls_go_to_the_token_level_route(renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of a plain start gets the checkpoint as the version; later ones are followed."""
    (place,) = renderer.encode("", [(160, 210)]).image_places
    monkeypatch.setattr(fake_vllm, "IMAGE", renderer.image_token_id)
    monkeypatch.setattr(fake_vllm, "EXPANSION", place[1])
    kind = fake(max_model_len=2000)
    with proxy_before(kind, renderer, tmp_path) as proxy:
        ask = proxy.client("s").chat.completions.create
        ask(model="policy", messages=[with_image()], max_tokens=4)
        assert kind.label == "2"
        kind.label = "5"
        ask(model="policy", messages=[with_image()], max_tokens=3, temperature=0.5)
        first, second = proxy.calls("s")
        with pytest.raises(openai.BadRequestError, match="context length"):
            ask(model="policy", messages=[ASK], max_tokens=3000)
    assert (first.policy_version, second.policy_version) == (2, 5)
    assert (first.response_ids, first.logprobs, first.finish_reason) == ((7,) * 4, (-0.5,) * 4, "length")
    assert first.prompt_ids == renderer.encode(ASK["content"], [(160, 210)]).ids
    assert [body["cache_salt"] for body in kind.bodies] == ["2", "5"]
    assert [body["sampling_params"]["temperature"] for body in kind.bodies] == [1.0, 0.5]
    assert proxy.store.run.blob(first.images[0]) == JPEG


def test_a_server_that_expands_prompts_otherwise_is_refused(renderer: Renderer, tmp_path: Path) -> None:
    with proxy_before(fake(max_model_len=2000, label="1"), renderer, tmp_path) as proxy:
        with pytest.raises(openai.BadRequestError, match="made another prompt than the trainer trains on"):
            proxy.client("s").chat.completions.create(model="policy", messages=[with_image()], max_tokens=4)
        assert proxy.calls("s") == []


def test_a_server_that_fails_is_waited_for_and_then_named(renderer: Renderer, tmp_path: Path) -> None:
    kind = fake(max_model_len=2000, label="1", generated=staticmethod(lambda body: (503, {"error": "busy"})))
    with proxy_before(kind, renderer, tmp_path) as proxy:
        with pytest.raises(openai.InternalServerError, match=r"503.*failed \d+ times in 2 s"):
            proxy.client("s").chat.completions.create(model="policy", messages=[ASK], max_tokens=4)
        kind.generated = None
        kind.label = "default"  # a start anew
        with pytest.raises(openai.InternalServerError, match="has lost its version"):
            proxy.client("s").chat.completions.create(model="policy", messages=[ASK], max_tokens=4)
    assert proxy.calls("s") == []


async def test_a_server_that_is_not_ours_is_refused(renderer: Renderer) -> None:
    with serving(fake(release="0.20.0")) as origin, pytest.raises(ConfigError, match=r"is vLLM 0\.20\.0"):
        await FollowingEngine.connect(origin, READER, 0, renderer)
