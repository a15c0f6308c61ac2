"""Admission and window: no group is consumed too late, nothing waits for ever, batches are as early
as they can be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.pacing.admission import Pace, capacity
from training.pacing.window import LiveGroup, next_batch

Policy = Callable[[Pace, int, Sequence[LiveGroup]], tuple[int, ...] | None]


@dataclass
class Walk:
    """A run of random durations, outcomes, kills and late publications, at integer times."""

    pace: Pace
    seed: int
    policy: Policy = next_batch
    left_out: float = 0.3
    killed: float = 0.05
    late: int = 0
    time: int = 0
    version: int = 0
    published: int = 0
    live: dict[int, LiveGroup] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    admitted: list[int] = field(default_factory=list)
    """Version at each admission."""
    lags: list[int] = field(default_factory=list)
    batches: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def admit(self) -> None:
        accepted = self.version * self.pace.batch + sum(group.ready for group in self.live.values())
        running = sum(not group.ready for group in self.live.values())
        for _ in range(capacity(self.pace, version=self.published, accepted=accepted, running=running)):
            number = next(self.numbers)
            self.live[number] = LiveGroup(number, self.published, ready=False)
            self.ends[number] = self.time + 1 + int(self.random.lognormvariate(1, 1.5))
            self.admitted.append(self.published)

    def end(self) -> None:
        """Time passes until the next group ends: accepted, or left out; sometimes the whole run is
        killed."""
        self.time = min(self.ends.values())
        for number in [number for number, at in self.ends.items() if at <= self.time]:
            del self.ends[number]
            if self.random.random() < self.left_out:
                del self.live[number]
            else:
                self.live[number] = replace(self.live[number], ready=True)
        if self.random.random() < self.killed:  # what was under way is lost; counts are made again from what is stored
            for number in list(self.ends):
                del self.ends[number], self.live[number]

    def step(self) -> None:
        self.published = max(self.published, self.version - self.random.randint(0, self.late))
        self.admit()
        chosen = self.policy(self.pace, self.version, list(self.live.values()))
        if chosen is None:
            assert self.ends or self.published < self.version, "nothing is under way and the trainer waits: a deadlock"
            if self.ends:
                self.end()
            return
        assert len(set(chosen)) == self.pace.batch and all(self.live[number].ready for number in chosen)
        self.lags += [self.version - self.live.pop(number).version for number in chosen]
        self.batches.append(chosen)
        self.version += 1

    def run(self, versions: int, most: int = 20_000) -> Walk:
        for _ in range(most):
            if self.version == versions:
                return self
            self.step()
        raise AssertionError(f"only {self.version} of {versions} versions")


paces = st.builds(Pace, batch=st.integers(1, 6), staleness=st.integers(0, 4), running=st.integers(1, 40))


@settings(max_examples=150, deadline=None)
@given(pace=paces, seed=st.integers(0, 2**32), left_out=st.sampled_from([0.0, 0.3, 0.8]), late=st.integers(0, 2))
def test_no_group_is_consumed_after_its_last_version(pace: Pace, seed: int, left_out: float, late: int) -> None:
    walk = Walk(pace, seed, left_out=left_out, late=late).run(12)
    assert max(walk.lags) <= pace.staleness
    assert len(walk.lags) == 12 * pace.batch  # full batches, each group once
    assert len({number for batch in walk.batches for number in batch}) == len(walk.lags)


def greedy(pace: Pace, version: int, live: Sequence[LiveGroup]) -> tuple[int, ...] | None:
    """Whatever is ready first, oldest first: what the window is there to stop."""
    ready = sorted(group.number for group in live if group.ready)
    return tuple(ready[: pace.batch]) if len(ready) >= pace.batch else None


def test_without_the_window_the_bound_is_broken() -> None:
    pace = Pace(batch=2, staleness=1, running=40)
    assert max(max(Walk(pace, seed, greedy, killed=0).run(30).lags) for seed in range(20)) > 1


def test_admission_that_forgets_the_consumed_groups_breaks_the_bound() -> None:
    """AReaL's fault after a recovery (issue 1388): counters from zero."""
    pace = Pace(batch=2, staleness=1, running=100)
    assert capacity(pace, version=10, accepted=20, running=0) == 4
    assert capacity(pace, version=10, accepted=0, running=0) == 24


