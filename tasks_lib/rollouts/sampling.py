"""Task sampling for a training run: draws each iteration's groups, resumably.

A draw depends only on the configuration and on the groups of earlier iterations. Their results are
summed up in a `SamplerState`, from which an iteration's first draw begins. `GroupSampler` computes
it from the previous state and the groups that ended since, and stores it in a file, so that an
iteration costs only its own groups. Without the files it is computed from the records of all
groups, by the same steps.

All episodes of an iteration begin with the memories of its state, whoever finishes first. So the
members of a group stay comparable, and their changes are merged when the next state is made.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from envs.ends import HorizonPolicy
from envs.memory import Contribution, merge_memories
from envs.tasks import Rows, TaskIndex
from envs.tasks.samplers import NoRepeatSampler, Sampler, SequentialSampler, SuccessSampler, make_sampler
from envs.types import ConfigError, Memory, Record, Split, WebTask
from tasks_lib.config import TrainConfig
from tasks_lib.folder.task_sets import with_hashes
from tasks_lib.worker.blocklist import Blocklist
from training.algorithms.advantages import has_signal
from training.ledger.journal import read_group
from training.ledger.paths import phase_of
from training.ledger.store import RunStore, move_aside_advice, read_record, write_json
from training.records.groups import GroupRecord, GroupSpec

STATE_FILES = 2
"""Sampler state files to keep: the current iteration's, and the previous one as a fallback."""

TRIES = 20
"""Draws for rows of blocked sites, before rows of other sites are drawn at random."""

FEW_SEEDS = 1000
"""Page seeds of a task up to which a draw repeats no seed. With more a repeat hardly happens."""

ONCE = (SequentialSampler, NoRepeatSampler)
"""Samplers that give every row once. Their rows of a blocked site are kept until the site is free;
other samplers give such rows again."""


class SamplerState(Record):
    """State from which the draws of an iteration begin.

    It is the same on every machine that has the same earlier groups.
    """

    iteration: int
    sampler: dict[str, Any]
    """State of the sampler."""
    passed: tuple[int, ...] = ()
    """Rows that the sampler gave while their sites were blocked, in its order (`ONCE`). They come
    before its next ones."""
    memories: dict[str, Memory] = Field(default_factory=dict)
    """Memory of each task family (`family_of`); empty without ``rollout.memory=family``."""
    pending: tuple[str, ...] = ()
    """Groups of earlier draws that had not ended yet, which only asynchronous runs have."""


