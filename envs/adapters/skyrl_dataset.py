"""Datasets of web tasks for SkyRL's trainer.

``save_dataset("train.parquet", "datasets/tasks/bundled.jsonl", seeds=8)`` writes the rows that
`envs.adapters.skyrl` plays. It needs no SkyRL.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from envs.registry import choose_task
from envs.tasks import load_tasks
from envs.types import Split, TaskError


def save_dataset(
    path: str | Path, tasks: str | Path | Iterable[str], *, split: Split = Split.TRAIN, seeds: int = 1
) -> int:
    """Write a dataset as Parquet, a row for each task and seed, and return their number.

    Args:
        tasks: Path of a task file, or ids of `envs.list_tasks`.
        split: Split whose seeds are taken; tasks without it are left out.
        seeds: Maximum number of seeds of each task.

    Raises:
        TaskError: There is no such task, or none has the split.
    """
    rows = list(dataset_rows(tasks, split=split, seeds=seeds))
    if not rows:
        raise TaskError(f"{path}: no task has seeds of the split {split}")
    pq.write_table(pa.Table.from_pylist(rows), path)
    return len(rows)


def dataset_rows(
    tasks: str | Path | Iterable[str], *, split: Split = Split.TRAIN, seeds: int = 1
) -> Iterable[dict[str, Any]]:
    """Yield the rows of `save_dataset`.

    ``prompt`` is the instruction, which the environment replaces by the first page; the columns
    ``task``, ``seed`` and ``tasks`` reach it as ``extras``.

    Raises:
        TaskError: There is no such task.
    """
    if isinstance(tasks, str | Path):
        file: str | None = str(Path(tasks).resolve())
        chosen = {task.task_id: task for task in load_tasks(tasks)}
    else:
        file, chosen = None, {task_id: choose_task(task_id) for task_id in tasks}
    for task_id, task in chosen.items():
        if (given := task.seeds.get(split)) is None:
            continue
        for seed in range(given.start, min(given.stop, given.start + seeds)):
            prompt = [{"role": "user", "content": task.instruction}]
            yield {"prompt": prompt, "env_class": "rollwright", "task": task_id, "seed": seed, "tasks": file}
