"""One batch: its episodes, which of them are left, and playing those."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from envs import EnvHost
from envs.chat import Ledger
from envs.rewards.judge import Judge
from envs.types import ConfigError, RollwrightError, Split, WebTask, near
from tasks_lib.batch.agents import SPENT, opened_agents
from tasks_lib.batch.config import BatchConfig
from tasks_lib.batch.page import batch_page
from tasks_lib.batch.playing import EpisodePlayer
from tasks_lib.batch.results import RESULT, TASKS, EpisodeResult, PlannedEpisode, read_result
from tasks_lib.batch.summary import describe, summarize
from tasks_lib.config.differences import differences, without_budgets
from tasks_lib.folder.failed_start import free_name
from tasks_lib.folder.frozen_config import read_frozen, write_frozen
from tasks_lib.folder.progress import RunProgress
from tasks_lib.folder.task_sets import read_index, task_paths, task_root, with_hashes
from tasks_lib.folder.values import ChangedValuesError, check_kind, git_commit, versions
from training.ledger.store import RunStore, atomic_write_bytes, write_json

SUMMARY = "summary.json"

MORE_THREADS = 4
"""Threads for files and pictures, beside one of each episode for a function without ``await``."""

MAY_CHANGE = frozenset(
    {"root", "task_ids", "sites", "seeds_per_task", "max_concurrent", "max_concurrent_launch"}
    | {"retry_count", "only_failed", "episode_deadline"}
)
"""Keys that may differ when a batch is resumed: which episodes, how many at once, how patiently."""
FIXED_OF_ENDPOINT = ("model", "api", "temperature", "max_tokens")
"""Keys of the endpoint that may not differ."""


class BatchRun:
    """The episodes of a configuration, and what is stored of them."""

    def __init__(self, config: BatchConfig) -> None:
        """
        Raises:
            TaskError: task files cannot be read.
            ConfigError: there is no agent, a task or site is not in them, or there are no page
                seeds of the split.
        """
        config.check_agent()
        self.config = config
        self.folder = config.run_dir
        self.episodes = plan_episodes(config)

    def check_values(self) -> None:
        """Check that the folder is this batch's, with the values that it was started with.

        Raises:
            ConfigError: it is not.
            StorageError: its configuration is damaged.
        """
        path = self.folder / "config.json"
        if read_frozen(path) is None:
            return
        values = self.config.model_dump(mode="json")
        frozen = {**values, **check_kind(path, values)["config"]}
        if not any((self.folder / TASKS).glob(f"*/{RESULT}")):
            return  # nothing has come of the values: a wrong model or address may be mended
        changed = [f"\n  {key}: {old} then, {new} now" for key, new, old in differences(_fixed(values), _fixed(frozen))]
        if changed:
            raise ChangedValuesError(
                f"batch {self.config.run_id} was started with other values (see {path}); use those, or another run_id, "
                f"such as run_id={free_name(self.folder)}{''.join(changed)}"
            )

    def freeze(self) -> None:
        """Write the configuration to the folder. Raises as `check_values`."""
        self.check_values()
        document = {"config": self.config.model_dump(mode="json"), "versions": versions(), "git_commit": git_commit()}
        write_frozen(self.folder / "config.json", document)

    def results(self) -> list[EpisodeResult | None]:
        """Return the result of each episode; ``None`` where it is missing or damaged."""
        return [read_result(self.folder / TASKS / planned.name) for planned in self.episodes]

    def remaining(self) -> list[PlannedEpisode]:
        """Return the episodes to play: without a result, and with ``only_failed`` those with an
        error."""
        again = self.config.only_failed
        return [
            planned
            for planned, result in zip(self.episodes, self.results(), strict=True)
            if result is None or (again and result.error is not None)
        ]

    async def play(self, progress: RunProgress) -> None:
        """Play the episodes that are left, ``max_concurrent`` at once.

        Raises:
            PolicyError, EngineError: the endpoint refuses us, or its budget is used up.
        """
        config, left = self.config, self.remaining()
        waiting = iter(left)
        threads = ThreadPoolExecutor(config.max_concurrent + MORE_THREADS, "batch")
        asyncio.get_running_loop().set_default_executor(threads)  # its default is a few more than cores
        async with AsyncExitStack() as stack:
            make_agent = await stack.enter_async_context(opened_agents(config, self.folder))
            judge = None
            if config.judge is not None:
                judge = Judge(config.judge, Ledger(RunStore(self.folder).spent_path()))
                await stack.enter_async_context(judge)
            sessions = min(config.max_concurrent, len(left))
            marks = config.renderer.pool_options["marks"]
            host = EnvHost(max_sessions=sessions, marks=marks, files=task_root(config.tasks.file))
            await stack.enter_async_context(host)
            player = EpisodePlayer(config, host, make_agent, judge, self.folder / TASKS)
            counter = _Counter(progress, len(self.episodes) - len(left))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(sessions):
                        group.create_task(_play_all(player, waiting, counter))
            except BaseExceptionGroup as errors:
                raise _first_of_ours(errors) from None

    def summary(self) -> dict[str, Any]:
        """Return the counts over all results, and write them and the page."""
        results = self.results()
        summary = summarize([result for result in results if result is not None], len(results), self.config.endpoint)
        named = {"run_id": self.config.run_id, "agent": self.config.agent_name, "split": self.config.split, **summary}
        if self.config.endpoint is not None:  # with what was not finished, or played again
            named["spent"] = Ledger(self.folder / SPENT).read().model_dump()
        write_json(self.folder / SUMMARY, named)
        folders = [f"{TASKS}/{planned.name}" for planned in self.episodes]
        page = batch_page(
            f"{self.config.run_id}: {self.config.agent_name}", describe(named), zip(folders, results, strict=True)
        )
        atomic_write_bytes(self.folder / "index.html", page.encode(), sync=False)
        return named


class _Counter:
    """Reports each finished episode."""

    def __init__(self, progress: RunProgress, done: int) -> None:
        self._progress, self._done = progress, done

    def report(self, result: EpisodeResult) -> None:
        self._done += 1
        outcome = "no reward" if result.error is not None else "success" if result.success else "failure"
        self._progress.iteration(
            self._done, f"{result.task_id} seed {result.seed}: {outcome}, {result.steps} steps, {result.stop.value}"
        )


async def _play_all(player: EpisodePlayer, waiting: Iterator[PlannedEpisode], counter: _Counter) -> None:
    for planned in waiting:
        counter.report(await player.play(planned))


def _first_of_ours(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended a batch: one of ours before others, all of them if none is."""
    ours = errors.subgroup(RollwrightError)
    while isinstance(ours, BaseExceptionGroup):
        ours = ours.exceptions[0]  # type: ignore[assignment]
    return errors if ours is None else ours