@pytest.mark.parametrize("left_out", [0.0, 0.5])
def test_without_staleness_each_version_has_its_own_groups(left_out: float) -> None:
    pace = Pace(batch=3, staleness=0, running=40)
    walk = Walk(pace, seed=1, left_out=left_out, killed=0.0)
    for version in range(6):
        walk.run(version + 1)
        assert not walk.live  # all of the version's groups are consumed before the next begin
    assert set(walk.lags) == {0}
    extra = 0 if left_out == 0 else len(walk.admitted) - 18
    assert len(walk.admitted) == 18 + extra and (extra > 0) == (left_out > 0)


def brute_force(pace: Pace, version: int, live: Sequence[LiveGroup]) -> bool:
    """Whether some B ready groups can go now and all others in later batches of B, each in time:
    tried one by one."""
    ready = [group for group in live if group.ready]
    return any(
        _can_be_placed(pace, version + 1, [group for group in live if group not in chosen])
        and all(group.version + pace.staleness >= version for group in chosen)
        for chosen in itertools.combinations(ready, pace.batch)
    )


def _can_be_placed(pace: Pace, version: int, left: list[LiveGroup]) -> bool:
    if not left:
        return True
    if any(group.version + pace.staleness < version for group in left):
        return False
    size = min(pace.batch, len(left))
    return any(
        _can_be_placed(pace, version + 1, [group for group in left if group not in chosen])
        for chosen in itertools.combinations(left, size)
    )


@settings(max_examples=200, deadline=None)
@given(data=st.data(), batch=st.integers(1, 2), eta=st.integers(0, 2))
def test_a_batch_is_given_out_whenever_one_is_possible(data: st.DataObject, batch: int, eta: int) -> None:
    """Against trying every choice: the rule neither waits in vain nor gives out what makes another
    late."""
    count = data.draw(st.integers(0, (eta + 1) * batch))
    versions = sorted(data.draw(st.lists(st.integers(0, eta), min_size=count, max_size=count)))
    pace = Pace(batch, eta, running=10)
    live = [LiveGroup(number, at, data.draw(st.booleans())) for number, at in enumerate(versions)]
    if not _can_be_placed(pace, eta, live):  # not a state that admission leads to
        return
    chosen = next_batch(pace, eta, live)
    assert (chosen is not None) == brute_force(pace, eta, live)
    if chosen is not None:
        assert _can_be_placed(pace, eta + 1, [group for group in live if group.number not in chosen])


def test_a_worked_example() -> None:
    """B = 2, eta = 1: group 0 is slow. It may be overtaken once, then the trainer waits for it."""
    pace = Pace(batch=2, staleness=1, running=8)
    live = [LiveGroup(0, 0, False), LiveGroup(1, 0, True), LiveGroup(2, 0, True), LiveGroup(3, 0, True)]
    assert next_batch(pace, 0, live) == (1, 2)
    live = [live[0], live[3], LiveGroup(4, 1, True), LiveGroup(5, 1, True)]
    assert next_batch(pace, 1, live) is None
    live[0] = LiveGroup(0, 0, True)
    assert next_batch(pace, 1, live) == (0, 3)


def test_a_smaller_staleness_on_resume_does_not_stop_the_run() -> None:
    pace = Pace(batch=2, staleness=0, running=8)
    live = [LiveGroup(number, 3, ready=True) for number in range(4)]
    assert next_batch(pace, 5, live) == (0, 1)
    live[0] = replace(live[0], ready=False)
    assert next_batch(pace, 5, live) is None


def test_a_pace_has_to_be_possible() -> None:
    for wrong in ({"batch": 0}, {"running": 0}, {"staleness": -1}):
        with pytest.raises(ValueError, match="at least"):
            Pace(**{"batch": 1, "staleness": 0, "running": 1, **wrong})
