"""What a vLLM server answers becomes a generation, a fault of the engine, or a mistake that asking
again does not mend."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.types import ConfigError, EngineError, PolicyError, RollwrightError
from tests.loopback import serving
from training.policy.rendered import RenderedPrompt
from training.serving.engine import Generation, GenerationRequest, Picture, VersionSpan, noise_seed
from training.serving.vllm.client import ServerClient

from .fake_vllm import IMAGE, FakeVllm, fake, turn

PROMPT = RenderedPrompt((1, IMAGE, IMAGE, IMAGE, 2), (1, IMAGE, 2), ((1, 3),))
REQUEST = GenerationRequest(PROMPT, (Picture(b"jpeg", (8, 8)),), "e1/3", "e1", 5, 4, 0.7)


@asynccontextmanager
async def client_of(kind: type[FakeVllm], **options: Any) -> AsyncIterator[ServerClient]:
    with serving(kind) as origin:
        client = ServerClient(origin, **options)
        try:
            yield client
        finally:
            await client.close()


async def test_a_turn_has_its_tokens_log_probs_and_versions() -> None:
    async with client_of(fake(label="3")) as client:
        assert await client.generate(REQUEST, 3) == Generation(
            (7, 7, 7, 7), (-0.5,) * 4, (VersionSpan(3, 0, 4),), "length"
        )


async def test_what_is_sent() -> None:
    kind = fake(label="3")
    async with client_of(kind, banned=(98, 99), ends=(50,)) as client:
        await client.generate(REQUEST, 3)
        await client.generate(replace(REQUEST, greedy=True), 4)
    first, second = kind.bodies
    assert first["token_ids"] == [1, IMAGE, 2]  # one placeholder
    assert (first["cache_salt"], second["cache_salt"]) == ("3", "4")
    assert first["content_parts"][0]["uuid"].endswith("@3")
    assert first["content_parts"][0]["url"] == "data:image/jpeg;base64,anBlZw=="
    sampling = first["sampling_params"]
    assert sampling["logit_bias"] == {"98": -100.0, "99": -100.0}
    assert (sampling["temperature"], second["sampling_params"]["temperature"]) == (0.7, 0.0)
    assert (sampling["seed"], sampling["stop_token_ids"]) == (noise_seed(5, "e1/3"), [50])


async def test_pictures_below_the_media_root_are_named(tmp_path: Path) -> None:
    inside, outside = tmp_path / "blobs/ab.jpg", tmp_path / "other.jpg"
    kind = fake(label="3")
    async with client_of(kind, media_root=tmp_path / "blobs") as client:
        for path in (inside, outside):
            await client.generate(replace(REQUEST, pictures=(Picture(b"jpeg", (8, 8), path),)), 3)
    urls = [body["content_parts"][0]["url"] for body in kind.bodies]
    assert urls[0] == inside.as_uri()
    assert urls[1].startswith("data:")


@pytest.mark.parametrize(
    ("attributes", "expected", "says"),
    [
        ({"release": "0.31.2"}, ConfigError, "is vLLM 0.31.2, and Rollwright knows 0.32.x"),
        ({"missing": ("/version",)}, ConfigError, "does not serve /version"),
        ({"missing": ("/weight_info",)}, ConfigError, "VLLM_SERVER_DEV_MODE=1"),
        ({"missing": ("/inference/v1/generate",)}, ConfigError, "--enable-scale-out"),
        (
            {"model": "Qwen/Qwen3-VL-8B"},
            ConfigError,
            "serves Qwen/Qwen3-VL-8B: start vLLM with --served-model-name policy",
        ),
        ({"api_key": "secret"}, ConfigError, "set the API key"),
    ],
)
async def test_a_server_that_cannot_serve_us_is_named(
    attributes: dict[str, Any], expected: type[RollwrightError], says: str
) -> None:
    async with client_of(fake(**attributes)) as client:
        with pytest.raises(expected, match=re.escape(says)):
            await client.check()


async def test_the_api_key_is_sent() -> None:
    async with client_of(fake(api_key="secret"), api_key="secret") as client:
        assert (await client.check()).max_model_len == 64


def _answer(**changes: Any) -> Any:
    """A turn of which the choice is changed."""

    def generated(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        document = turn(body, "3")
        document["choices"][0].update(changes)
        return 200, document

    return staticmethod(generated)


def _status(status: int, message: str) -> Any:
    return staticmethod(lambda _body: (status, {"error": {"message": message}}))


@pytest.mark.parametrize(
    ("generated", "expected", "says"),
    [
        (_status(500, "EngineCore encountered an issue"), EngineError, "EngineCore"),
        (_status(503, "busy"), EngineError, "503: busy"),
        (
            _status(500, "Failed to apply prompt replacement for mm_items['image'][0]"),
            PolicyError,
            "prompt replacement",
        ),
        (_status(400, "token id 900 is out of vocabulary"), PolicyError, "out of vocabulary"),
        (_status(404, "The model `policy` does not exist"), PolicyError, "does not exist"),
        (_answer(finish_reason="error"), EngineError, "finish reason error"),
        (_answer(logprobs=None), EngineError, "4 tokens, 0 log-probs"),
        (_answer(weight_versions=None), EngineError, "which version made"),
        (_answer(weight_versions=[{"version": "default", "start": 0, "end": 4}]), EngineError, "no published version"),
        (_answer(token_ids=[7, 7, 98, 7]), PolicyError, r"banned token ids \[98\]"),
    ],
)
async def test_bad_answers(generated: Any, expected: type[RollwrightError], says: str) -> None:
    async with client_of(fake(label="3", generated=generated), banned=(98,)) as client:
        with pytest.raises(expected, match=says):
            await client.generate(REQUEST, 3)


@pytest.mark.parametrize(
    ("reason", "expected"), [("cancelled", EngineError), ("size mismatch for lm_head.weight", PolicyError)]
)
async def test_a_call_that_a_dead_worker_ended_may_be_made_again(reason: str, expected: type[RollwrightError]) -> None:
    """vLLM 0.32 answers so while its engine ends; other failures would come again."""
    message = f"Call to collective_rpc method failed: {reason}"
    kind = fake(_respond=lambda self, body: self._json(500, {"error": {"message": message}}))
    async with client_of(kind) as client:
        with pytest.raises(expected, match=f"/start_weight_update.*{reason}"):
            await client.post("/start_weight_update", 10)


async def test_ids_that_were_expanded_already_are_found() -> None:
    async with client_of(fake(label="3")) as client:
        with pytest.raises(PolicyError, match=r"e1/3.*from position 4 on: 11 ids.*ours 5 with"):
            await client.generate(replace(REQUEST, prompt=replace(PROMPT, short_ids=PROMPT.ids)), 3)


async def test_a_missing_picture_is_found_before_anything_is_sent() -> None:
    kind = fake(label="3")
    async with client_of(kind) as client:
        with pytest.raises(PolicyError, match="1 image placeholders and 0 pictures"):
            await client.generate(replace(REQUEST, pictures=()), 3)
    assert not kind.bodies


async def test_a_prompt_without_room_for_its_turn_overflows() -> None:
    async with client_of(fake(label="3")) as client:
        fits = await client.generate(replace(REQUEST, max_new_tokens=59), 3)
        assert fits.finish_reason == "length"
        assert await client.generate(replace(REQUEST, max_new_tokens=60), 3) == Generation(
            (), (), (), "context_overflow"
        )


async def test_an_aborted_turn_and_two_versions() -> None:
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 4}]
    async with client_of(fake(generated=_answer(finish_reason="abort", weight_versions=spans))) as client:
        found = await client.generate(REQUEST, 3)
    assert found.finish_reason == "aborted"
    assert found.version_spans == (VersionSpan(3, 0, 1), VersionSpan(4, 1, 4))


async def test_a_slow_or_absent_server_is_the_engines_fault() -> None:
    async with client_of(fake(label="3", delay=2.0), turn_seconds=0.3) as client:
        with pytest.raises(EngineError, match="does not answer /inference/v1/generate in time"):
            await client.generate(REQUEST, 3)
    absent = ServerClient("http://127.0.0.1:9")
    with pytest.raises(EngineError, match="cannot be reached"):
        await absent.generate(REQUEST, 3)
    await absent.close()
