"""Adapters are served under versioned names, exactly, and only whole ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from envs.types import PolicyError
from tests.loopback import serving
from training.policy.adapters import base_of, is_adapter, load_policy
from training.policy.renderer import Renderer
from training.serving.engine import VersionSpan
from training.serving.vllm.adapters import check_adapter, publish_adapter
from training.serving.vllm.client import ServerClient
from training.serving.vllm.probe import Probe, probe_picture
from training.serving.vllm.publishing import publish
from training.serving.vllm.supervisor import Replica, Supervisor
from training.trainer.publish import publish_policy
from training.trainer.rows import read_rows
from training.trainer.setup import build_trainer
from training.trainer.update import Stopwatch, run_update

from ..trainer.conftest import make_run, make_spec
from .conftest import READER, Policy, Served, copy_policy
from .fake_vllm import fake
from .judging import EXACT, WRONG, Judge, ask

LANGUAGE = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
Adapter = Callable[..., Path]


def make_adapter(folder: Path, seed: int, modules: str = LANGUAGE, base: Path = READER) -> Path:
    """A random adapter, as PEFT saves it."""
    torch.manual_seed(seed)
    peft = get_peft_model(load_policy(base, torch.float32), LoraConfig(r=8, lora_alpha=16, target_modules=modules))
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.05)
    peft.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    """``adapter(seed)``: the folder of a random adapter, made once."""
    root = tmp_path_factory.mktemp("adapters")
    return cache(lambda seed: make_adapter(root / f"v{seed}", seed))


def test_adapters_of_the_vision_tower_are_refused(tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "tower", 1, r".*visual\.blocks\.\d+\.attn\.proj")
    assert is_adapter(folder)
    with pytest.raises(PolicyError, match=r"in the vision tower \(4, such as .*visual"):
        check_adapter(folder)


def test_an_adapter_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(PolicyError, match=re.escape("no adapter_model.safetensors")):
        check_adapter(tmp_path)


async def test_the_last_two_adapters_and_the_needed_ones_stay_loaded(adapter: Adapter) -> None:
    """The one before is for a rollback, and for turns that are under way."""
    with serving(fake()) as address:
        client = ServerClient(address)
        for version in range(1, 6):
            await publish_adapter([client], version, adapter(1), keep=(1,))
            assert await client.adapters() == sorted({1, max(1, version - 1), version})


@pytest.mark.vllm
async def test_an_adapter_is_served_exactly(
    client: ServerClient, renderer: Renderer, policy: Policy, adapter: Adapter, differ: Judge
) -> None:
    base = policy(0)
    await publish([client], 0, base)
    request = ask(renderer, probe_picture(0))
    for version in (11, 12):
        print(await publish_adapter([client], version, adapter(version)))
        turn = await client.generate(request, version, adapter=True)
        assert turn.version_spans == (VersionSpan(version, 0, 24),)
        assert differ(adapter(version), request, turn).maximum <= EXACT
        assert differ(base, request, turn).maximum > WRONG
    before, now = await asyncio.gather(*(client.generate(request, version, adapter=True) for version in (11, 12)))
    assert differ(adapter(11), request, before).maximum <= EXACT
    assert differ(adapter(12), request, now).maximum <= EXACT
    of_base = await client.generate(request, 0)
    assert differ(base, request, of_base).maximum <= EXACT


@pytest.mark.vllm
async def test_the_probe_tells_adapters_apart(
    client: ServerClient, renderer: Renderer, policy: Policy, adapter: Adapter
) -> None:
    await publish([client], 0, policy(0))
    for version in (11, 12, 13):
        await publish_adapter([client], version, adapter(version))
    assert await client.adapters() == [12, 13]
    await Probe(renderer, images=2).check([client], 13, adapter(13))
    with pytest.raises(PolicyError, match="does not serve v12"):
        await Probe(renderer).check([client], 12, adapter(13))


@pytest.mark.vllm
async def test_a_second_run_gets_its_own_adapter(
    served: Served, client: ServerClient, renderer: Renderer, policy: Policy, adapter: Adapter
) -> None:
    """Under a name that the first run's has too."""
    await publish([client], 0, policy(0))
    for seed in (11, 12):
        run = Supervisor([Replica(served.client(renderer))], served.root, probe=Probe(renderer))
        await run.start(1, adapter(seed))
        await run.close()
    assert await client.adapters() == [1]
    await client.unload_adapter(1, 60)


@pytest.mark.vllm
async def test_the_adapter_that_a_run_publishes_is_served(
    client: ServerClient, renderer: Renderer, policy: Policy, tmp_path: Path
) -> None:
    await publish([client], 0, policy(0))
    run = make_run(tmp_path / "run", READER)
    batch = run.fill(1, 4)
    settings = {"finetuning_type": "lora", "lora_rank": 8, "train_vision_tower": False, "learning_rate": 1e-2}
    trainer = build_trainer(run.store, make_spec(trainer=settings), 0)
    run_update(trainer, batch, read_rows(run.store, batch), Stopwatch())
    publish_policy(trainer, run.store, 1, dict)
    adapter = run.store.policy_path(1)
    await publish_adapter([client], 1, adapter)
    await Probe(renderer).check([client], 1, adapter)
    with pytest.raises(PolicyError, match="serves v0 and not v1"):
        await Probe(renderer).check([client], 1, base_of(adapter))


@pytest.mark.vllm
async def test_a_folder_that_is_no_adapter_changes_nothing(
    client: ServerClient, renderer: Renderer, adapter: Adapter, tmp_path: Path
) -> None:
    await publish_adapter([client], 21, adapter(11))
    copy_policy(tmp_path / "bad")
    (tmp_path / "bad" / "adapter_config.json").write_text("{}")
    (tmp_path / "bad" / "model.safetensors").rename(tmp_path / "bad" / "adapter_model.safetensors")
    with pytest.raises(PolicyError):
        await publish_adapter([client], 22, tmp_path / "bad")
    assert (await client.adapters())[-1] == 21
