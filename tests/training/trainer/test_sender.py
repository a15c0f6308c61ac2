"""A trainer broadcasts what it publishes, and trains on meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from training.serving.vllm.broadcasting import ask_sender
from training.serving.vllm.in_server.rollwright_broadcast import Broadcast
from training.trainer.control.launch import TrainerProcess

from .conftest import HandMadeRun, make_spec


@pytest.mark.parametrize(
    "settings",
    [
        {"zero_stage": 3},
        {"zero_stage": 0, "finetuning_type": "lora", "lora_rank": 4, "lora_export": "merged"},
    ],
    ids=["divided weights", "merged adapters"],
)
def test_a_version_is_broadcast_while_the_next_one_is_trained(run: HandMadeRun, settings: dict[str, Any]) -> None:
    run.fill(1, 4)
    with TrainerProcess.start(
        run.store.root, make_spec(trainer=settings, total_updates=3, servers="127.0.0.1")
    ) as trainer:
        sender = trainer.wait_for_policy(1, 120)["sender"]
        answer = ask_sender(sender, {"version": 1, "size": 2, "device": "cpu", "seconds": 30})
        assert (answer["fault"], answer["backend"]) == ("", "gloo")
        assert (
            "another run"
            in ask_sender(f"{sender}0", {"version": 1, "size": 2, "device": "cpu", "seconds": 30})["fault"]
        )
        broadcast = Broadcast(sender.partition(" ")[0], answer["name"], 1, 2, "gloo", torch.device("cpu"), 30)
        run.fill(2, 4)
        trainer.wait_for_policy(2, 120)  # nothing of version 1 is taken yet
        received = dict(broadcast.tensors(broadcast.listing(30)))
        broadcast.close()
    first, second = (weights(run, version) for version in (1, 2))
    assert received.keys() == first.keys()
    assert all(received[name].dtype == first[name].dtype for name in first)
    assert all(torch.equal(received[name], first[name]) for name in first)
    assert not all(torch.equal(received[name], second[name]) for name in first)


def weights(run: HandMadeRun, version: int) -> dict[str, torch.Tensor]:
    folder: Path = run.store.policy_path(version)
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
