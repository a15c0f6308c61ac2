"""Puts the parts together: the servers of a run, and clients of them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.types import ConfigError
from training.policy.renderer import Renderer, end_ids
from training.serving.vllm.client import ServerClient
from training.serving.vllm.command import ServerOptions, build_command, check_host, place_replicas
from training.serving.vllm.probe import Probe
from training.serving.vllm.process import ServerProcess
from training.serving.vllm.publishing import UpdateMode
from training.serving.vllm.supervisor import Replica, Supervisor

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM 0.32 knows on the CPU; with another one it dies when it starts."""


def check_options(options: ServerOptions, *, gpus: bool) -> None:
    """Find out before a run starts that its servers would not start.

    Args:
        gpus: The servers run on GPUs.

    Raises:
        ConfigError: no serving environment, no checkpoint, a public address, or a model that vLLM's CPU attention does not know.
    """
    check_host(options.host, options.api_key)
    if not options.python.exists():
        raise ConfigError(
            f"there is no serving environment ({options.python}): run `make vllm`, or set serving.engine=local"
        )
    if not (options.model / "config.json").exists():
        raise ConfigError(f"{options.model} is no Hugging Face checkpoint folder: it has no config.json")
    if options.sleep and not gpus:
        raise ConfigError("serving.sleep: vLLM on the CPU cannot sleep (--enable-sleep-mode is refused); leave it out")
    head = head_dim(json.loads((options.model / "config.json").read_bytes()))
    if not gpus and head is not None and head not in CPU_HEAD_DIMS:
        raise ConfigError(
            f"{options.model} has attention heads of {head} dimensions, and vLLM on the CPU knows {', '.join(map(str, CPU_HEAD_DIMS))}; "
            "set serving.engine=local"
        )


def head_dim(config: dict[str, Any]) -> int | None:
    """Dimensions of one attention head of the language model; ``None`` if its configuration does not say."""
    text = config.get("text_config", config)
    if text.get("head_dim"):
        return int(text["head_dim"])
    hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")
    return int(hidden) // int(heads) if hidden and heads else None


def make_supervisor(
    options: ServerOptions,
    renderer: Renderer,
    logs: Path,
    *,
    replicas: int = 1,
    gpus: Sequence[Sequence[int]] = (),
    addresses: Sequence[str] = (),
    update: UpdateMode = "exact",
    together: bool = True,
    probe: Probe | None = None,
) -> Supervisor:
    """The servers of a run: ``replicas`` of our own, or those of somebody else at ``addresses``.

    Args:
        logs: Folder of the servers' log files.
        gpus: GPUs of each replica; none: on the CPU, each replica with cores of its own.

    Raises:
        ConfigError: as `check_options` and `build_command`.
    """
    if addresses:
        found = [Replica(client) for client in connect(addresses, renderer, options)]
        return Supervisor(found, options.weights_root, update=update, together=together, probe=probe)
    check_options(options, gpus=bool(gpus) or options.on_gpus)
    places = place_replicas(free_ports(options.host, replicas), gpus, sorted(os.sched_getaffinity(0)))
    commands = [build_command(options, place) for place in places]
    clients = connect([command.address for command in commands], renderer, options)
    processes = [ServerProcess(command, logs / f"vllm-{index}.log") for index, command in enumerate(commands)]
    found = [Replica(client, process) for client, process in zip(clients, processes, strict=True)]
    return Supervisor(found, options.weights_root, update=update, together=together, probe=probe)


def connect(addresses: Sequence[str], renderer: Renderer, options: ServerOptions) -> list[ServerClient]:
    """A client for each server."""
    ends = end_ids(options.model, renderer.tokenizer)
    return [
        ServerClient(
            address, api_key=options.api_key, banned=renderer.banned_ids, ends=ends, media_root=options.media_root
        )
        for address in addresses
    ]


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on now.

    Raises:
        ConfigError: this machine does not have that address.
    """
    sockets = [socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    except OSError as error:
        raise ConfigError(
            f"serving.host {host}: nothing can listen there ({error.strerror}); give 127.0.0.1 or an address of this machine"
        ) from error
    finally:
        for each in sockets:
            each.close()
