"""Over-sampled groups: what is not needed any more is given up, recorded, and holds nothing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import pytest

from envs.browser import BrowserPool
from envs.episodes import CancelScope
from envs.sites import MiniWobSite
from envs.types import StopReason
from tasks_lib.config import EvaluateConfig, RolloutConfig, resolve, resolve_path
from tasks_lib.folder.task_sets import select_kinds
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.worker.activity import ActivityClock
from tasks_lib.worker.actors import EncodedSituation, Turn
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tasks_lib.worker.oversampling import NOT_NEEDED, TOO_LATE, OverSampling
from tasks_lib.worker.rollout_worker import RolloutWorker
from tasks_lib.worker.turns import encode_stage, turn_pipeline
from tests.turns import Letters
from training.config import PolicyConfig
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.records.groups import GroupSpec


def group_of(samples: int, enough: int) -> GroupSpec:
    (task,) = select_kinds(resolve_path("datasets/tasks/miniwob.jsonl"), ["click-test"])
    return GroupSpec(group_id="i000000-g0000", task=task, seeds=(200_000,) * samples, enough=enough)


class Thinker:
    """An actor that clicks at once as the first sample of a group, and never comes to an end as any
    other."""

    policy_version = 0

    def __init__(self) -> None:
        self.thinks = asyncio.Event()

    def slot(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, asked: EncodedSituation) -> Turn:
        if asked.situation.sample:
            self.thinks.set()
            await asyncio.Event().wait()
        await self.thinks.wait()
        return Turn(asked, "click [1]", (1,), (0.0,), 0)


async def test_an_episode_that_runs_is_given_up_and_its_page_is_free(tmp_path: Path) -> None:
    group = group_of(3, enough=1)
    site = MiniWobSite()
    await site.start()
    try:
        with ThreadPoolExecutor(1) as threads:
            async with BrowserPool(max_sessions=2) as pool:
                actor = Thinker()
                encode = encode_stage(Letters(), RunStore(tmp_path), PolicyConfig(), threads, 1000)
                turns = turn_pipeline(encode, actor, 2)
                clock = ActivityClock(("generate", "browser", "reward", "store"))
                runner = EpisodeRunner(pool, {"miniwob": site}, actor, turns, clock, RolloutConfig())
                async with asyncio.timeout(60):
                    first, second = await asyncio.gather(
                        *(runner.run(group, sample, SlotStatus()) for sample in (0, 1))
                    )
                    late = await runner.run(group, 2, SlotStatus())
                    async with pool.lease(site) as one, pool.lease(site) as two:  # neither place is held any more
                        for session in (one, two):
                            await session.reset(group.task, 200_000)
    finally:
        await site.close()
    assert [each.stop_reason for each in first] == [StopReason.DONE] and first[0].error is None
    assert [each.stop_reason for each in second] == [StopReason.ABANDONED], "and it is not tried again"
    assert second[0].error == NOT_NEEDED and second[0].reward.score is None
    assert [each.stop_reason for each in late] == [StopReason.ABANDONED] and late[0].steps == () == second[0].steps


async def test_a_quorum_gives_the_others_their_grace_and_closes(tmp_path: Path) -> None:
    """Of eight episodes six are over: the two that run are given up, after the grace and not
    before."""
    loop = asyncio.get_running_loop()
    group = group_of(8, enough=0)
    rollout = OverSampling(8, quorum=0.75, grace=0.2)

    async def runs() -> None:
        with pytest.raises(TimeoutError):
            async with CancelScope(60) as scope:
                with rollout.running(group, scope):
                    await asyncio.sleep(5)
        assert scope.was_cancelled

    async with asyncio.TaskGroup() as late:
        late.create_task(runs())
        late.create_task(runs())
        await asyncio.sleep(0)
        for _ in range(6):
            assert not rollout.reason(group)
            rollout.record_end()
        began = loop.time()
    assert 0.15 < loop.time() - began < 2
    assert rollout.reason(group) == TOO_LATE


@pytest.mark.parametrize(("phase", "quorum"), [("i000002", 0.75), ("e000002", 1.0), ("s000000", 1.0)])
def test_only_rollouts_for_training_are_closed_at_a_quorum(phase: str, quorum: float) -> None:
    """An evaluation that leaves slow episodes out would be biased."""
    groups = [group_of(size, enough=0).model_copy(update={"group_id": f"{phase}-g0000"}) for size in (3, 5)]
    limits = OverSampling.of(RolloutConfig(quorum=0.75, grace=9.0), groups)
    assert (limits.episodes, limits.quorum, limits.grace) == (8, quorum, 9.0)


async def test_without_a_quorum_all_episodes_are_waited_for() -> None:
    group, rollout = group_of(4, enough=0), OverSampling(4)
    for _ in range(4):
        rollout.record_end()
    await asyncio.sleep(0.01)
    assert not rollout.closed and not rollout.reason(group)


def test_a_shard_plays_what_its_groups_need_and_commits_all_of_it(tmp_path: Path) -> None:
    config: EvaluateConfig = resolve(EvaluateConfig, {"run_id": "extra"})
    store = RunStore(tmp_path)
    store.publish_policy(0, resolve_path(config.policy.checkpoint), {})
    request = Rollouts(store, config.policy, config.rollout, seed=0).request([group_of(4, enough=2)], 0)
    worker = RolloutWorker(request)
    worker.setup(None)
    try:
        worker.roll_out(request)
    finally:
        worker.teardown(None)
    record = read_group(store, "i000000-g0000")
    assert len(record.episodes) == 4 and len(record.usable) == 2 and record.abstentions == 2
    given_up = [episode for episode in record.episodes if episode.stop_reason is StopReason.ABANDONED]
    assert [episode.abstained for episode in given_up] == [NOT_NEEDED] * 2
    assert all(store.trajectory(episode.episode_id).steps == () for episode in given_up)
