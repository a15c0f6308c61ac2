"""What servers a run gets, and what of it is found wrong before it starts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.types import ConfigError, EngineError, PolicyError
from training.policy.renderer import Renderer
from training.serving.config import ServingConfig
from training.serving.vllm.command import ServerOptions
from training.serving.vllm.service import check_options, end_ids, free_ports, head_dim, make_supervisor

from .conftest import ENDS, READER


def options(**changes: Any) -> ServerOptions:
    return ServerOptions(**{"model": READER, "weights_root": READER.parent, "python": Path(sys.executable)} | changes)


def test_what_can_be_known_before_is_said_before(tmp_path: Path) -> None:
    sleeping = ServingConfig(engine="vllm", sleep=True)
    check_options(options())
    with pytest.raises(ConfigError, match="run `make vllm`"):
        check_options(options(python=tmp_path / "python"))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        check_options(options(model=tmp_path))
    with pytest.raises(ConfigError, match="is public"):
        check_options(options(serving=ServingConfig(host="0.0.0.0")))
    with pytest.raises(ConfigError, match=r"serving\.sleep: vLLM on the CPU cannot sleep"):
        check_options(options(serving=sleeping))
    check_options(options(serving=sleeping, cuda_build=True))
    check_options(options(serving=sleeping.model_copy(update={"gpus": ((0,),)})))


def test_heads_that_are_too_small_for_the_cpu_are_found(tmp_path: Path) -> None:
    config = {"text_config": {"hidden_size": 64, "num_attention_heads": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="heads of 16 dimensions"):
        check_options(options(model=tmp_path))
    check_options(options(model=tmp_path, cuda_build=True))
    assert head_dim({"text_config": {"head_dim": 128, "hidden_size": 64, "num_attention_heads": 4}}) == 128
    assert head_dim({}) is None


def test_replicas_have_ports_logs_and_cores_of_their_own(renderer: Renderer, tmp_path: Path) -> None:
    supervisor = make_supervisor(options(serving=ServingConfig(replicas=2)), renderer, tmp_path)
    processes = [replica.process for replica in supervisor.replicas]
    assert len({process.log for process in processes if process}) == 2
    assert len({process.command.address for process in processes if process}) == 2
    cores = [process.command.environment["VLLM_CPU_OMP_THREADS_BIND"] for process in processes if process]
    assert len(set(cores)) == min(2, max(1, len(os.sched_getaffinity(0)) - 1))


def test_servers_of_somebody_else_are_not_started(renderer: Renderer, tmp_path: Path) -> None:
    serving = ServingConfig(engine="vllm", address=("http://10.0.0.5:8000/",))
    supervisor = make_supervisor(options(serving=serving), renderer, tmp_path)
    (replica,) = supervisor.replicas
    assert replica.process is None and replica.client.address == "http://10.0.0.5:8000"


async def test_a_run_s_limit_is_that_of_its_publications(
    renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def publish(*_: Any, limit: float, **__: Any) -> None:
        raise EngineError(f"not in {limit:.0f} s")

    serving = ServingConfig(engine="vllm", address=("http://10.0.0.5:8000",), publish_seconds=7)
    supervisor = make_supervisor(options(serving=serving), renderer, tmp_path)
    for name in ("publish", "publish_adapter"):
        monkeypatch.setattr(f"training.serving.vllm.supervisor.{name}", publish)
    with pytest.raises(EngineError, match="not in 7 s"):
        await supervisor.publish(1, tmp_path)


def test_turns_end_at_the_checkpoints_end_tokens(renderer: Renderer, tmp_path: Path) -> None:
    assert end_ids(READER, renderer.tokenizer) == list(ENDS)
    shutil.copy(READER / "config.json", tmp_path)
    assert end_ids(tmp_path, renderer.tokenizer) == [renderer.tokenizer.eos_token_id]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [null]}')
    with pytest.raises(PolicyError, match="names no end-of-turn token"):
        end_ids(tmp_path, renderer.tokenizer)


def test_ports_are_free_and_different() -> None:
    assert len(set(free_ports("127.0.0.1", 3))) == 3
