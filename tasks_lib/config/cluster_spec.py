"""Cluster specs (``deployments/clusters/*.yaml``): roles of machines, and start of processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from envs.types import ConfigError
from tasks_lib.config.reading import resolve, resolve_path
from training.settings import Settings

Role = Literal["rollout", "evaluate", "train", "serve", "judge"]
Method = Literal["local", "existing", "ssh", "slurm", "kubernetes"]

DASK_PORT = 8786
"""Default port of the Dask scheduler."""
VARIABLE = "ROLLWRIGHT_CLUSTER"
"""Environment variable with the spec of an existing cluster that flows run on by default."""
SERVE_PORT = 8000
"""Port of the first vLLM server of a machine; further servers have the next ones."""
JUDGE_PORT = 8100
"""Port of the judge's vLLM server."""
JUDGE_NAME = "judge"
"""Name of the judge's model in requests."""


class NodeGroup(Settings):
    """Machines with one role. Groups that name the same machines share them."""

    role: Role = Field(
        description="Work of the machines: rollouts in browsers, evaluations beside them (evaluation.where), training, "
        "serving the policy by vLLM, or a judge."
    )
    hosts: tuple[str, ...] = Field((), description="Addresses of the machines (existing, ssh).")
    count: int = Field(1, ge=1, le=1024, description="Machines, where none is named.")
    cpus: int = Field(1, ge=1, le=1024, description="CPU cores that each gives (slurm asks for them).")
    memory_gb: int = Field(4, ge=1, le=65536, description="GB of memory that each gives (slurm).")
    gpus: int = Field(0, ge=0, le=64, description="GPUs that each gives.")
    processes: int = Field(
        1, ge=1, le=64, description="On each: Dask workers that play, trainer ranks, or vLLM servers."
    )
    model: str = Field("", description="Checkpoint of the judge; its one machine serves it on all its GPUs.")

    @model_validator(mode="after")
    def _judges(self) -> Self:
        if (self.role == "judge") != bool(self.model):
            raise ValueError("model: a judge needs its checkpoint, and no other role has one")
        if self.role == "judge" and (self.size > 1 or self.processes > 1):
            raise ValueError("judge is one vLLM server on one machine: leave count and processes at 1")
        return self

    @property
    def size(self) -> int:
        """Number of machines."""
        return len(self.hosts) or self.count


