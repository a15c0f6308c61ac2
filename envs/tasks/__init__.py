"""Task files: read, check, write, stream, shard, index and sample.

`files`, `stream`, `parquet` and `tree` read, check, write and shard task files. `index` keeps tasks
in little memory, `samplers` draw from it, and `imports` reads the task sets of other benchmarks.
Nothing here opens a browser. See ``docs/tasks.md``.
"""

from typing import TYPE_CHECKING

from envs.lazy import lazy_names
from envs.tasks.files import load_tasks, read_tasks, save_tasks
from envs.tasks.index import Rows, TaskIndex
from envs.tasks.parquet import save_parquet
from envs.tasks.rows import TaskProblem
from envs.tasks.stream import iter_tasks, json_row, task_files
from envs.tasks.tree import TreeLayout, write_tree

if TYPE_CHECKING:
    from envs.tasks.authoring import WriterConfig


__all__ = [
    "Rows",
    "TaskIndex",
    "TaskProblem",
    "TreeLayout",
    "WriterConfig",
    "iter_tasks",
    "json_row",
    "load_tasks",
    "read_tasks",
    "save_parquet",
    "save_tasks",
    "task_files",
    "write_tree",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.tasks.authoring": ("WriterConfig",),
    },
)
