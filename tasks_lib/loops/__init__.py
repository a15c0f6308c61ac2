"""The training run: opened, trained iteration by iteration, and its result.

Runs in the flow's process.

``run`` opens a run's folder and ledger, ``synchronous`` is the loop, ``results`` writes what came of it.
"""