class ClusterSpec(Settings):
    """Machines, storage, and how processes are started."""

    name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", description="Name of its folder of logs, and of the SLURM job."
    )
    start: Method = Field(
        description="local: on this machine; existing: nothing is started; ssh; slurm, kubernetes: what to submit is printed."
    )
    storage: str = Field(description="Folder of the runs, under the same path on every machine.")
    scheduler: str = Field("", examples=["10.0.0.1"], description="Host of the Dask scheduler (existing, ssh).")
    port: int = Field(DASK_PORT, ge=1024, le=65535, description="Port of the Dask scheduler.")
    project: str = Field("", description="The checkout on every machine; empty: where it is on this one.")
    groups: tuple[NodeGroup, ...] = Field(min_length=1, description="The machines, by role.")
    partition: str = Field("", description="SLURM partition.")
    account: str = Field("", description="SLURM account.")
    hours: int = Field(24, ge=1, le=720, description="SLURM time limit.")
    images: str = Field("rollwright/{target}:cpu", description="Images (kubernetes); {target} is docker/Dockerfile's.")
    claim: str = Field("", description="PersistentVolumeClaim with the storage, ReadWriteMany (kubernetes).")
    prefect: str = Field("", description="API of your Prefect server; empty: one is started (kubernetes).")
    api_key: str = Field("", description="Environment variable with the key of vLLM servers off this machine.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        roles = [group.role for group in self.groups]
        if "rollout" not in roles:
            raise ValueError("groups: none has the role rollout, so nothing would be rolled out")
        if repeated := sorted({role for role in roles if roles.count(role) > 1}):
            raise ValueError(f"groups: more than one has the role {repeated[0]}; name all its machines in one group")
        if self.start in ("existing", "ssh"):
            if not self.scheduler:
                raise ValueError(f"scheduler: a cluster that is started by {self.start} needs its host")
            if nameless := [group.role for group in self.groups if not group.hosts]:
                raise ValueError(f"groups: {nameless[0]} names no hosts, which {self.start} needs")
        elif named := [group.role for group in self.groups if group.hosts]:
            raise ValueError(f"groups: {named[0]} names hosts, but {self.start} chooses machines; give their count")
        if self.start == "kubernetes":
            if not self.claim:
                raise ValueError("claim: kubernetes needs the name of a PersistentVolumeClaim with the storage")
            if {"serve", "judge"} & set(roles) and not self.api_key:
                raise ValueError("api_key: vLLM servers of other machines need a key; name its environment variable")
        if self.start == "local" and any(group.size > 1 and group.role == "serve" for group in self.groups):
            raise ValueError("groups: serve has several machines, and local is one; use processes for several servers")
        return self

    def group(self, role: Role) -> NodeGroup | None:
        """Return the machines with a role; ``None`` if there are none."""
        return next((group for group in self.groups if group.role == role), None)

    def hosts_of(self, role: Role) -> tuple[str, ...]:
        """Return the addresses by which other machines reach those with a role."""
        group = self.group(role)
        if group is None:
            return ()
        if group.hosts:
            return group.hosts
        if self.start == "local":
            return ("127.0.0.1",) * group.size
        return tuple(f"${{{role.upper()}_{number}}}" for number in range(group.size))

    @property
    def scheduler_host(self) -> str:
        """Host of the Dask scheduler."""
        if self.scheduler:
            return self.scheduler
        return {"local": "127.0.0.1", "kubernetes": f"{self.name}-scheduler"}.get(self.start, "$SCHEDULER")

    @property
    def address(self) -> str:
        """Address of the Dask scheduler."""
        return f"tcp://{self.scheduler_host}:{self.port}"

    def servers(self) -> tuple[str, ...]:
        """Return the addresses of the vLLM servers."""
        group = self.group("serve")
        if group and self.start == "kubernetes":  # a pod each
            pods = (f"{self.name}-serve-{number}" for number in range(group.size * group.processes))
            return tuple(f"http://{pod}.{self.name}-serve:{SERVE_PORT}" for pod in pods)
        ports = range(SERVE_PORT, SERVE_PORT + (group.processes if group else 0))
        return tuple(f"http://{host}:{port}" for host in self.hosts_of("serve") for port in ports)

    @property
    def judge(self) -> str:
        """Address of the judge's server; empty for none."""
        host = f"{self.name}-judge" if self.start == "kubernetes" else "".join(self.hosts_of("judge"))
        return f"http://{host}:{JUDGE_PORT}" if self.group("judge") else ""

    def settings(self) -> dict[str, Any]:
        """Return the configuration of a run on this cluster, which other given values override."""
        settings: dict[str, Any] = {"root": self.storage, "cluster": {"address": self.address}}
        if train := self.group("train"):
            settings["trainer"] = {"nodes": train.size, "processes": train.size * train.processes}
        if serve := self.group("serve"):
            # Servers of a machine share its GPUs evenly.
            settings["serving"] = {"engine": "vllm", "tensor_parallel": max(1, serve.gpus // serve.processes)} | (
                {"replicas": serve.processes} if self.start == "local" else {"address": list(self.servers())}
            )
            if self.start != "local":
                settings["serving"]["media_root"] = self.storage
            if self.api_key:
                settings["serving"]["api_key"] = self.api_key
        if self.judge:
            key = {"api_key_env": self.api_key} if self.api_key else {}
            settings["rollout"] = {"judge": {"base_url": f"{self.judge}/v1", "models": JUDGE_NAME, **key}}
        return settings


def run_settings(spec: ClusterSpec) -> list[str]:
    """Return a spec's settings as ``--set`` options."""
    return [part for key, value in _flat(spec.settings()) for part in ("--set", f"{key}={_plain(value)}")]


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _plain(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def ambient_settings(model: type[Settings]) -> dict[str, Any]:
    """Return the values of the cluster spec that ``ROLLWRIGHT_CLUSTER`` names; empty without one.

    All other values override them. Flows that train get all of `ClusterSpec.settings`, others get
    storage and scheduler.

    Raises:
        ConfigError: the spec cannot be read, or something would have to be started.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return {}
    spec = load_cluster(resolve_path(path), VARIABLE)
    if spec.start not in ("existing", "kubernetes"):
        raise ConfigError(
            f"{VARIABLE}: {path} is started by {spec.start}; only a cluster that exists can be named there"
        )
    settings = spec.settings()
    kept = model.model_fields if {"trainer", "serving", "pacing"} <= model.model_fields.keys() else ("root", "cluster")
    return {key: value for key, value in settings.items() if key in kept and key in model.model_fields}


def load_cluster(path: str | Path, source: str = "--cluster") -> ClusterSpec:
    """Read a spec file.

    Args:
        path: Path of the file.
        source: Option or variable that names the file, for errors.

    Raises:
        ConfigError: the file does not exist or is not valid; names each bad key.
    """
    try:
        values = yaml.safe_load(Path(path).expanduser().read_text())
    except OSError as error:
        raise ConfigError(f"{source}: {path} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: {path} is no cluster spec: a block of keys is expected")
    spec: ClusterSpec = resolve(ClusterSpec, values, f"{source}: {path}")
    return spec
