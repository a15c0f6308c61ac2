"""Checks before a command starts: its values, its tasks, the folder.

Runs in the flow's process.

``command_line`` is ``python -m flows.<name>``. ``flows`` checks the configuration of each flow,
``tasks`` and ``task_check`` check tasks, ``doctor`` a run's folder, and ``machine`` this machine,
with ``storage``, ``locks`` (also run as a program) and, on Dask workers, ``workers``. This package
may import every other room; no other room imports it.
"""
