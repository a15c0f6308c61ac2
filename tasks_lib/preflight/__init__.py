"""Checks before a command starts: its values, its tasks, the folder.

Runs in the flow's process.

``flows`` checks the configuration of each flow, ``tasks`` its tasks, and ``machine`` this machine,
with ``storage``, ``locks`` (also run as a program) and, on Dask workers, ``workers``.
"""
