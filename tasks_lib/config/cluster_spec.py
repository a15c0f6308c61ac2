"""Specs of clusters (``deployments/clusters/*.yaml``): which machines roll out, train and serve, and how processes are started on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from envs.types import ConfigError
from tasks_lib.config.reading import resolve
from training.config import Settings

Role = Literal["rollout", "train", "serve"]
Method = Literal["local", "existing", "ssh", "slurm"]

DASK_PORT = 8786
"""Of the scheduler, unless the spec names another one."""
SERVE_PORT = 8000
"""Of the first vLLM server of a machine; the next ones follow."""


class NodeGroup(Settings):
    """Machines with one role. Groups may name the same machines: then they share them."""

    role: Role = Field(description="What they do: rollouts in browsers, training, or serving the policy by vLLM.")
    hosts: tuple[str, ...] = Field((), description="Addresses of the machines (existing, ssh).")
    count: int = Field(1, ge=1, le=1024, description="Machines, where none is named.")
    cpus: int = Field(1, ge=1, le=1024, description="CPU cores that each gives (slurm asks for them).")
    memory_gb: int = Field(4, ge=1, le=65536, description="GB of memory that each gives (slurm).")
    gpus: int = Field(0, ge=0, le=64, description="GPUs that each gives.")
    processes: int = Field(
        1, ge=1, le=64, description="On each: Dask workers that roll out, trainer ranks, or vLLM servers."
    )

    @property
    def size(self) -> int:
        """Number of machines."""
        return len(self.hosts) or self.count


class ClusterSpec(Settings):
    """Machines, storage, and how processes are started."""

    name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", description="Of its folder of logs, and of the SLURM job."
    )
    start: Method = Field(
        description="local: on this machine; existing: nothing is started; ssh; slurm: a batch script to submit."
    )
    storage: str = Field(description="Folder of the runs, under the same path on every machine.")
    scheduler: str = Field("", examples=["10.0.0.1"], description="Host of the Dask scheduler (existing, ssh).")
    port: int = Field(DASK_PORT, ge=1024, le=65535, description="Port of the Dask scheduler.")
    project: str = Field("", description="The checkout on every machine; empty: where it is on this one.")
    groups: tuple[NodeGroup, ...] = Field(min_length=1, description="The machines, by role.")
    partition: str = Field("", description="SLURM partition.")
    account: str = Field("", description="SLURM account.")
    hours: int = Field(24, ge=1, le=720, description="SLURM time limit.")

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
        if self.start == "local" and any(group.size > 1 and group.role == "serve" for group in self.groups):
            raise ValueError("groups: serve has several machines, and local is one; use processes for several servers")
        return self

    def group(self, role: Role) -> NodeGroup | None:
        """The machines with a role."""
        return next((group for group in self.groups if group.role == role), None)

    def hosts_of(self, role: Role) -> tuple[str, ...]:
        """Addresses of the machines with a role, as the others reach them."""
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
        return "127.0.0.1" if self.start == "local" else "$SCHEDULER"

    @property
    def address(self) -> str:
        """Of the Dask scheduler."""
        return f"tcp://{self.scheduler_host}:{self.port}"

    def servers(self) -> tuple[str, ...]:
        """Addresses of the vLLM servers."""
        group = self.group("serve")
        ports = range(SERVE_PORT, SERVE_PORT + (group.processes if group else 0))
        return tuple(f"http://{host}:{port}" for host in self.hosts_of("serve") for port in ports)

    def settings(self) -> dict[str, Any]:
        """What a run on this cluster is configured with, below what else is given."""
        found: dict[str, Any] = {"root": self.storage, "cluster": {"address": self.address}}
        if train := self.group("train"):
            found["trainer"] = {"nodes": train.size, "processes": train.size * train.processes}
        if serve := self.group("serve"):
            # Servers of a machine share its GPUs evenly.
            found["serving"] = {"engine": "vllm", "tensor_parallel": max(1, serve.gpus // serve.processes)} | (
                {"replicas": serve.processes} if self.start == "local" else {"address": list(self.servers())}
            )
        return found


def load_cluster(path: str | Path) -> ClusterSpec:
    """A spec file.

    Raises:
        ConfigError: It is not there, or not valid; names each bad key.
    """
    try:
        values = yaml.safe_load(Path(path).expanduser().read_text())
    except OSError as error:
        raise ConfigError(f"--cluster: {path} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--cluster: {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--cluster: {path} is no cluster spec: a block of keys is expected")
    found: ClusterSpec = resolve(ClusterSpec, values, f"--cluster: {path}")
    return found
