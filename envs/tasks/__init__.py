"""Tasks as files: rows read, checked, written, streamed and sharded (`files`, `stream`, `parquet`, `tree`), held in little memory (`index`), drawn
(`samplers`), and taken from the sets of others (`imports`). Nothing here opens a browser. See ``docs/tasks.md``.
"""

from envs.tasks.files import MAX_SHOWN, TaskRead, load_tasks, read_tasks, save_tasks
from envs.tasks.index import TaskIndex
from envs.tasks.parquet import save_parquet
from envs.tasks.rows import SCHEMA_VERSION, TaskProblem, refuse
from envs.tasks.stream import iter_tasks, task_files
from envs.tasks.tree import Form, write_tree

__all__ = [
    "MAX_SHOWN",
    "SCHEMA_VERSION",
    "Form",
    "TaskIndex",
    "TaskProblem",
    "TaskRead",
    "iter_tasks",
    "load_tasks",
    "read_tasks",
    "refuse",
    "save_parquet",
    "save_tasks",
    "task_files",
    "write_tree",
]
