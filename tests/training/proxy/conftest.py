"""A proxy over the quickstart's policy, in a thread of the test's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from anyio.from_thread import start_blocking_portal
from openai import OpenAI

from envs.sites.app_server import AppServer
from training.policy.renderer import Renderer
from training.proxy.app import make_app
from training.proxy.recorder import ProxyOptions, Recorder
from training.proxy.records import CallStore, RecordedCall
from training.serving.engine import Engine
from training.serving.local import LocalEngine, LocalModel

READER = Path(__file__).resolve().parents[3] / "datasets/policies/reader"


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Models of this size are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def renderer() -> Renderer:
    return Renderer(READER, "")


@pytest.fixture(scope="package")
def engine(renderer: Renderer) -> LocalEngine:
    """The quickstart's policy as version 3."""
    model = LocalModel(renderer, "cpu")
    model.load(3, READER)
    return LocalEngine(model, deterministic=False)


@dataclass(frozen=True)
class RunningProxy:
    """A served proxy and its records."""

    address: str
    store: CallStore

    def client(self, session: str = "", **options: Any) -> OpenAI:
        """OpenAI's own client, for a session by path or, without a name, for none."""
        base = f"{self.address}/sessions/{session}/v1" if session else f"{self.address}/v1"
        return OpenAI(**{"base_url": base, "api_key": "none", "max_retries": 0, **options})

    def calls(self, session: str) -> list[RecordedCall]:
        return self.store.calls(session)


@contextmanager
def run_proxy(root: Path, engine: Engine, renderer: Renderer, key: str = "", **options: Any) -> Iterator[RunningProxy]:
    store = CallStore(root)
    server = AppServer(
        make_app(Recorder(engine, renderer, store, ProxyOptions(**{"patience": 2.0, **options})), key), "the proxy"
    )
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        portal.call(server.start)
        stack.callback(portal.call, server.close)
        yield RunningProxy(server.origin, store)


@pytest.fixture(scope="module")
def proxy(engine: LocalEngine, renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with run_proxy(tmp_path_factory.mktemp("foreign"), engine, renderer, max_new_tokens=24) as proxy:
        yield proxy


MakeCall = Callable[..., RecordedCall]


@pytest.fixture(scope="session")
def make_call() -> MakeCall:
    """``make_call(index, prompt_ids, response_ids, text)``: a call of the session ``s``."""

    def make(
        index: int,
        prompt: tuple[int, ...] = (),
        response: tuple[int, ...] = (9,),
        text: str = "click [1]",
        **fields: Any,
    ) -> RecordedCall:
        defaults: dict[str, Any] = {
            "session": "s",
            "created": 0.0,
            "seconds": 0.5,
            "model": "policy",
            "template": "qwen2_vl",
            "messages": ({"role": "user", "content": "look"},),
            "temperature": 1.0,
            "max_new_tokens": 8,
            "logprobs": (-0.5,) * len(response),
            "policy_version": 3,
            "version_spans": (),
            "finish_reason": "stop",
            "content": text,
        }
        return RecordedCall(
            index=index, prompt_ids=prompt or (index,), response_ids=response, text=text, **(defaults | fields)
        )

    return make
