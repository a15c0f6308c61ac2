"""With an API key every route of a server asks for it, those that change its weights too."""

from __future__ import annotations

import importlib.util
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from training.serving.vllm.command import IN_SERVER


def _guarded() -> Any:
    """An application behind the middleware that vLLM loads by its file's name."""
    spec = importlib.util.spec_from_file_location("rollwright_guard", IN_SERVER / "rollwright_guard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def answer(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("served")

    paths = ("/health", "/update_weights", "/collective_rpc", "/inference/v1/generate")
    return module.Guard(Starlette(routes=[Route(path, answer, methods=["GET", "POST"]) for path in paths]))


@pytest.mark.parametrize("path", ["/update_weights", "/collective_rpc", "/inference/v1/generate"])
async def test_only_the_key_opens_a_route(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    transport = httpx.ASGITransport(_guarded())
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}):
            assert (await client.post(path, headers=headers)).status_code == 401
        assert (await client.post(path, headers={"Authorization": "Bearer secret"})).text == "served"


async def test_health_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(_guarded()), base_url="http://server") as client:
        assert (await client.get("/health")).text == "served"


def test_a_guard_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(KeyError):
        _guarded()
