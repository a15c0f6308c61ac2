"""Opens a training run, trains it iteration by iteration, and writes its result.

Runs in the flow's process.

``run`` opens a run's folder and ledger, ``synchronous`` and ``asynchronous`` are the loops,
``results`` writes the final figures.
"""