class GroupSampler:
    """The draws of one run. Only its flow process uses this."""

    def __init__(self, store: RunStore, tasks: TaskIndex, config: TrainConfig) -> None:
        """Raises `ConfigError` if no task has training seeds, and `TaskError` if the sampler does
        not fit."""
        self._store, self._config = store, config
        self._overlapping = config.mode == "async"
        self._tasks = trainable(tasks)
        self._sampler = make_sampler(
            config.tasks.sampler,
            self._tasks,
            config.seed,
            memory=config.tasks.memory,
            exploration=config.tasks.exploration,
        )
        self._blocklist = Blocklist(store)
        self._first = SamplerState(iteration=0, sampler=self._sampler.state())
        self._newest = self._first
        self._passed: list[int] = []
        """`SamplerState.passed` at the draw that is being made."""

    def groups(self, iteration: int, draw: int) -> list[GroupSpec]:
        """Return the groups of an iteration's draw.

        ``draw`` counts up when no group of a draw had a training signal.
        """
        config = self._config
        state = self.state(iteration)
        self._resume(state)
        for number in range(draw + 1):
            phase = phase_name(iteration, number)
            left_out = self._blocklist.left_out(phase, self._tasks.sites, config.tasks.blocklist_hours)
            chances, rows = self._draw(phase, left_out)
        horizon = config.rollout.horizon
        tasks = [with_horizon(task, horizon, Split.TRAIN, iteration) for task in self._tasks.take(rows)]
        groups = training_groups(
            tasks,
            chances,
            phase=phase_name(iteration, draw),
            group_size=config.algorithm.group_size,
            extra_episodes=config.rollout.over_sampling,
        )
        return with_memories(groups, state.memories)

    def memories(self, version: int) -> dict[str, Memory]:
        """Return the memories of the task families after the iterations that made a version.

        Empty without family memory.
        """
        if self._config.rollout.memory != "family":
            return {}
        return self._newest_known().memories if self._overlapping else self.state(version).memories

    def _newest_known(self) -> SamplerState:
        """Return the state of the newest draw of an asynchronous run."""
        known = sorted(self._store.sampler_state_path(0).parent.glob("i*.json"))
        if known and (newest := int(known[-1].stem[1:])) > self._newest.iteration:
            return _read(self._store, newest)
        return self._newest

    def state(self, iteration: int) -> SamplerState:
        """Return the state from which an iteration's draws begin.

        Raises:
            StorageError: its file, or a group's record, cannot be read.
            TaskError: the file is of another sampler or of other tasks.
        """
        state = self._newest if self._newest.iteration <= iteration else self._first
        for known in range(iteration, state.iteration, -1):
            if self._store.sampler_state_path(known).exists():
                state = _read(self._store, known)
                break
        while state.iteration < iteration:
            state = self._after(state)
        self._keep(state)
        return state

    def _after(self, state: SamplerState) -> SamplerState:
        """Return the state of the next iteration.

        Makes the draws of this iteration and takes in their results, in the order of the groups'
        ids.
        """
        records, pending = self._ended(state)
        self._resume(state)
        draws = 1 if self._overlapping else len({record.group_id.rpartition("-")[0] for record in records})
        for number in range(draws):
            phase = phase_name(state.iteration, number)
            self._draw(phase, self._blocklist.was_left_out(phase) or frozenset())
        for record in records:
            update_sampler(self._sampler, record)
        memories = self._merged(state.memories, records)
        return SamplerState(
            iteration=state.iteration + 1,
            sampler=self._sampler.state(),
            passed=tuple(self._passed),
            memories=memories,
            pending=pending,
        )

    def _ended(self, state: SamplerState) -> tuple[list[GroupRecord], tuple[str, ...]]:
        """Return the groups that have ended since a state was made, and the pending ones.

        Only an asynchronous run has pending ones.
        """
        phase = phase_name(state.iteration, 0)
        if not self._overlapping:
            return [read_group(self._store, name) for name in self._store.group_ids(phase)], ()
        count = self._config.rollout.groups_per_iteration
        drawn = [*state.pending, *(f"{phase}-g{number:04d}" for number in range(count))]
        ended = [name for name in drawn if self._store.group_path(name).exists()]
        pending = tuple(name for name in drawn if name not in ended)
        return [read_group(self._store, name) for name in ended], pending

    def _resume(self, state: SamplerState) -> None:
        self._sampler.resume(state.sampler)
        self._passed = list(state.passed)

    def _merged(self, memories: dict[str, Memory], records: list[GroupRecord]) -> dict[str, Memory]:
        """Return the families' memories after these groups. Episodes without a reward add
        nothing."""
        if self._config.rollout.memory != "family":
            return memories
        added: defaultdict[str, list[Contribution]] = defaultdict(list)
        for record in records:
            contributions = [
                Contribution(episode.score, episode.episode_id, episode.memory)
                for episode in record.usable
                if episode.score is not None and episode.memory
            ]
            if contributions:
                added[family_of(self._tasks[self._tasks.row_of(record.task_id)])] += contributions
        return memories | {
            name: merge_memories(memories.get(name, ()), contributions) for name, contributions in added.items()
        }

    def _keep(self, state: SamplerState) -> None:
        self._newest = state
        path = self._store.sampler_state_path(state.iteration)
        if state.iteration and not path.exists():
            write_json(path, state, sealed=True)
            oldest = min((phase_of(name) for name in state.pending), default="~")
            for old in sorted(path.parent.glob("i*.json"))[:-STATE_FILES]:
                if old.stem < oldest:  # a group that has not ended may have to be drawn again
                    old.unlink()

    def _draw(self, phase: str, left_out: frozenset[str]) -> tuple[random.Random, Rows]:
        """Return the rows of one draw, and the random generator for its page seeds.

        Rows of sites that are left out are replaced by other rows: the sampler's next ones, or
        random ones if it gives none. Rows that were passed over in earlier draws come first, once
        their sites are free.
        """
        chances = random.Random(f"groups/{self._config.seed}/{phase}")
        count = self._config.rollout.groups_per_iteration
        if not left_out and not self._passed:
            return chances, self._rows(count, chances)
        codes = [code for code, site in enumerate(self._tasks.sites) if site in left_out]
        free = ~np.isin(self._tasks.site_code, codes)
        waited = [row for row in self._passed if free[row]][:count]
        taken = set(waited)
        self._passed = [row for row in self._passed if row not in taken]
        rows = np.array(waited, dtype=np.int64)
        for _ in range(TRIES):
            if len(rows) == count:
                return chances, rows
            drawn = self._rows(count - len(rows), chances)
            rows = np.concatenate([rows, drawn[free[drawn]]])
            self._pass_over(drawn[~free[drawn]])
        others = np.flatnonzero(free)
        more = [int(others[chances.randrange(len(others))]) for _ in range(count - len(rows))]
        return chances, np.concatenate([rows, np.array(more, dtype=np.int64)])

    def _pass_over(self, rows: Rows) -> None:
        """Keep rows for later, each once."""
        if isinstance(self._sampler, ONCE):
            self._passed = list(dict.fromkeys([*self._passed, *rows.tolist()]))

    def _rows(self, count: int, chances: random.Random) -> Rows:
        """Return the sampler's next rows."""
        if isinstance(self._sampler, SuccessSampler):
            return self._sampler.choose(count, chances)
        # Samplers without replacement give each task once: a larger draw takes several rounds.
        whole, rest = divmod(count, len(self._tasks))
        parts = [self._sampler.draw(len(self._tasks)) for _ in range(whole)] + [self._sampler.draw(rest)]
        return np.concatenate(parts)


