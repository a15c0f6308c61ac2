"""Discrete-event model of a run: predicts what a setting would bring.

Episodes take a browser, generate a turn, act, and so on, and are graded. Groups are admitted and
consumed by the very functions of the loop (`admission.capacity`, `window.next_batch`,
`concurrency.adjust`). The engines are a shared server (`station.Station`). Not in the model:
several replicas are one large engine, prompts do not grow, and CPU that engine and browsers share
has to be put into the seconds.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial

from training.pacing import concurrency
from training.pacing.admission import Pace, capacity, update_may_start
from training.pacing.results import Result, Totals, result_of
from training.pacing.staleness import staleness
from training.pacing.station import Clock, Station
from training.pacing.window import LiveGroup, next_batch
from training.pacing.workload import Machine, Schedule, Workload


@dataclass(slots=True, eq=False)
class _Group:
    number: int
    source: random.Random
    success_probability: float
    task: list[_Group]
    """Groups of the same task, this one included, which become ready together."""
    started: int
    """Number of episodes started."""
    ended: int = 0
    closed: bool = False
    valid: list[_Episode] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Episode:
    group: _Group
    passed: bool
    abstains: bool
    length: int
    """Number of steps."""
    source: random.Random
    done: int = 0
    """Number of steps so far."""
    oldest: int = -1
    """Policy version of its first turn; -1 before that."""


def simulate(
    workload: Workload, machine: Machine, schedule: Schedule, *, versions: int = 20, warmup: int = 2, seed: int = 0
) -> Result:
    """Simulate a run until ``versions`` versions are published after a warm-up.

    The same seed gives the same result. A group's episodes depend on the seed and the group's
    number only, so that settings can be compared on the same episodes.

    Raises:
        ValueError: The model stands still: no group can have something to learn from, or nothing
            can run.
    """
    return _Simulation(workload, machine, schedule, seed).run(versions, warmup)


class _Simulation:
    def __init__(self, workload: Workload, machine: Machine, schedule: Schedule, seed: int) -> None:
        self.workload, self.machine, self.schedule, self.seed = workload, machine, schedule, seed
        self.pace = Pace(schedule.batch, schedule.staleness, schedule.running)
        depth = -(-schedule.staleness // 2) if schedule.depth is None else schedule.depth
        self.admission = replace(self.pace, staleness=depth)
        self.clock = Clock()
        self.engine = Station(self.clock, machine.engine_turns)
        self.updates = random.Random(f"{seed}/updates")
        self.version = self.published = self.taken = self.admitted = 0
        self.training = False
        self.live: dict[int, LiveGroup] = {}
        self.groups: dict[int, _Group] = {}
        self.pending: deque[_Episode] = deque()
        self.active: set[_Episode] = set()
        self.at_barrier: list[_Episode] = []
        """Episodes that wait at the step barrier."""
        self.barrier_places = 0
        """Browsers that may still be lent before the next barrier."""
        self.limit = concurrency.start(schedule.concurrency) if schedule.concurrency else None
        self.counted_at = 0.0
        self.totals = Totals()

    def run(self, versions: int, warmup: int) -> Result:
        start: Totals | None = None
        if self.limit:
            self.clock.after(self.schedule.measure_seconds, self.measure)
        self.schedule_work()
        while self.version < versions + warmup:
            if start is None and self.version >= warmup:
                start = self.read_totals()
            idle = not self.active and not self.pending and not self.training and self.published == self.version
            if (idle and not self.live) or self.admitted > 1000 * self.pace.batch * (self.version + 1):
                raise ValueError("the model stands still: no group leaves something to learn from")
            if not self.clock.step():
                raise ValueError("the model stands still: nothing is under way")
        return result_of(start or Totals(), self.read_totals(), self.machine, versions)

    # Admission and browsers

    def schedule_work(self) -> None:
        """Start everything that is possible now: training, admission, episodes in free browsers."""
        self.train()
        self.admit_all()
        self.give_browsers()

    def admit_all(self) -> None:
        if self.schedule.surplus and (self.training or self.published < self.version):
            return  # synchronous: cancelled groups are not replaced under the old version
        running = sum(not group.ready for group in self.live.values())
        accepted = self.taken * self.pace.batch + len(self.live) - running - self.schedule.surplus
        allowed = capacity(self.admission, version=self.published, accepted=accepted, running=running)
        task: list[_Group] = []
        for _ in range(allowed):
            if len(task) == self.schedule.groups_per_task:
                task = []
            self.admit(task)

    def admit(self, task: list[_Group]) -> None:
        number, self.admitted = self.admitted, self.admitted + 1
        source = random.Random(f"{self.seed}/{number}")
        group = _Group(number, source, source.betavariate(*self.workload.success), task, 0)
        task.append(group)
        self.groups[number] = group
        self.live[number] = LiveGroup(number, self.published, ready=False)
        for _ in range(self.workload.group_size + self.schedule.over_sampling):
            self.pending.append(self.episode(group))
            group.started += 1

    def episode(self, group: _Group) -> _Episode:
        source = random.Random(group.source.random())
        passed = source.random() < group.success_probability
        steps = (self.workload.success_steps if passed else self.workload.failure_steps).draw(source)
        return _Episode(group, passed, source.random() < self.workload.abstain, max(1, round(steps)), source)

    def give_browsers(self) -> None:
        if self.schedule.barrier != "none":
            if not self.active:
                self.barrier_places = self.browser_limit()
        else:
            self.barrier_places = self.browser_limit() - len(self.active)
        while self.pending and self.barrier_places > 0 and len(self.active) < self.browser_limit():
            episode = self.pending.popleft()
            if episode.group.closed:
                continue
            self.barrier_places -= 1
            self.count_time()
            self.active.add(episode)
            self.clock.after(self.workload.reset_seconds.draw(episode.source), partial(self.arrive, episode))

    def browser_limit(self) -> int:
        return min(self.machine.browsers, self.limit.limit) if self.limit else self.machine.browsers

    # One episode

    def arrive(self, episode: _Episode) -> None:
        """Generate the next turn for a loaded page, at a step barrier once all wait."""
        if self.schedule.barrier != "step":
            return self.turn(episode)
        self.at_barrier.append(episode)
        self.pass_barrier()

    def pass_barrier(self) -> None:
        if self.at_barrier and len(self.at_barrier) == len(self.active):
            at_barrier, self.at_barrier = self.at_barrier, []
            for waiting in at_barrier:
                self.turn(waiting)

    def turn(self, episode: _Episode) -> None:
        if episode.group.closed:
            return self.give_back(episode)
        if episode.oldest < 0:
            episode.oldest = self.published
        seconds = self.workload.generation_seconds.draw(episode.source)
        self.engine.submit(seconds, partial(self.act, episode))

    def act(self, episode: _Episode) -> None:
        seconds = self.workload.browser_seconds.draw(episode.source)
        self.clock.after(seconds, partial(self.end_step, episode))

    def end_step(self, episode: _Episode) -> None:
        episode.done += 1
        self.totals.steps += 1
        if episode.done < episode.length and not episode.group.closed:
            return self.arrive(episode)
        self.clock.after(self.workload.judge_seconds.draw(episode.source), partial(self.end, episode))
        self.give_back(episode)

    def give_back(self, episode: _Episode) -> None:
        self.count_time()
        self.active.discard(episode)
        self.pass_barrier()
        self.give_browsers()  # groups are admitted and trained on when one has ended

    def end(self, episode: _Episode) -> None:
        group = episode.group
        if group.closed:
            return
        self.totals.ended += 1
        group.ended += 1
        if episode.abstains:
            self.totals.drops["abstained"] += 1
        else:
            group.valid.append(episode)
        if len(group.valid) == self.workload.group_size or group.ended == group.started:
            self.close(group)
            self.schedule_work()

    def close(self, group: _Group) -> None:
        group.closed = True
        self.totals.drops["over_sampling"] += group.started - group.ended
        if all(sibling.closed for sibling in group.task):
            for sibling in group.task:
                self.take_in(sibling)

    def take_in(self, group: _Group) -> None:
        """Mark an ended group as ready, or drop it if its outcomes do not differ."""
        outcomes = {episode.passed for episode in group.valid}
        if len(outcomes) == 2:
            self.live[group.number] = replace(self.live[group.number], ready=True)
        else:
            reason = "zero_variance" if len(group.valid) > 1 else "too_few"
            self.totals.drops[reason] += len(group.valid)
            del self.live[group.number], self.groups[group.number]

    # Updates and publication

    def train(self) -> None:
        """Start an update if the trainer is free and the window gives a batch."""
        if self.training or not update_may_start(self.version, self.published):
            return
        live = [group for group in self.live.values() if group.ready or not self.schedule.surplus]
        chosen = next_batch(self.pace, self.version, live)
        if chosen is None:
            return
        self.training, self.taken = True, self.taken + 1
        episodes = [episode for number in chosen for episode in self.consume(number).valid]
        self.totals.consumed += len(episodes)
        self.totals.lags.update(staleness(self.version, episode.oldest) for episode in episodes)
        if self.schedule.surplus:
            self.cancel_all()
        steps = sum(episode.length for episode in episodes)
        seconds = self.workload.update_seconds.draw(self.updates) + self.workload.update_step_seconds * steps
        self.totals.trainer += seconds
        self.clock.after(seconds, self.end_update)

    def consume(self, number: int) -> _Group:
        del self.live[number]
        return self.groups.pop(number)

    def cancel_all(self) -> None:
        """Cancel the groups beyond the batch; their browsers are given back at their next step."""
        for number in list(self.live):
            group = self.consume(number)
            group.closed = True
            self.totals.drops["surplus"] += len(group.valid) if group.ended == group.started else group.started

    def end_update(self) -> None:
        self.training, self.version = False, self.version + 1
        if self.version - self.published == 1:
            self.publish()
        self.schedule_work()

    def publish(self) -> None:
        """Publish the next trained version; one is published after the other."""
        self.engine.pause(self.workload.pause_seconds)
        self.clock.after(self.workload.publish_seconds, self.end_publication)

    def end_publication(self) -> None:
        self.published += 1
        if self.published < self.version:
            self.publish()
        self.schedule_work()

    # Measurements

    def measure(self) -> None:
        """Measure the load and adjust the concurrency."""
        assert self.limit and self.schedule.concurrency
        # A shared engine serves all turns at once, slower. Those beyond its full speed count as
        # queued.
        beyond = max(0.0, self.engine.serving - self.engine.capacity)
        queue = beyond / max(1.0, self.engine.serving - beyond)
        load = concurrency.Load(self.clock.now, queue, browser_load=0.0, running=len(self.active))
        self.limit = concurrency.adjust(self.schedule.concurrency, self.limit, load)
        self.clock.after(self.schedule.measure_seconds, self.measure)
        self.schedule_work()

    def count_time(self) -> None:
        """Update the browser-seconds; call it before a browser is lent or given back."""
        self.totals.browsers += (self.clock.now - self.counted_at) * len(self.active)
        self.counted_at = self.clock.now

    def read_totals(self) -> Totals:
        """Return a copy of the sums up to now."""
        self.count_time()
        self.engine.advance()
        return replace(
            self.totals,
            seconds=self.clock.now,
            engine=self.engine.busy,
            drops=self.totals.drops.copy(),
            lags=self.totals.lags.copy(),
        )
