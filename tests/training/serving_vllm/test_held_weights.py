"""A real vLLM server that holds other weights than the checkpoint is found at the publication."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from envs.types import PolicyError
from training.ledger.checkpoint_files import MANIFEST, file_hashes
from training.ledger.store import write_json
from training.serving.vllm.checksums import compare_weights
from training.serving.vllm.client import ServerClient
from training.serving.vllm.publishing import publish
from training.serving.vllm.supervisor import Replica, Supervisor

from .conftest import Policy, Served, copy_policy

pytestmark = pytest.mark.vllm

Weights = dict[str, torch.Tensor]
LAYER = "model.layers.{}."


class Elsewhere(ServerClient):
    """Has its server load another folder than the one that is published as version 2."""

    folder: Path | None = None

    async def post(self, path: str, seconds: float, **send: Any) -> dict[str, Any]:
        if path == "/update_weights" and self.folder and send["json"]["update_info"]["path"].endswith("v000002"):
            send["json"]["update_info"] = {"path": str(self.folder)}
        return await super().post(path, seconds, **send)


def changed(folder: Path, name: str, change: Callable[[Weights], None]) -> Path:
    """A copy of a policy with other weights."""
    target = folder.with_name(f"{folder.name}-{name}")
    if not target.exists():
        copy_policy(target)
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def swap_layers(weights: Weights) -> None:
    """Give the first two layers each other's weights."""
    first = [name for name in weights if name.startswith(LAYER.format(0))]
    for name in first:
        other = name.replace(LAYER.format(0), LAYER.format(1))
        weights[name], weights[other] = weights[other], weights[name]


def add_to(name: str) -> Callable[[Weights], None]:
    """Return a change of one tensor by the smallest step of a number in float32."""

    def change(weights: Weights) -> None:
        weights[name] = torch.nextafter(weights[name], torch.full_like(weights[name], torch.inf))

    return change


async def publish_from(served: Served, client: Elsewhere, policy: Policy, folder: Path) -> str:
    """Publish version 2 to a server that loads ``folder`` instead; returns why it was refused.

    Afterwards the server holds version 1 again.
    """
    run = Supervisor([Replica(client)], served.root, checksums=True)
    try:
        await run.start(1, policy(1))
        client.folder = folder
        with pytest.raises(PolicyError) as refusal:
            await run.publish(2, policy(2))
        assert await client.weight_version() == 1 and run.served == (1, policy(1))
        assert (await compare_weights([client], 1, policy(1))).compared
        return str(refusal.value)
    finally:
        await run.close()


@pytest.fixture
def elsewhere(served: Served) -> Elsewhere:
    return Elsewhere(served.process.command.address)


async def test_every_tensor_of_a_publication_is_compared(client: ServerClient, policy: Policy) -> None:
    for version in (1, 2):
        await publish([client], version, policy(version))
        result = await compare_weights([client], version, policy(version))
        assert result.compared == result.tensors == len(load_file(policy(version) / "model.safetensors"))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.bias",
        "model.embed_tokens.weight",
        "visual.patch_embed.proj.weight",
    ],
)
async def test_a_wrong_tensor_is_found(served: Served, elsewhere: Elsewhere, policy: Policy, name: str) -> None:
    reason = await publish_from(served, elsewhere, policy, changed(policy(2), name, add_to(name)))
    assert "does not hold the weights of v2" in reason and f"1 of 69 tensors have another checksum ({name})" in reason


async def test_a_stale_server_is_found(served: Served, elsewhere: Elsewhere, policy: Policy) -> None:
    assert "69 of 69 tensors" in await publish_from(served, elsewhere, policy, policy(1))


async def test_a_swapped_layer_is_found(served: Served, elsewhere: Elsewhere, policy: Policy) -> None:
    of_layer = sum(name.startswith(LAYER.format(0)) for name in load_file(policy(2) / "model.safetensors"))
    reason = await publish_from(served, elsewhere, policy, changed(policy(2), "swapped", swap_layers))
    assert f"{2 * of_layer} of 69 tensors" in reason


async def test_a_stale_copy_of_a_tied_head_is_found(client: ServerClient, policy: Policy) -> None:
    """vLLM's own reload leaves the packed copy of a tied head as it was."""
    await publish([client], 1, policy(1))
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(policy(2))}}
    await client.post("/collective_rpc", 60, json=reload)
    with pytest.raises(PolicyError, match=r"1 of 69 tensors have another checksum \(model.embed_tokens.weight\)"):
        await compare_weights([client], 2, policy(2))


async def test_a_server_of_another_machine_hashes_weights_itself(
    client: ServerClient, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.serving.vllm.publishing.is_here", lambda host: False)
    folder = changed(policy(2), "listed", lambda weights: None)
    write_json(folder / MANIFEST, {"files": file_hashes(folder)}, sealed=True)
    await publish([client], 2, folder)
    assert await client.weight_version() == 2
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(PolicyError, match="does not hold what its manifest says"):
        await publish([client], 3, folder)
    assert await client.weight_version() == 2
