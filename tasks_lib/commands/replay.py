"""Replays an episode of a run, or of a file, and writes it for other tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError

from envs import BrowserPool, WebEnv, make_pool, open_env
from envs.browser import PoolOptions
from envs.replay import Replay, playwright_script, replay
from envs.sites import LiveOptions
from envs.types import ConfigError, TaskError, Trajectory, WebTask
from tasks_lib.config import RolloutConfig
from tasks_lib.folder.frozen_config import started_config
from tasks_lib.folder.task_sets import freeze_tasks, open_tasks
from tasks_lib.worker.requests import pool_options
from training.config import PolicyConfig
from training.ledger.journal import read_group
from training.ledger.seal import describe_first_error
from training.ledger.store import RunStore, atomic_write_bytes


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """A stored trajectory, and what its environment was opened with."""

    trajectory: Trajectory
    task: WebTask | str
    """The task; an id of `envs.list_tasks` for a trajectory in a file."""
    live: LiveOptions
    pool: PoolOptions
    rollout: RolloutConfig


def episode_of_run(folder: Path, episode_id: str) -> StoredEpisode:
    """Read an episode of a run with the run's tasks and options.

    Raises:
        ConfigError: It is no run's folder, or has no such episode or task.
        StorageError: A file is damaged.
    """
    store = RunStore(folder)
    config = started_config(store)
    ids = list(store.episode_ids())
    if not episode_id or episode_id not in ids:
        shown = ", ".join(ids[:3]) or "none"
        raise ConfigError(f"--episode: {folder} has no episode {episode_id!r}; it has {len(ids)}, such as {shown}")
    trajectory = store.trajectory(episode_id)
    frozen = store.tasks_path.exists() or store.task_set_path.exists()
    index = freeze_tasks(config.tasks, store) if frozen else open_tasks(config.tasks)
    try:
        task = index[index.row_of(trajectory.task_id)]
    except TaskError as error:
        raise ConfigError(f"--run: {error}") from error
    pool = pool_options(config.rollout, config.policy, store.task_files_path)
    return StoredEpisode(trajectory, task, config.tasks.live, pool, config.rollout)


def list_episodes(folder: Path) -> Iterator[str]:
    """Yield a line for each episode of a run: its id, steps, end and reward.

    Raises:
        ConfigError: It is no run's folder, or has no episodes.
    """
    store = RunStore(folder)
    empty = True
    for group_id in store.group_ids():
        for episode in read_group(store, group_id).episodes:
            empty = False
            reward = "no reward" if episode.score is None else f"reward {episode.score:.3g}"
            yield f"{episode.episode_id}  {episode.steps} steps, {episode.stop_reason}, {reward}"
    if empty:
        raise ConfigError(f"--run: {folder} holds no episodes; give a run's folder such as runs/quickstart-seed0")


def episode_of_file(path: Path, task_id: str) -> StoredEpisode:
    """Read a trajectory from a file (`Trajectory` as JSON), as ``env.trajectory`` gives it.

    Args:
        task_id: Id of `envs.list_tasks`; the trajectory's own if empty.

    Raises:
        ConfigError: The file cannot be read, or is no trajectory.
    """
    try:
        trajectory = Trajectory.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--trajectory: {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"--trajectory: {path} is no trajectory: {describe_first_error(error)}") from error
    rollout = RolloutConfig()
    return StoredEpisode(
        trajectory, task_id or trajectory.task_id, LiveOptions(), pool_options(rollout, PolicyConfig()), rollout
    )


def play_again(episode: StoredEpisode, har: Path | None = None) -> Replay:
    """Replay an episode in a browser of its own, with the options that it was played with.

    Args:
        har: File for the requests of the replay, as an HTTP archive.
    """
    return asyncio.run(_play_again(episode, har))


async def _play_again(episode: StoredEpisode, har: Path | None) -> Replay:
    options = {name: getattr(episode.pool, name) for name in PoolOptions.model_fields}
    changes = {"max_sessions": 1, "prewarm": 0, "record_network": har is not None}
    async with make_pool(**{**options, **changes}) as pool, _environment(episode, pool) as env:
        result = await replay(episode.trajectory, env)
        if har is not None:
            atomic_write_bytes(har, orjson.dumps(env.har, option=orjson.OPT_INDENT_2))
        return result


def _environment(episode: StoredEpisode, pool: BrowserPool | None = None) -> WebEnv:
    """Make the environment of an episode, which is not open yet."""
    steps = episode.trajectory.steps
    return open_env(
        episode.task,
        seed=episode.trajectory.seed,
        instruction=steps[0].observation.instruction if steps and isinstance(episode.task, str) else None,
        repeats=episode.rollout.repeats,
        stop_on_invalid=episode.rollout.stop_on_invalid,
        live=episode.live,
        pool=pool,
    )


def write_script(episode: StoredEpisode, path: Path) -> None:
    """Write the episode as a Playwright script."""
    task_id = episode.task if isinstance(episode.task, str) else ""
    script = playwright_script(episode.trajectory, _environment(episode).task, task_id=task_id)
    atomic_write_bytes(path, script.encode())


def write_json(episode: StoredEpisode, path: Path) -> None:
    """Write the trajectory as indented JSON."""
    atomic_write_bytes(path, orjson.dumps(episode.trajectory.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
