"""A worker's shard when the engine fails, when turns are cut, and without fixed batches: real
browser, real model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.types import ErrorCode, StopReason, Trajectory
from tasks_lib.config import resolve_path
from tasks_lib.processes.serving import PolicyServers
from tasks_lib.worker.requests import RolloutReport, RolloutRequest
from tasks_lib.worker.rollout_worker import RolloutWorker
from training.ledger.journal import Journal, read_group
from training.ledger.store import RunStore
from training.records.states import abstention_cause
from training.serving.config import ServingConfig
from training.serving.engine import Generation, GenerationRequest
from training.serving.local import LocalModel

from ..training.vision_models import change_json
from .test_worker import make_request


def roll_out(request: RolloutRequest) -> tuple[RolloutReport, list[Trajectory]]:
    """What became of the episodes of the first group."""
    worker, store = RolloutWorker(None), RunStore(request.run_dir)
    worker.setup(None)
    try:
        report = worker.roll_out(request)
    finally:
        worker.teardown(None)
    record = read_group(store, request.groups[0].group_id)
    return report, [store.trajectory(each.episode_id) for each in record.episodes]


def changed(request: RolloutRequest, *, patience: float = 120.0, policy: Any = (), **rollout: Any) -> RolloutRequest:
    return request.model_copy(
        update={
            "serving": ServingConfig(patience=patience),
            "policy": request.policy.model_copy(update=dict(policy)),
            "rollout": request.rollout.model_copy(update=rollout),
        }
    )


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("failures", [4, 10**9])
def test_an_engine_that_fails_is_waited_for_and_ends_no_shard(
    failures: int, deterministic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, asked = LocalModel.generate, [0]

    def fail(self: LocalModel, requests: Sequence[GenerationRequest]) -> list[Generation]:
        asked[0] += 1
        if asked[0] <= failures:
            raise MemoryError("no memory for the keys and values")
        return generate(self, requests)

    monkeypatch.setattr(LocalModel, "generate", fail)
    forever = failures > 100
    request = changed(make_request(tmp_path), patience=0.5 if forever else 60.0, deterministic=deterministic)
    report, episodes = roll_out(request)
    assert report.group_ids == ("e000000-g0000",), "the group is committed"
    assert asked[0] > 4 and len(episodes) == 2, "no episode was tried again: the engine had been waited for"
    for each in episodes:
        if forever:
            assert (each.stop_reason, each.steps, each.reward.score) == (StopReason.ENGINE_ERROR, (), None)
            assert "serving.patience" in str(each.error) and "MemoryError: no memory for" in str(each.error)
            assert abstention_cause(each.stop_reason) == "engine"
        else:
            assert each.error is None and each.reward.score is not None
            assert {step.finish_reason for step in each.steps} == {"stop"}


def test_free_batches_play_all_episodes_of_all_groups(tmp_path: Path) -> None:
    request = changed(make_request(tmp_path), deterministic=False, concurrency=3)
    groups = [
        request.groups[0].model_copy(update={"group_id": f"i000000-g{number:04d}", "seeds": (number,) * 3})
        for number in range(3)
    ]
    report, _ = roll_out(request.model_copy(update={"groups": tuple(groups)}))
    store = RunStore(tmp_path)
    for group in groups:
        record = read_group(store, group.group_id)
        assert [(each.sample, each.seed, each.score is None) for each in record.episodes] == [
            (sample, group.seeds[0], False) for sample in range(3)
        ]
    assert report.pipeline["batches"]["turns"] == report.pipeline["generate"]["done"] >= 9
    assert report.pipeline["batches"]["late_batches"] == 0 < report.seconds["generate"]
    journal = Journal(store.journal_path)
    journal.refresh(store)
    journal.close()


def test_cut_turns_are_recorded_and_an_invalid_one_need_not_end_an_episode(tmp_path: Path) -> None:
    request = changed(make_request(tmp_path), policy={"max_new_tokens": 1}, stop_on_invalid=False, repeats=0)
    group = request.groups[0]
    longer = group.model_copy(update={"task": group.task.model_copy(update={"horizon": 3})})
    _, episodes = roll_out(request.model_copy(update={"groups": (longer,)}))
    for each in episodes:
        assert each.stop_reason is StopReason.HORIZON and len(each.steps) == 3
        assert {(step.finish_reason, len(step.response_ids)) for step in each.steps} == {("length", 1)}
        assert {step.error for step in each.steps} == {ErrorCode.INVALID_ACTION}
        assert "Error: " in each.steps[1].prompt, "the policy is told"
    record = read_group(RunStore(tmp_path), "e000000-g0000")
    assert [each.cut_turns for each in record.episodes] == [tuple(range(len(each.steps))) for each in episodes]
    old = episodes[0].model_dump()
    for step in old["steps"]:
        del step["finish_reason"]
    assert {step.finish_reason for step in Trajectory.model_validate(old).steps} == {None}, "older records load"


def test_a_prompt_that_leaves_no_room_for_a_turn_is_an_abstention(tmp_path: Path) -> None:
    short = shutil.copytree(resolve_path("datasets/policies/reader"), tmp_path / "short")
    text = {"text_config": json.loads((short / "config.json").read_text())["text_config"]}
    text["text_config"]["max_position_embeddings"] = 64
    change_json(short / "config.json", **text)
    request = make_request(tmp_path / "run").model_copy(update={"checkpoint": str(short)})
    report, episodes = roll_out(request)
    assert report.group_ids == ("e000000-g0000",) and len(episodes) == 2, "not tried again"
    for each in episodes:
        assert (each.stop_reason, each.steps, each.reward.score) == (StopReason.CONTEXT_OVERFLOW, (), None)
        assert "policy.max_new_tokens" in str(each.error)


def test_a_publication_tells_which_servers_lack_the_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    addresses, events = ("http://a", "http://b"), list[tuple[str, int, str]]()

    def emit(event: str, run_id: str, payload: dict[str, Any]) -> None:
        events.append((event, payload["version"], payload["server"]))

    monkeypatch.setattr("tasks_lib.processes.serving.emit", emit)
    replicas = [SimpleNamespace(client=SimpleNamespace(address=address)) for address in addresses]
    supervisor: Any = SimpleNamespace(replicas=replicas, served=None, asleep=False, behind=(), publish=None)
    portal: Any = SimpleNamespace(call=lambda load, version, folder: None)
    servers = PolicyServers(supervisor, portal, RunStore(tmp_path))
    for version, behind in ((1, ()), (2, ("http://b",)), (3, ("http://b",)), (4, ())):
        supervisor.behind = behind
        servers.publish(version)
        assert servers.behind == behind
    assert events == [("rollwright.server.behind", 2, "http://b"), ("rollwright.server.back", 4, "http://b")]
