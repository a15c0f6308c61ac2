"""Grades stored episodes again, in batches: after a judge failed, with another judge or other
weights.

The trajectories are never changed, so they stay what was trained on. The new rewards lie beside
them, one file for each episode.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import dask
from prefect import task

from envs.sites import LiveOptions
from envs.tasks import TaskIndex
from envs.types import ConfigError, Cost, Split, TaskError, WebTask
from tasks_lib.config import EvaluateConfig, RewardConfig, RolloutConfig, TasksConfig, TrainConfig
from tasks_lib.config.differences import differences
from tasks_lib.config.parts import check_measured
from tasks_lib.folder.frozen_config import started_config
from tasks_lib.folder.regraded import RegradingStart, read_log, read_regraded, write_end, write_start
from tasks_lib.folder.task_sets import freeze_tasks, open_tasks, with_hashes
from tasks_lib.processes.dask_clients import BROWSER_RESOURCE
from tasks_lib.processes.retries import WORKER_TASK
from tasks_lib.processes.site_offers import needed_offers
from tasks_lib.regrading.config import RegradeConfig
from tasks_lib.rollouts.cluster import places_of_worker
from tasks_lib.worker.requests import GradeReport, GradeRequest
from tasks_lib.worker.reward_stage import judge_account
from tasks_lib.worker.rollout_worker import RolloutWorker
from training.ledger.journal import read_group
from training.ledger.store import RunStore, write_json


@task(task_run_name="grade-{request.name}-{request.episodes[0]}", retries=2, **WORKER_TASK)
def grade_batch(request: GradeRequest) -> GradeReport:
    """Grade the stored episodes of ``request`` that are not graded yet.

    Idempotent, so Dask and Prefect may run it again.
    """
    return RolloutWorker.of_this_process().grade(request)


class Regrading:
    """Episodes of one run that are to be graded again."""

    def __init__(self, config: RegradeConfig) -> None:
        """Raises `ConfigError` if there is nothing to grade, or a task is not the attempted one."""
        self.config = config
        self.store = RunStore(config.run_dir)
        self.folder = self.store.root / "regraded" / config.name
        self._records = [read_group(self.store, name) for name in self.store.group_ids()]
        groups = {
            episode.episode_id: record
            for record in self._records
            for episode in record.episodes
            if config.which == "all" or episode.abstained is not None
        }
        chosen = {episode_id: record.task_id for episode_id, record in groups.items()}
        self._phases = {episode_id: record.phase for episode_id, record in groups.items()}
        if not self._records:
            problem = "has no groups" if config.run_dir.is_dir() else "is not there"
            raise ConfigError(f"run: {config.run_dir} {problem}; name the folder of a run that has played episodes")
        self.episodes = chosen
        self._run = started_config(self.store)
        try:
            check_measured(self._rewards(), self._rollout())
        except ValueError as error:
            raise ConfigError(f"{error} of the run") from error
        self._tasks = self._open_tasks(set(chosen.values()))

    def remaining(self) -> list[str]:
        """Return the episodes that are not graded yet."""
        return [
            episode_id
            for episode_id in self.episodes
            if not self.store.regraded_path(self.config.name, episode_id).exists()
        ]

    def requests(self) -> list[GradeRequest]:
        """Return a request for each batch."""
        rollout, rewards = self._rollout(), self._rewards()
        live: LiveOptions = self._tasks_config().live
        names = list(self.episodes)
        batches = [names[start : start + self.config.batch] for start in range(0, len(names), self.config.batch)]
        return [
            GradeRequest(
                run_dir=str(self.store.root),
                rollout=rollout,
                rewards=rewards,
                live=live,
                name=self.config.name,
                episodes=tuple(batch),
                tasks={
                    task_id: self._tasks[task_id] for task_id in {self.episodes[episode_id] for episode_id in batch}
                },
                horizons=self._horizons(batch),
            )
            for batch in batches
        ]

    def run(self) -> list[GradeReport]:
        """Grade on the cluster, and wait.

        Call it inside a flow with ``RolloutTaskRunner``. Its settings are recorded for the report.

        Raises:
            StorageError: the judge's spending cannot be counted; before anything is graded.
        """
        self.account()
        self.begin()
        futures = []
        for request in self.requests():
            browsers = {BROWSER_RESOURCE: places_of_worker(BROWSER_RESOURCE)}
            with dask.annotate(resources={**browsers, **needed_offers(request.sites, request.live)}):
                futures.append(grade_batch.submit(request))
        reports = [future.result() for future in futures]
        write_end(self.store, self.config.name, time.time())
        return reports

    def begin(self) -> None:
        """Record the time and the settings of a start, and the rubrics of its tasks.

        Nothing is recorded if no episode is left.
        """
        name = self.config.name
        self.check_settings()
        if not self.remaining():
            return
        for attempted in self._tasks.values():
            if attempted.rubric is not None:
                self.store.put_rubric(attempted.rubric)
        start = RegradingStart(
            at=time.time(), which=self.config.which, episodes=len(self.episodes), settings=self._settings()
        )
        write_start(self.store, name, start)

    def check_settings(self) -> None:
        """Raise ``ConfigError`` if all episodes are graded already, with other settings than the
        present ones.

        Nothing would be graded with the present ones.
        """
        starts = read_log(self.store, self.config.name).starts
        if self.remaining() or not starts:
            return
        lines = [
            f"\n  {key}: {old} then, {new} now" for key, new, old in differences(self._settings(), starts[-1].settings)
        ]
        if lines:
            raise ConfigError(
                f"name: all episodes are graded as {self.config.name!r} already, with other values; give another name{''.join(lines)}"
            )

    def _settings(self) -> dict[str, Any]:
        settings = {"judge": self._rollout().judge, "rewards": self._rewards(), "tasks": self.config.tasks}
        return {key: value.model_dump(mode="json") if value else None for key, value in settings.items()}

    def summary(self) -> dict[str, Any]:
        """Return the results, and write them to ``summary.json`` of the folder.

        ``StorageError`` if a reward is missing or damaged.
        """
        results = [read_regraded(self.store.regraded_path(self.config.name, name)) for name in self.episodes]
        scores = [result.reward.score for result in results if result.reward.score is not None]
        cost = sum((result.reward.cost for result in results), Cost())
        summary = {
            "episodes": len(results),
            "with_reward": len(scores),
            "newly": sum(result.before.score is None and result.reward.score is not None for result in results),
            "mean": sum(scores) / len(scores) if scores else None,
            "passed": sum(result.reward.passed for result in results),
            "passed_before": sum(result.before.passed for result in results),
            "verdict_changed": sum(
                result.before.score is not None
                and result.reward.score is not None
                and result.before.passed != result.reward.passed
                for result in results
            ),
            "abstained": dict(
                Counter(result.reward.abstained for result in results if result.reward.abstained is not None)
            ),
            "tokens": cost.tokens,
            "dollars": cost.dollars,
            **self.account(),
        }
        write_json(self.folder / "summary.json", summary)
        return summary

    def account(self) -> dict[str, Any]:
        """Return the judge's spending on this regrading. ``StorageError`` if it cannot be
        counted."""
        return judge_account(self._rollout().judge, self.store.spent_path(self.config.name))

    def _rollout(self) -> RolloutConfig:
        """Return the run's settings, with the judge that is to be asked."""
        rollout = self._run.rollout
        return rollout if self.config.judge is None else rollout.model_copy(update={"judge": self.config.judge})

    def _rewards(self) -> RewardConfig:
        return self.config.rewards or self._run.rewards

    def _horizons(self, episodes: Sequence[str]) -> dict[str, int]:
        """Return the horizons that the run's policy gave the episodes, by split and iteration.

        Empty without such a policy.
        """
        run, policy = self._run, self._rollout().horizon
        if policy is None:
            return {}
        evaluated = Split(run.split if isinstance(run, EvaluateConfig) else run.evaluation.split)
        horizons = {}
        for episode_id in episodes:
            phase, task = self._phases[episode_id], self._tasks[self.episodes[episode_id]]
            trained = phase.startswith("i")
            split, iteration = (Split.TRAIN, int(phase[1:])) if trained else (evaluated, 0)
            horizons[episode_id] = policy.steps(task.difficulty, split, iteration)
        return horizons

    def _tasks_config(self) -> TasksConfig:
        run = self._run
        if isinstance(run, TrainConfig):  # a training run's tasks are frozen in its folder
            return run.tasks
        return self.config.tasks or run.tasks

    def _open_tasks(self, wanted: set[str]) -> dict[str, WebTask]:
        store, tasks = self.store, self._tasks_config()
        frozen = store.tasks_path.exists() or store.task_set_path.exists()
        index: TaskIndex = freeze_tasks(tasks, store) if frozen else open_tasks(tasks)
        opened = {}
        for task_id in sorted(wanted):
            try:
                row = index.row_of(task_id)
            except TaskError as error:
                raise ConfigError(f"tasks.file: {error}; name the file that was evaluated") from error
            opened[task_id] = with_hashes(index[row])
        return opened


def describe_regrading(summary: dict[str, Any]) -> str:
    """Describe a regrading in a sentence."""
    return (
        f"{summary['with_reward']} of {summary['episodes']} episodes have a reward, mean {figure(summary['mean'])}; "
        f"{summary['verdict_changed']} verdicts changed"
    )


def figure(value: object) -> str:
    """Format a value of a summary; an unknown one is no number."""
    return "unknown" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
