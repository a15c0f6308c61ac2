"""Settings of serving: the engine that generates turns, and where it runs."""

from __future__ import annotations

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from training.settings import Settings

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""Host names that only this machine can reach."""


class ServingConfig(Settings):
    """Settings for serving a policy version."""

    engine: Literal["local", "vllm"] = Field(
        "local", description="transformers in each rollout worker, or vLLM servers (make vllm)."
    )
    patience: float = Field(
        300.0, ge=0, le=86_400, description="Seconds to wait for a failing engine before an episode abstains."
    )
    replicas: int = Field(1, ge=1, le=64, description="vLLM servers that a run starts on its own machine.")
    address: tuple[str, ...] = Field(
        (), examples=[["http://10.0.0.5:8000"]], description="vLLM servers of your own; none is started then."
    )
    media_root: str = Field(
        "",
        examples=["/shared/runs"],
        description="Folder below which servers of address read pictures by their paths (shared storage); empty: they are sent.",
    )
    api_key: str = Field("", description="Name of the environment variable that holds the servers' API key.")
    host: str = Field("127.0.0.1", description="Address that started servers listen on; others need an API key.")
    gpus: tuple[tuple[int, ...], ...] = Field(
        (), examples=[[[0, 1], [2, 3]]], description="GPUs of each replica; empty: the CPU, or CUDA_VISIBLE_DEVICES."
    )
    tensor_parallel: int = Field(1, ge=1, le=64, description="GPUs that share one model.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Data type of served weights; auto: float32 on the CPU, bfloat16 on GPUs. Name it with address.",
    )
    max_turns: int = Field(16, ge=1, le=4096, description="Turns that a server generates at once.")
    update: Literal["exact", "fast"] = Field(
        "exact", description="At a new version: clear every cache, or keep those of turns in flight."
    )
    weight_transfer: Literal["disk", "broadcast"] = Field(
        "disk",
        description="Way of a new version to vLLM: its folder, or a broadcast from the trainer (NCCL on GPUs, gloo on CPUs).",
    )
    sleep: bool = Field(
        False, description="Servers give their GPUs' memory to the trainer during updates (mode=sync, CUDA)."
    )
    one_at_a_time: bool = Field(False, description="Replicas switch to a new version one after the other.")
    publish_seconds: float = Field(
        0.0,
        ge=0,
        le=86_400,
        description="Seconds that machines have to read a new version, and servers to load it; late ones are left out. "
        "0: 60 and one for each 50 MB.",
    )
    probe_limit: float = Field(
        0.0, ge=0, le=10, description="Largest mean difference of log-probs after a publication; 0: by the data type."
    )
    probe_every: int = Field(
        10,
        ge=0,
        le=100_000,
        description="Publications from one comparison with the checkpoint's log-probs to the next, besides doubtful ones; "
        "0: the first one only.",
    )
    vllm: dict[str, Any] = Field(
        {}, examples=[{"gpu_memory_utilization": 0.9}], description="Every other flag of vLLM's, by its name."
    )

    @field_validator("address")
    @classmethod
    def _addresses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for address in given:
            parts = urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
                raise ValueError(f"{address!r} is no server's address; give it as http://HOST:PORT")
        return tuple(address.rstrip("/") for address in given)

    @property
    def servers(self) -> int:
        """Number of vLLM servers, your own or started by the run."""
        return len(self.address) or self.replicas

    def part(self, first: int | None, last: int | None) -> ServingConfig:
        """Return a copy with a slice of the vLLM servers."""
        if self.engine == "local":
            return self
        servers = slice(first, last)
        change = {
            "address": self.address[servers],
            "gpus": self.gpus[servers],
            "replicas": len(range(self.replicas)[servers]),
        }
        return self.model_copy(update=change if not self.address else {"address": change["address"]})

    @property
    def broadcast_host(self) -> str:
        """Host of the servers that the trainer broadcasts to; empty if it does not."""
        if self.weight_transfer == "disk":
            return ""
        hosts = [str(urlsplit(address).hostname) for address in self.address] or [self.host]
        return next((host for host in hosts if host not in LOOPBACK), hosts[0])

    @property
    def own_servers_are_local(self) -> bool:
        """True when the run starts servers that only this machine can reach."""
        return self.engine == "vllm" and not self.address and self.host in LOOPBACK

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.gpus and len(self.gpus) != self.replicas:
            raise ValueError(
                f"serving.gpus has {len(self.gpus)} lists and serving.replicas is {self.replicas}: give one per replica"
            )
        if self.engine == "local" and (self.address or self.gpus or self.vllm):
            raise ValueError(
                "serving.address, gpus and vllm apply to vLLM servers: set serving.engine to vllm, or leave them out"
            )
        if self.weight_transfer == "broadcast":
            self._check_broadcast()
        if self.engine == "local" and self.sleep:
            raise ValueError("serving.sleep applies to vLLM servers: set serving.engine to vllm, or leave it out")
        return self

    def _check_broadcast(self) -> None:
        reasons = {
            "serving.engine: the local engine reads folders": self.engine == "local",
            "serving.sleep: the trainer and its servers share GPUs, which NCCL does not join": self.sleep,
            "serving.one_at_a_time: a broadcast reaches all servers at once": self.one_at_a_time,
        }
        for reason, applies in reasons.items():
            if applies:
                raise ValueError(f"serving.weight_transfer=broadcast does not go with {reason}; set it to disk")
