"""Checks before a command starts: its values, its tasks, the folder.

Runs in the flow's process.

``command_line`` is ``python -m flows.<name>``; ``flows`` says what each flow is refused for; ``tasks`` and ``task_check`` look at
tasks, ``doctor`` at a run's folder, ``machine`` at this machine, with ``storage``, ``locks`` (a program of its own) and, on Dask
workers, ``workers``. It may import every other room; no other room imports it.
"""
