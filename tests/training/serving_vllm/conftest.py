"""One real vLLM server for all tests with the marker ``vllm``."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
import torch
from safetensors.torch import load_file, save_file

from training.policy.renderer import Renderer
from training.serving.config import ServingConfig
from training.serving.vllm.client import ServerClient
from training.serving.vllm.command import Place, ServerOptions, build_command
from training.serving.vllm.process import ServerProcess
from training.serving.vllm.publishing import prepare

from .judging import Judge

ROOT = Path(__file__).parents[3]
Policy = Callable[..., Path]
READER = ROOT / "datasets/policies/reader"
PYTHON = ROOT / ".venv-vllm/bin/python"
ENDS = (757, 755)
"""The reader's end-of-turn tokens."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Served:
    """The server, and folders that it may read."""

    process: ServerProcess
    root: Path
    """Of the policies."""
    media: Path

    def client(self, renderer: Renderer) -> ServerClient:
        """A client of the server, with the bans of the renderer."""
        return ServerClient(self.process.command.address, banned=renderer.banned_ids, ends=ENDS, media_root=self.media)


@pytest.fixture
def served(server: Served) -> Served:
    """The server, started again where a test before ended it."""
    if not server.process.alive:
        server.process.start()
        anyio.run(server.process.wait_until_healthy)
    return server


@pytest.fixture
async def client(served: Served, renderer: Renderer) -> AsyncIterator[ServerClient]:
    """Of a server that has its weight engine ready."""
    found = served.client(renderer)
    await prepare(found, served.root)
    yield found
    await found.close()


@pytest.fixture
def differ(renderer: Renderer) -> Iterator[Judge]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models of this size are slower with more
    yield Judge(renderer)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if not PYTHON.exists():
        pytest.skip("there is no serving environment (.venv-vllm): run `make vllm`")
    root, media = tmp_path_factory.mktemp("policies"), tmp_path_factory.mktemp("blobs")
    options = ServerOptions(
        model=READER,
        weights_root=root,
        python=PYTHON,
        media_root=media,
        dtype="float32",
        max_model_len=2048,
        serving=ServingConfig(max_turns=8),
        max_images=2,
        lora_rank=8,
        flags={"enforce_eager": True},
    )
    cores = sorted(os.sched_getaffinity(0))
    command = build_command(options, Place(free_port(), cores=tuple(cores[1:] or cores)))
    process = ServerProcess(command, tmp_path_factory.mktemp("vllm") / "server.log")
    process.start()
    try:
        anyio.run(process.wait_until_healthy)  # a minute or two
        yield Served(process, root, media)
    finally:
        anyio.run(process.stop)


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    """Bans the ends of turns too, so that turns end at their limit and there are tokens to
    compare."""
    renderer = Renderer(READER, "")
    renderer.banned_ids = sorted([*renderer.banned_ids, *ENDS])
    return renderer


@pytest.fixture(scope="session")
def policy(server: Served) -> Policy:
    """``policy(version)``: the reader with noise of that version on all tensors; version 0 is the
    reader itself."""

    def make(version: int) -> Path:
        folder = server.root / f"v{version:06d}"
        if not folder.exists():
            copy_policy(folder)
            weights = load_file(folder / "model.safetensors")
            generator = torch.Generator().manual_seed(version)
            for _, tensor in sorted(weights.items()):
                if version:
                    tensor += 0.02 * torch.randn(tensor.shape, generator=generator)
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def copy_policy(folder: Path) -> None:
    """The reader without its recipe, whose hashes would be those of other weights."""
    shutil.copytree(READER, folder, ignore=shutil.ignore_patterns("recipe.json"))
    for path in folder.iterdir():
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
