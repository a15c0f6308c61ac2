"""A task set, built in shards on Dask and merged: ``flows.build_tasks``."""
