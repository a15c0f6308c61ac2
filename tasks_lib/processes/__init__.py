"""Processes and servers that a flow needs outside Dask: the trainer, the Prefect server, Ctrl-C, retries."""
