"""Stored episodes graded again, in batches on Dask: ``flows.regrade``."""
