"""Environment variables of processes that run torch on a CPU, and of Dask's cluster.

They must be set when the process starts.
"""

from __future__ import annotations

TORCH_ENVIRONMENT = {
    # Threads that spin while they wait make other work on the same cores 5 to 10 times slower.
    "OMP_WAIT_POLICY": "PASSIVE",
    # By default glibc returns every large tensor to the kernel and gets zeroed pages for the next.
    # Both variables are needed: setting one switches off the adaptation of the other (Dask sets the
    # second to 64 KiB for its workers, and generation then takes 1.7 times as long).
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_ARENA_MAX": "0",  # glibc's default: the flow's process may have 1
}
"""Variables of every process that runs torch on a CPU. Measured with the quickstart's policy on two
cores: generation takes 10 to 20 % less time than with glibc's defaults."""

WORKER_ENVIRONMENT = TORCH_ENVIRONMENT | {"MALLOC_ARENA_MAX": "1"}
"""Variables of rollout workers. With a heap for each thread their memory grows, since memory that
is free in one heap is of no use to the other threads. One heap is as fast here
(benchmarks/history.md)."""

DASK_TCP_SECONDS = 60
"""Seconds of silence after which Dask gives up a connection; its default is 30. A worker whose
connection was given up closes when it reconnects."""
DASK_ENVIRONMENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": f"{DASK_TCP_SECONDS}s"}
"""Variables of a cluster's schedulers and workers: a shorter interruption of the network does no
harm."""
