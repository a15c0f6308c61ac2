"""Task sets of other benchmarks, read into `WebTask` and written back.

An `ImportedTask` is the task and its *reference*: the row as it came, with everything that a
`WebTask` has no place for (rubrics, evaluators, recorded actions, log-ins). So nothing is lost, and
the exporter can write the row back, with later changes of the task's instruction and start.

A task of a live site names its place so: ``site`` is the host (with the port, if the address has
one), ``path`` the rest of the address with query and fragment. The scheme and any log-in stay in
the reference. A live site has no page seeds: the task has the one seed 0, in the split that the
caller names.
"""

from envs.tasks.imports.base import ImportedTask, split_address
from envs.tasks.imports.registry import FORMATS, export_tasks, import_tasks

__all__ = [
    "FORMATS",
    "ImportedTask",
    "export_tasks",
    "import_tasks",
    "split_address",
]