def with_horizon(task: WebTask, policy: HorizonPolicy | None, split: Split, iteration: int = 0) -> WebTask:
    """Return the task with the policy's horizon, or as it is without a policy."""
    if policy is None:
        return task
    return task.model_copy(update={"horizon": policy.steps(task.difficulty, split, iteration)})


def training_groups(
    tasks: Sequence[WebTask], chances: random.Random, *, phase: str, group_size: int, extra_episodes: int = 0
) -> list[GroupSpec]:
    """Return a group for each task, with page seeds drawn uniformly.

    A task of few seeds that comes again gets another seed while one is left.

    Args:
        extra_episodes: Episodes that a group starts beyond its size, in case some are slow.
    """
    groups = []
    used: defaultdict[str, set[int]] = defaultdict(set)
    for index, task in enumerate(tasks):
        seeds = task.seeds[Split.TRAIN]
        page_seed = chances.randrange(seeds.start, seeds.stop)
        if len(seeds) <= FEW_SEEDS:
            taken = used[task.task_id]
            if len(taken) == len(seeds):
                taken.clear()
            while page_seed in taken:
                page_seed = chances.randrange(seeds.start, seeds.stop)
            taken.add(page_seed)
        seeds_of_all, enough = (page_seed,) * (group_size + extra_episodes), group_size if extra_episodes else 0
        groups.append(
            GroupSpec(group_id=f"{phase}-g{index:04d}", task=with_hashes(task), seeds=seeds_of_all, enough=enough)
        )
    return groups


def trainable(tasks: TaskIndex) -> TaskIndex:
    """Return the tasks that have training seeds.

    Raises:
        ConfigError: none has.
    """
    rows = np.flatnonzero(tasks.seeds_of(Split.TRAIN) > 0)
    if not len(rows):
        raise ConfigError(
            f"tasks.file: none of {len(tasks)} tasks has seeds of the split {Split.TRAIN}; name other files, or set the split when importing"
        )
    return tasks if len(rows) == len(tasks) else tasks.only(rows)


def family_of(task: WebTask) -> str:
    """Return the family whose memory a task's episodes begin with: its kind, on its site."""
    return f"{task.site}/{task.kind}"


def with_memories(groups: Sequence[GroupSpec], memories: Mapping[str, Memory]) -> list[GroupSpec]:
    """Return the groups, each with the memory of its task family."""
    return [
        group.model_copy(update={"memory": memories[name]}) if (name := family_of(group.task)) in memories else group
        for group in groups
    ]


def update_sampler(sampler: Sampler, record: GroupRecord) -> None:
    """Give a sampler the result of a group; a group without any reward changes nothing."""
    scores = [episode.score for episode in record.usable if episode.score is not None]
    if record.mean is not None:
        sampler.observe_group(record.kind, record.task_id, min(max(record.mean, 0.0), 1.0), has_signal(scores))


def phase_name(iteration: int, draw: int) -> str:
    """Return ``i000003``, or ``i000003-r1`` for its second draw."""
    return f"i{iteration:06d}" + (f"-r{draw}" if draw else "")


def _read(store: RunStore, iteration: int) -> SamplerState:
    path = store.sampler_state_path(iteration)
    remedy = f"{move_aside_advice(path)} and start the same command again: it is made again from the groups before it"
    return read_record(path, SamplerState, "sampler state of an iteration", remedy)
