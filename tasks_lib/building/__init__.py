"""Builds a task set in shards on Dask and merges them: ``flows.build_tasks``."""
