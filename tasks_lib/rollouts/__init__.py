"""Draws groups and submits them to Dask: which groups, on which workers.

Runs in the flow's process.

``sampling`` draws the groups of an iteration, and ``admissions`` says which ones start in an
asynchronous run. ``shards`` shares groups out and sends each share to a worker as a Prefect task,
``cluster`` is the Dask cluster, ``use`` accounts for the workers' time, and ``evaluation`` measures
the greedy success of one policy version.
"""
