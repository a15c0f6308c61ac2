"""Builds the servers of a run and the clients for them."""

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
from training.serving.vllm.supervisor import Replica, Supervisor

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of attention heads that vLLM 0.32 supports on the CPU. It crashes at the start with
others."""


def check_options(options: ServerOptions) -> None:
    """Check before a run that its servers can start.

    Raises:
        ConfigError: there is no serving environment or checkpoint, the address is public, or vLLM's
            CPU attention does not support the model.
    """
    check_host(options.serving.host, options.api_key)
    if not options.python.exists():
        raise ConfigError(
            f"there is no serving environment ({options.python}): run `make vllm`, or set serving.engine=local"
        )
    if not (options.model / "config.json").exists():
        raise ConfigError(f"{options.model} is no Hugging Face checkpoint folder: it has no config.json")
    if options.serving.sleep and not options.on_gpus:
        raise ConfigError("serving.sleep: vLLM on the CPU cannot sleep (--enable-sleep-mode is refused); leave it out")
    head = head_dim(json.loads((options.model / "config.json").read_bytes()))
    if not options.on_gpus and head is not None and head not in CPU_HEAD_DIMS:
        raise ConfigError(
            f"{options.model} has attention heads of {head} dimensions, and vLLM on the CPU knows "
            f"{', '.join(map(str, CPU_HEAD_DIMS))}; set serving.engine=local"
        )


def head_dim(config: dict[str, Any]) -> int | None:
    """Return the size of the language model's attention heads; ``None`` if ``config`` lacks it."""
    text = config.get("text_config", config)
    if text.get("head_dim"):
        return int(text["head_dim"])
    hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")
    return int(hidden) // int(heads) if hidden and heads else None


def make_supervisor(options: ServerOptions, renderer: Renderer, logs: Path, probe: Probe | None = None) -> Supervisor:
    """Build the supervisor of the run's own servers, or of foreign ones at ``serving.address``.

    On the CPU each replica has separate cores.

    Args:
        logs: Folder of the servers' log files.

    Raises:
        ConfigError: see `check_options` and `build_command`.
    """
    serving = options.serving
    if serving.address:
        servers = [Replica(client) for client in connect(serving.address, renderer, options)]
    else:
        check_options(options)
        ports = free_ports(serving.host, serving.replicas)
        places = place_replicas(ports, serving.gpus, sorted(os.sched_getaffinity(0)))
        commands = [build_command(options, place) for place in places]
        clients = connect([command.address for command in commands], renderer, options)
        processes = [ServerProcess(command, logs / f"vllm-{index}.log") for index, command in enumerate(commands)]
        servers = [Replica(client, process) for client, process in zip(clients, processes, strict=True)]
    return Supervisor(
        servers,
        options.weights_root,
        update=serving.update,
        together=not serving.one_at_a_time,
        limit=serving.publish_seconds,
        probe=probe,
        checksums=True,
    )


def connect(addresses: Sequence[str], renderer: Renderer, options: ServerOptions) -> list[ServerClient]:
    """Return a client for each server."""
    ends = end_ids(options.model, renderer.tokenizer)
    return [
        ServerClient(
            address, api_key=options.api_key, banned=renderer.banned_ids, ends=ends, media_root=options.media_root
        )
        for address in addresses
    ]


def free_ports(host: str, count: int) -> list[int]:
    """Return ports on which nothing listens now.

    Raises:
        ConfigError: ``host`` is no address of this machine.
    """
    sockets = [socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind((host, 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
    except OSError as error:
        raise ConfigError(
            f"serving.host {host}: nothing can listen there ({error.strerror}); "
            "give 127.0.0.1 or an address of this machine"
        ) from error
    finally:
        for listener in sockets:
            listener.close()
