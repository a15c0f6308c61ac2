"""Plans rollouts and submits them to Dask: which groups, on which workers.

Runs in the flow's process.

``sampling`` draws the groups of an iteration, ``planning`` shares them out, ``shards`` sends each
share to a worker as a Prefect task, ``cluster`` is the Dask cluster, ``evaluation`` measures the
greedy success of one policy version.
"""
