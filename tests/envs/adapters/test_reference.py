"""Equal episodes have equal records, whichever way they are opened: the measure of all adapters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envs import SyncEnvHost, open_env_sync
from envs.adapters import close_hosts, shared_host

from .reference import CANARY, MISSING, RECIPES, SCRIPTS, digest, reference


@pytest.fixture(scope="module")
def host() -> Iterator[SyncEnvHost]:
    yield shared_host(max_sessions=4)
    close_hosts()


@pytest.mark.parametrize("task", [*SCRIPTS, *MISSING])
def test_an_episode_on_a_shared_host_is_the_reference(task: str, host: SyncEnvHost) -> None:
    if task in MISSING:
        pytest.skip(f"run python -m flows.sites build {task.partition('/')[0]}")
    expected = reference(task)
    with host.open(task, seed=expected.seed) as env:
        steps = [env.reset(), *(env.step(text) for text in expected.texts)]
        assert [digest(step.observation) for step in steps] == expected.observations
        assert env.trajectory is not None and digest(env.trajectory) == digest(expected.trajectory)
        assert steps[-1].reward == expected.reward and (task not in RECIPES or expected.reward == 1.0)


def test_digests_tell_episodes_apart(host: SyncEnvHost) -> None:
    expected = reference("miniwob/enter-text")
    with host.open("miniwob/enter-text", seed=8) as env:
        assert digest(env.reset().observation) != expected.observations[0]
    rewards = {reference(task).reward for task in SCRIPTS}
    assert len(rewards) > 2, "the scripts end well, badly and in between"


def test_the_canary_sings_where_stores_are_shared(host: SyncEnvHost) -> None:
    with host.open(CANARY) as first, host.open(CANARY) as second:
        page = first.reset()
        assert "found: nothing" in page.observation.text
        page = first.step("click [1]")
        assert "cookie,local,session,name" in first.step({"type": "refresh"}).observation.text.replace("k=", "")
        assert "found: nothing" in second.reset().observation.text
        assert "found: nothing" in first.reset().observation.text
    with open_env_sync(CANARY) as third:
        assert "found: nothing" in third.reset().observation.text
