"""Grades stored episodes again, in batches on Dask: ``flows.regrade``."""
