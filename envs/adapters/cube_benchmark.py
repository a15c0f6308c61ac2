"""CUBE benchmark: all tasks of `envs.list_tasks`, which CUBE's own layer lists, selects and runs.

::

    config = CubeBenchmarkConfig(tool_config=CubeToolConfig(screenshot=True))
    with config.subset_from_glob("id", "miniwob/click-*").make() as benchmark:
        for task_config in benchmark.config.get_task_configs():
            task = benchmark.spawn(task_config)

Without a ``seed_generator`` each task has the first of its training seeds; a generator must give
seeds of the task, which CUBE's `BasicSeedGenerator` does not. The browsers start with the first
reset, and close with the benchmark.
"""

from __future__ import annotations

from typing import ClassVar

from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata
from cube.task import TaskConfig, TaskMetadata

from envs.adapters.cube import CubeTaskConfig
from envs.adapters.shared_host import close_hosts
from envs.registry import families, find_task, list_tasks
from envs.types import Split

SPLITS = {Split.TRAIN: "train", Split.VALIDATION: "val", Split.HELD_OUT: "test"}
"""CUBE's words for splits; a task has that of the first of these that it has seeds for."""


def _describe(task_id: str) -> TaskMetadata:
    task = find_task(task_id)
    split = next((name for split, name in SPLITS.items() if split in task.seeds), "train")
    about = f"{task.kind} on {task.site}, difficulty {task.difficulty}"
    return TaskMetadata(id=task_id, split=split, abstract_description=about, recommended_max_steps=task.horizon)


class CubeBenchmark(Benchmark):
    """The tasks at work; they need nothing but the browsers of this process."""

    def _setup(self) -> None:
        """Do nothing: the first reset starts the browsers, with the options of its tool."""

    def close(self) -> None:
        """Close the browsers of this process, with all tasks that are open."""
        close_hosts()


class CubeBenchmarkConfig(BenchmarkConfig):
    """The tasks, of which subsets can be taken."""

    task_metadata: ClassVar[dict[str, TaskMetadata]] = {task_id: _describe(task_id) for task_id in list_tasks()}
    benchmark_metadata: ClassVar[BenchmarkMetadata] = BenchmarkMetadata(
        name="rollwright",
        version="0.1.0",
        description="Web tasks in real browsers: MiniWoB++, bundled sites with a server's state, Design2Code",
        license="Apache-2.0",
        num_tasks=len(task_metadata),
        tags=["web", "browser"],
        named_subsets={family: ("id", f"{family}/*") for family in families()},
    )
    task_config_class: ClassVar[type[TaskConfig]] = CubeTaskConfig
    benchmark_class: ClassVar[type[Benchmark]] = CubeBenchmark
