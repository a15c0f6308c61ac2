"""Processes of a flow outside Dask: trainer, Prefect server, Ctrl-C, retries."""
