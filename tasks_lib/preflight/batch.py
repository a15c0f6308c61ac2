"""Checks a batch before anything is written or started: its tasks, agent and folder."""

from __future__ import annotations

from envs.browser import find_chromium
from envs.tasks import TaskIndex
from envs.types import ConfigError, Split
from tasks_lib.batch.agents import find_callable
from tasks_lib.batch.batch import BatchRun
from tasks_lib.batch.config import BatchConfig
from tasks_lib.config import RewardConfig, RolloutConfig
from tasks_lib.folder.task_sets import check_uploads, task_root
from tasks_lib.preflight.flows import check_folder, describe_tasks
from tasks_lib.preflight.tasks import Gradable, check_gradable, check_sites


def check_batch(config: BatchConfig) -> list[str]:
    """Check a configuration of ``flows.batch``. The endpoint is not asked.

    Raises:
        ConfigError: a task, site, log-in, key or function is not there, tasks could never be
            graded, or the batch was started with other values.
        TaskError: task files cannot be read.
        BrowserError: there is no Chromium, or ``ROLLWRIGHT_CHROMIUM`` names none.
        StorageError: another process works on it.
    """
    check_folder(config.run_dir)
    batch = BatchRun(config)
    if config.endpoint is None:
        find_callable(config.function)
    else:
        config.endpoint.read_key()
    tasks = TaskIndex.build({planned.task.task_id: planned.task for planned in batch.episodes}.values())
    check_uploads(tasks, task_root(config.tasks.file))
    check_sites(tasks, config.tasks, read_logins=True)
    lines = [describe_tasks(tasks)]
    gradable = Gradable(RolloutConfig(judge=config.judge, dom_diffs=True), RewardConfig(), config.tasks.live)
    try:
        check_gradable(tasks, gradable, (Split(config.split),), lines.append)
    except ConfigError as error:
        raise ConfigError(str(error).replace("rollout.judge", "judge")) from error
    batch.check_values()
    left = len(batch.remaining())
    lines.append(f"{left} of {len(batch.episodes)} episodes are to be played")
    if left:
        find_chromium()
    return lines
