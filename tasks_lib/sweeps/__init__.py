"""Sweeps: training runs that differ in a few values, started and compared together.

``arms`` (pure) makes the runs' configurations from a base, a grid and a list; ``config`` is the
sweep's configuration; ``summary`` (pure) holds its results; ``sweeping`` opens the sweep's folder
and runs arms in this process; ``deployed`` runs them as flow runs of a deployment. An arm is an
ordinary run in its own folder. The sweep's folder keeps only its configuration and the states of
its arms.
"""