def plan_episodes(config: BatchConfig) -> list[PlannedEpisode]:
    """Return the episodes of a batch, in the order of the task file.

    Tasks without page seeds of the split are left out, unless they are named by their ids.

    Raises:
        TaskError: task files cannot be read.
        ConfigError: a task or site is not in them, or there are no page seeds of the split.
    """
    tasks = list(read_index(task_paths(config.tasks.file), config.tasks.kinds))
    _check_names("task_ids", config.task_ids, [task.task_id for task in tasks], config)
    _check_names("sites", config.sites, sorted({task.site for task in tasks}), config)
    chosen = [
        with_hashes(task)
        for task in tasks
        if (not config.task_ids or task.task_id in set(config.task_ids))
        and (not config.sites or task.site in set(config.sites))
    ]
    split = Split(config.split)
    drawn = [task for task in chosen if task.seeds.get(split)]
    if config.task_ids and len(drawn) < len(chosen):
        raise ConfigError(f"split: {_without_seeds([task for task in chosen if task not in drawn], config)}")
    if not drawn:
        what = _without_seeds(chosen, config) if chosen else f"{config.tasks.file} has no tasks to play"
        raise ConfigError(f"split: {what}")
    return [
        PlannedEpisode(task, task.seeds[split].start + number)
        for task in drawn
        for number in range(min(config.seeds_per_task, len(task.seeds[split])))
    ]


def _without_seeds(tasks: list[WebTask], config: BatchConfig) -> str:
    first = tasks[0]
    seeds = ", ".join(split.value for split in first.seeds) or "no split"
    return (
        f"{len(tasks)} of the tasks have no page seeds of {config.split}, as {first.task_id} (of {seeds}); choose "
        "another split, or other tasks"
    )


def _check_names(key: str, wanted: list[str], known: list[str], config: BatchConfig) -> None:
    for name in wanted:
        if name not in set(known):
            raise ConfigError(
                f"{key}: {name!r} is not in {config.tasks.file}; {near(name, known)}name another, or another file "
                "(tasks.file)"
            )


def _fixed(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a resumed batch must share with its start."""
    fixed = {key: value for key, value in values.items() if key not in MAY_CHANGE}
    if fixed["endpoint"]:
        fixed["endpoint"] = {key: fixed["endpoint"].get(key) for key in FIXED_OF_ENDPOINT}
    if fixed["judge"]:
        fixed["judge"] = without_budgets(fixed["judge"])
    return fixed
