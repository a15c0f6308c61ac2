"""The command of a vLLM server: what is fixed, what is refused, what is passed through."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.types import ConfigError
from training.serving.config import ServingConfig
from training.serving.vllm.command import (
    IN_SERVER,
    Place,
    ServerOptions,
    build_command,
    check_host,
    passed_through,
    place_replicas,
    spread,
)


def options(**changes: Any) -> ServerOptions:
    return ServerOptions(model=Path("/policies/v0"), weights_root=Path("/policies"), **changes)


def values(argv: tuple[str, ...]) -> dict[str, str]:
    """The flags that have one value."""
    return {name: value for name, value in pairwise(argv) if name.startswith("--")}


def test_turns_come_from_the_distribution_that_is_trained() -> None:
    command = build_command(options(), Place(8000), {})
    flags = values(command.argv)
    assert "--enable-scale-out" in command.argv
    assert (flags["--generation-config"], flags["--logprobs-mode"]) == ("vllm", "processed_logprobs")
    assert json.loads(flags["--weight-transfer-config"]) == {"backend": "disk"}
    assert (flags["--host"], flags["--port"], command.address) == ("127.0.0.1", "8000", "http://127.0.0.1:8000")
    assert command.environment["VLLM_SERVER_DEV_MODE"] == "1"


def test_the_modules_that_are_named_are_on_its_path() -> None:
    command = build_command(
        options(serving=ServingConfig(host="10.0.0.5"), api_key="secret"), Place(8000), {"PYTHONPATH": "/ours"}
    )
    assert command.environment["PYTHONPATH"] == str(IN_SERVER)
    for flag in ("--worker-extension-cls", "--middleware"):
        module, _, name = values(command.argv)[flag].partition(".")
        assert f"class {name}" in (IN_SERVER / f"{module}.py").read_text()


def test_a_key_is_in_the_environment_and_not_in_the_process_list() -> None:
    command = build_command(options(api_key="secret"), Place(8000), {})
    assert command.environment["VLLM_API_KEY"] == "secret"
    assert not any("secret" in argument for argument in command.argv)
    assert "VLLM_API_KEY" not in build_command(options(), Place(8000), {"VLLM_API_KEY": "other"}).environment


@pytest.mark.parametrize(
    ("host", "api_key", "says"),
    [
        ("0.0.0.0", "secret", "is public"),
        ("8.8.8.8", "secret", "is public"),
        ("::", "secret", "is public"),
        ("10.0.0.5", "", "give an API key"),
        ("gpu-3.example", "secret", "is no address"),
    ],
)
def test_hosts_that_strangers_could_reach_are_refused(host: str, api_key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_command(options(serving=ServingConfig(host=host), api_key=api_key), Place(8000), {})


@pytest.mark.parametrize(
    ("host", "api_key"), [("127.0.0.1", ""), ("localhost", ""), ("::1", ""), ("10.0.0.5", "secret")]
)
def test_hosts_that_are_allowed(host: str, api_key: str) -> None:
    check_host(host, api_key)


def test_flags_are_passed_through() -> None:
    flags: dict[str, Any] = {
        "enforce_eager": True,
        "--seed": 1,
        "enable-prefix-caching": False,
        "compilation_config": {"level": 0},
    }
    assert passed_through(flags) == [
        "--enforce-eager",
        "--seed",
        "1",
        "--no-enable-prefix-caching",
        "--compilation-config",
        '{"level": 0}',
    ]


@pytest.mark.parametrize("flag", ["host", "--logprobs-mode", "generation_config", "no-enable-scale-out"])
def test_flags_of_ours_are_not(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        build_command(options(flags={flag: "x"}), Place(8000), {})


def test_a_replica_has_gpus_for_its_tensor_parallelism() -> None:
    command = build_command(
        options(serving=ServingConfig(tensor_parallel=2)), Place(8000, gpus=(2, 3)), {"CUDA_VISIBLE_DEVICES": "0"}
    )
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "VLLM_CPU_KVCACHE_SPACE" not in command.environment
    assert "--no-enable-chunked-prefill" not in command.argv
    with pytest.raises(ConfigError, match="tensor_parallel is 2"):
        build_command(options(serving=ServingConfig(tensor_parallel=2)), Place(8000, gpus=(2,)), {})


def test_adapters_up_to_the_next_limit_of_vllm_are_served() -> None:
    assert "--enable-lora" not in build_command(options(), Place(8000), {}).argv
    for rank, limit in ((1, 8), (8, 8), (9, 16), (200, 256), (512, 512)):
        argv = build_command(options(lora_rank=rank), Place(8000), {}).argv
        assert argv[argv.index("--max-lora-rank") + 1] == str(limit)
    with pytest.raises(ConfigError, match=r"trainer\.lora_rank: 513; .* up to rank 512"):
        build_command(options(lora_rank=513), Place(8000), {})


def test_workers_on_the_cpu_have_cores_of_their_own() -> None:
    places = place_replicas([8000, 8001], cores=range(5))
    bound = [build_command(options(), place, {}).environment["VLLM_CPU_OMP_THREADS_BIND"] for place in places]
    assert bound == ["1,2", "3,4"]
    assert "--no-enable-chunked-prefill" in build_command(options(), places[0], {}).argv
    two = build_command(options(serving=ServingConfig(tensor_parallel=2)), Place(8000, cores=(1, 2, 3)), {})
    assert two.environment["VLLM_CPU_OMP_THREADS_BIND"] == "1,2|3"


def test_gpus_of_replicas() -> None:
    assert place_replicas([1, 2], gpus=[[0, 1], [2, 3]]) == (Place(1, gpus=(0, 1)), Place(2, gpus=(2, 3)))
    for gpus in ([[0, 1]], [[0], [0]]):
        with pytest.raises(ConfigError, match="2 replicas, no GPU twice"):
            place_replicas([1, 2], gpus=gpus)


@given(st.integers(1, 40), st.integers(1, 12))
def test_cores_are_dealt_out_once_and_evenly(cores: int, groups: int) -> None:
    dealt = spread(range(cores), groups)
    sizes = [len(group) for group in dealt]
    assert len(dealt) == groups and min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    if cores >= groups:
        assert [core for group in dealt for core in group] == list(range(cores))
