"""Idle shares and waits in queues, against what a second-by-second count of a made-up worker
gives."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tasks_lib.rollouts.use import TrainerQueue, WorkerAccount, mean_waits, trainer_idle
from tasks_lib.worker.requests import WorkerUse


class CountedWorker:
    """A worker of ``slots`` browsers, of which each second says how many are lent and whether its
    engine generates."""

    def __init__(self, name: str, slots: int, seed: int, length: int = 400) -> None:
        made = np.random.default_rng(seed)
        self.name, self.slots = name, slots
        self.lent = made.integers(0, slots + 1, length)
        self.generating = made.integers(0, 2, length)
        self.batches, self.late = made.integers(0, 4, length), made.integers(0, 2, length)
        self.turns, self.waited = made.integers(0, 3, length), made.integers(0, 9, length)

    def use(self, at: int) -> WorkerUse:
        return WorkerUse(
            worker=self.name,
            seconds=at,
            slots=self.slots,
            lent=int(self.lent[:at].sum()),
            batches=int(self.batches[:at].sum()),
            late_batches=int(self.late[:at].sum()),
            generating=int(self.generating[:at].sum()),
            turns=int(self.turns[:at].sum()),
            waited=int(self.waited[:at].sum()),
        )

    def shard(self, began: int, ended: int) -> tuple[WorkerUse, WorkerUse]:
        return self.use(began), self.use(ended)


@pytest.mark.parametrize("seed", range(5))
def test_overlapping_shards_count_each_second_once(seed: int) -> None:
    """Workers of unlike size, whose shards come in any order; the second line begins where the
    first ended, pauses and all."""
    dice = random.Random(seed)
    workers = [CountedWorker("a", 2, seed), CountedWorker("b", 7, seed + 100)]
    stretches = {"a": [(40, 120), (120, 300)], "b": [(10, 180), (180, 390)]}
    account = WorkerAccount()
    for line in range(2):
        shards = []
        for worker in workers:
            first, last = stretches[worker.name][line]
            shards += [worker.shard(first + (50 if line else 0), last - 20), worker.shard(first + 30, last)]
            if not line:
                shards.append(worker.shard(first, first + 35))
        dice.shuffle(shards)
        account.add(shards[:3])
        account.add(shards[3:])
        idle, queues, batches = account.close()
        spans = [(worker, slice(*stretches[worker.name][line])) for worker in workers]
        free = sum((worker.slots - worker.lent[span]).sum() for worker, span in spans)
        places = sum(worker.slots * len(worker.lent[span]) for worker, span in spans)
        still = np.concatenate([1 - worker.generating[span] for worker, span in spans])
        waited = sum(worker.waited[span].sum() for worker, span in spans)
        assert idle == pytest.approx({"browsers": free / places, "engines": still.mean()})
        turns, made, late = (
            sum(getattr(w, of)[span].sum() for w, span in spans) for of in ("turns", "batches", "late")
        )
        assert queues == pytest.approx({"engine": waited / turns})
        assert batches == {"turns": turns, "batches": made, "late_batches": late}
    nothing = {"turns": 0, "batches": 0, "late_batches": 0}
    assert account.close() == ({}, {}, nothing), "nothing was reported since"


def test_a_restarted_worker_counts_as_another_one() -> None:
    account, first, second = WorkerAccount(), CountedWorker("a", 2, 1), CountedWorker("b", 2, 2)
    account.add([first.shard(0, 300)])
    account.close()
    began, ended = (use.model_copy(update={"turns": 0, "waited": 0.0}) for use in second.shard(5, 45))
    account.add([(began, ended)])
    idle, queues, _ = account.close()
    assert idle["browsers"] == pytest.approx(1 - second.lent[5:45].mean() / 2) and queues == {}


def test_waits_are_means_over_what_waited_and_not_over_shards() -> None:
    shards = [
        {"permit": {"done": 1, "waiting_seconds": 9.0}, "reward": {"graded": 0, "waiting_seconds": 0.0}},
        {"permit": {"done": 9, "waiting_seconds": 1.0}, "encode": {"done": 4, "waiting_seconds": 2.0}},
    ]
    assert mean_waits(shards) == {"permit": 1.0, "encode": 0.5}
    assert mean_waits([]) == {}


def test_groups_wait_for_the_trainer_from_their_end_to_their_batch() -> None:
    queue = TrainerQueue()
    for group, ended in (("a", 10.0), ("z", 11.0), ("b", 14.0), ("c", 19.0)):
        queue.enter(group, ended)
    queue.leave(["b", "a", "of an earlier process"], ["z"], now=20.0)
    assert queue.close() == {"trainer": 8.0}, "(20 - 10 + 20 - 14) / 2"
    assert queue.close() == {}
    queue.leave(["c"], [], now=21.5)
    assert queue.close() == {"trainer": 2.5}


def test_a_trainers_idle_share_is_of_its_waits_and_updates() -> None:
    manifest = {"waited_seconds": 6.0, "seconds": {"train": 1.5, "save_policy": 0.5}}
    assert trainer_idle(manifest) == {"trainer": 0.75}
