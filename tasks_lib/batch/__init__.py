"""Plays tasks with any agent, and counts what came of it: ``flows.batch``.

``config`` has the keys, ``agents`` asks an endpoint or a Python callable for the next action
(``conversation`` writes the requests), ``playing`` plays one task with its retries, ``batch`` all
of them, and ``results`` and ``summary`` are what is stored. Everything runs in the flow's process,
on one event loop and one pool of browsers (`envs.EnvHost`); Dask is not needed, because an agent
behind an endpoint is waited for, not computed.
"""
