"""Sweeps: training runs that differ in a few values, started and compared together.

``arms`` (pure) makes the runs' configurations from a base, a grid and a list; ``config`` is the form; ``summary`` (pure) is what a sweep came
to; ``sweeping`` holds the sweep's folder and plays arms in this process; ``deployed`` has them played as flow runs of a deployment. An arm is
an ordinary run in a folder of its own; the sweep's folder keeps only what it was started with and what became of the arms.
"""
