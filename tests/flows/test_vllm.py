"""A run that trains on a real vLLM server, which fails in the middle of a rollout and of both
publications."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from envs.types import Step, StopReason, Trajectory
from tasks_lib.processes.serving import PYTHON
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.policy.renderer import Renderer, find_images
from training.serving.engine import Generation, GenerationRequest, Picture
from training.serving.vllm.probe import ProbeResult, ProbeTurn, TransformersScorer, compare
from training.serving.vllm.process import group_members

from .conftest import Run
from .test_resume import check_whole

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.chaos, pytest.mark.dask]

TEMPERATURE = 1.3
"""Of the quickstart; the log-probs of greedy turns are at 1."""
TURNS = 12
"""Of each version, compared with transformers."""
PUBLICATION_SECONDS = 3.0
"""From a new version's manifest to the middle of its publication, which waits for a stopped
worker."""
MEAN_LIMIT = 1e-4
"""Largest mean |difference| of log-probs in float32."""


def api_server(run: Run, other_than: int = 0) -> psutil.Process | None:
    """The first process of the run's vLLM server: the leader of its process group."""
    found = [each for each in run.children("vllm.entrypoints.openai.api_server") if each.pid != other_than]
    return found[0] if found else None


@pytest.mark.timeout(1500)
def test_a_run_trains_on_vllm_and_a_failing_server_loses_nothing(make_run: Callable[..., Run]) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no serving environment (.venv-vllm): run `make vllm`")
    settings = {"serving.engine": "vllm", "iterations": 2, "evaluation.every": 2, "evaluation.episodes": 8}
    run = make_run("served", **settings, **{"rollout.groups_per_iteration": 6, "cluster.workers": 1})
    store = run.store
    run.start()
    run.wait_until(lambda: any(store.root.glob("trajectories/*/i000000-*")), timeout=600)
    first = api_server(run)
    assert first is not None and len(group_members(first.pid)) > 1
    first.kill()
    run.wait_until(lambda: api_server(run, first.pid) is not None, timeout=120)
    second = api_server(run, first.pid)
    assert second is not None
    run.wait_until(lambda: store.latest_policy() == 1, timeout=600)
    second.suspend()  # it is asked to load the version that was just written
    run.wait_until(lambda: api_server(run, second.pid) is not None, timeout=300)
    third = api_server(run, second.pid)
    assert third is not None
    run.wait_until(lambda: store.latest_policy() == 2, timeout=600)
    kill_worker_in_publication(third)
    run.wait_until(lambda: "v2 reached no server" in run.log(), timeout=120)  # so it was in the middle of that
    run.wait_until(lambda: api_server(run, third.pid) is not None, timeout=300)
    fourth = api_server(run, third.pid)
    assert fourth is not None
    run.finish(900)

    servers = (first, second, third, fourth)
    assert not any(group_members(server.pid) for server in servers), "a process of a server outlived the run"
    check_whole(store, iterations=2)
    check_committed_once(store)
    check_versions(store)


def kill_worker_in_publication(server: psutil.Process) -> None:
    """Stop the server's worker, so that the publication that begins now waits for it; then kill
    it."""
    found = [psutil.Process(pid) for pid in group_members(server.pid)]
    worker = next(each for each in found if "Worker" in " ".join(each.cmdline()))
    worker.suspend()
    time.sleep(PUBLICATION_SECONDS)
    worker.kill()


def check_versions(store: RunStore) -> None:
    """Every turn is of the version of its phase, with that version's log-probs."""
    episodes = [store.trajectory(episode_id) for episode_id in sorted(store.episode_ids())]
    assert not [each.episode_id for each in episodes if each.stop_reason is StopReason.ENGINE_ERROR]
    for each in episodes:
        phase = int(each.episode_id[1:7])  # of evaluations: the version itself
        assert {each.policy_version, *(step.policy_version for step in each.steps)} == {phase}, each.episode_id
    assert {each.policy_version for each in episodes} == {0, 1, 2}
    check_log_probs(store, episodes)


def check_committed_once(store: RunStore) -> None:
    """Each iteration has its groups, in full rounds (a second one where rewards are equal), and no
    episode is in two groups."""
    for phase in ("i000000", "i000001"):
        groups = store.group_ids(phase)
        first_round = [f"{phase}-g{number:04d}" for number in range(6)]
        assert set(first_round) <= set(groups) and len(groups) % 6 == 0
    records = [read_group(store, group_id) for group_id in store.group_ids("i*")]
    assert {len(record.episodes) for record in records} == {4}
    named = Counter(each.episode_id for record in records for each in record.episodes)
    assert set(named.values()) == {1}


def check_log_probs(store: RunStore, episodes: list[Trajectory]) -> None:
    """The recorded log-probs are those of the checkpoint of the version, and of no other."""
    renderer = Renderer(store.policy_path(0), "qwen2_vl")
    torch.set_num_threads(1)  # models of this size are slower with more
    for version in (0, 1, 2):
        turns = list(itertools.islice(turns_of(store, renderer, episodes, version), TURNS))
        found = {other: differ(renderer, store.policy_path(other), turns) for other in (0, 1, 2)}
        print(f"v{version}: {found}")
        assert found[version].mean <= MEAN_LIMIT, version
        assert all(found[other].mean > 10 * found[version].mean for other in {0, 1, 2} - {version}), version


def differ(renderer: Renderer, folder: Path, turns: list[ProbeTurn]) -> ProbeResult:
    return compare(turns, TransformersScorer(renderer)(folder, turns))


def turns_of(store: RunStore, renderer: Renderer, episodes: list[Trajectory], version: int) -> Iterator[ProbeTurn]:
    """Recorded turns of a version: sampled ones, or the greedy ones of an evaluation where none was
    sampled."""
    sampled = [each for each in episodes if each.episode_id.startswith(f"i{version:06d}")]
    greedy = [each for each in episodes if each.episode_id.startswith(f"e{version:06d}")]
    for each in sampled or greedy:
        for step in each.steps:
            yield recorded(store, renderer, step, TEMPERATURE if sampled else 1.0)


def recorded(store: RunStore, renderer: Renderer, step: Step, temperature: float) -> ProbeTurn:
    images = renderer.image_token_id
    request = GenerationRequest(
        prompt=find_images(step.prompt_ids, images, [step.prompt_ids.count(images)]),
        pictures=(Picture(store.blob(step.screenshot), (0, 0)),),
        key="",
        episode="",
        seed=0,
        max_new_tokens=len(step.response_ids),
        temperature=temperature,
    )
    return ProbeTurn(request, Generation(step.response_ids, step.logprobs, (), step.finish_reason))
