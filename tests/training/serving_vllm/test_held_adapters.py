"""A real vLLM server that holds another adapter than the published one is found at once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from envs.types import PolicyError
from training.policy.adapters import ADAPTER_WEIGHTS
from training.serving.vllm import in_server
from training.serving.vllm.adapters import publish_adapter
from training.serving.vllm.checksums import compare_adapter
from training.serving.vllm.client import ServerClient
from training.serving.vllm.publishing import publish
from training.serving.vllm.supervisor import Replica, Supervisor

from .conftest import PYTHON, Policy, Served
from .test_adapters import make_adapter

pytestmark = pytest.mark.vllm

IN_SERVER = Path(in_server.__file__).parent
Weights = dict[str, torch.Tensor]
LAYER = "base_model.model.model.language_model.layers.{}."


class Elsewhere(ServerClient):
    """Has its server load another adapter than the one that is published as version 32."""

    folder: Path | None = None

    async def post(self, path: str, seconds: float, **send: Any) -> dict[str, Any]:
        if path == "/v1/load_lora_adapter" and self.folder and send["json"]["lora_name"].endswith("32"):
            send["json"]["lora_path"] = str(self.folder)
        return await super().post(path, seconds, **send)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The adapters of versions 31 and 32."""
    root = tmp_path_factory.mktemp("adapters")
    return make_adapter(root / "v31", 31), make_adapter(root / "v32", 32)


@pytest.fixture
async def elsewhere(served: Served) -> AsyncIterator[Elsewhere]:
    found = Elsewhere(served.process.command.address)
    yield found
    await found.close()


def changed(folder: Path, change: Callable[[Weights], None], target: Path) -> Path:
    """A copy of an adapter with other weights."""
    shutil.copytree(folder, target)
    weights = load_file(target / ADAPTER_WEIGHTS)
    change(weights)
    save_file(weights, target / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    return target


def add_to(name: str) -> Callable[[Weights], None]:
    """Return a change of one number of a tensor by the smallest step in float32."""

    def change(weights: Weights) -> None:
        weights[name][-1, -1] = torch.nextafter(weights[name][-1, -1], torch.tensor(torch.inf))

    return change


def swap_layers(weights: Weights) -> None:
    """Give the first two layers each other's weights."""
    for name in [name for name in weights if name.startswith(LAYER.format(0))]:
        other = name.replace(LAYER.format(0), LAYER.format(1))
        weights[name], weights[other] = weights[other], weights[name]


async def test_every_tensor_of_an_adapter_is_compared(
    client: ServerClient, policy: Policy, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    await publish([client], 0, policy(0))
    for version, folder in zip((31, 32), adapters, strict=True):
        await publish_adapter([client], version, folder)
    for version, folder in zip((31, 32), adapters, strict=True):
        tensors = len(load_file(folder / ADAPTER_WEIGHTS))
        assert (await compare_adapter([client], version, folder)).compared == tensors == 42
    with pytest.raises(PolicyError, match="42 of 42 tensors are missing or have another checksum"):
        await compare_adapter([client], 33, adapters[1])


@pytest.mark.parametrize(
    "wrong",
    [
        LAYER.format(1) + "self_attn.k_proj.lora_A.weight",
        LAYER.format(0) + "self_attn.o_proj.lora_B.weight",
        LAYER.format(1) + "mlp.up_proj.lora_B.weight",
        "stale",
        "swapped",
    ],
)
async def test_a_wrong_adapter_is_found(
    elsewhere: Elsewhere, served: Served, policy: Policy, adapters: tuple[Path, Path], tmp_path: Path, wrong: str
) -> None:
    run = Supervisor([Replica(elsewhere)], served.root, checksums=True)
    folder = shutil.copytree(adapters[1], tmp_path / "v32")
    change = {"stale": lambda weights: weights.update(load_file(adapters[0] / ADAPTER_WEIGHTS)), "swapped": swap_layers}
    try:
        await publish([elsewhere], 0, policy(0))
        await run.start(31, adapters[0])
        elsewhere.folder = changed(folder, change.get(wrong, add_to(wrong)), tmp_path / "other")
        number, shown = {"stale": (42, LAYER.format(0)), "swapped": (28, LAYER.format(0))}.get(wrong, (1, wrong))
        with pytest.raises(PolicyError, match=rf"adapter of v32 .*: {number} of 42 tensors .*\({shown}"):
            await run.publish(32, folder)
        assert run.served == (31, adapters[0])
    finally:
        await run.close()


IN_WORKER = """
from types import SimpleNamespace as Of
import torch
from rollwright_held_adapters import sum_adapter
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA

layer = BaseLinearLayerWithLoRA.__new__(BaseLinearLayerWithLoRA)
torch.nn.Module.__init__(layer)
layer.tp_size, layer.lora_a_stacked, layer.lora_b_stacked = 1, [torch.zeros(2, 1, 4, 6)], [torch.zeros(2, 1, 5, 4)]
adapter = Of(id=7, rollwright_name="policy-v2", loras={"up": Of(lora_a=torch.randn(3, 6), lora_b=torch.randn(5, 3))})
adapter.get_lora = adapter.loras.get
manager = Of(list_adapters=lambda: {7: adapter}, packed_modules={}, model=Of(), modules={"up": layer})
manager.lora_index_to_id = [None, 7]

def look():
    return sum_adapter(Of(_adapter_manager=manager), "policy-v2", ["base_model.model.up.lora_A.weight"])["differ"]

print(look())
layer.lora_a_stacked[0][1, 0, :3, :6] = adapter.loras["up"].lora_a
layer.lora_b_stacked[0][1, 0, :5, :3] = adapter.loras["up"].lora_b
print(look())
layer.lora_b_stacked[0][1, 0, 4, 3] = 1e-9
print(look())
layer.lora_b_stacked[0][1, 0, 4, 3] = 0
adapter.loras.clear()
print(look())
manager.lora_index_to_id = [None, None]
print(look())
"""


def test_a_buffer_with_other_numbers_is_found() -> None:
    """Unset, whole, with a number beside the matrix, of a layer without an adapter, and not in
    use."""
    command = [PYTHON, "-c", IN_WORKER]
    done = subprocess.run(command, cwd=IN_SERVER, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["['up']", "[]", "['up']", "['up']", "[]"]
