"""Environment variables of processes that run torch on a CPU, and of Dask's on several machines.

They must be there when the process starts.
"""

from __future__ import annotations

TORCH_ENVIRONMENT = {
    # Threads that spin while they wait make everything else on the same cores 5 to 10 times slower.
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc gives every large tensor back to the kernel and gets zeroed pages for the next one, unless it is told to keep them. Both are
    # needed: naming one switches off the other's adaptation (Dask sets the second to 64 KiB for its workers: generation takes 1.7 times as long).
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_ARENA_MAX": "0",  # glibc's default: the flow's process may have 1
}
"""Measured with the quickstart's policy on two cores: 10 to 20 % less time to generate than with glibc's defaults."""

WORKER_ENVIRONMENT = TORCH_ENVIRONMENT | {"MALLOC_ARENA_MAX": "1"}
"""Of rollout workers: with a heap for each thread their memory grows, since what is free in one is of no use to the other threads. One heap
is as fast here (benchmarks/history.md)."""

DASK_TCP_SECONDS = 60
"""Silence after which Dask gives up a connection; by default half a minute. A worker that it has given up closes when it is back."""
DASK_ENVIRONMENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": f"{DASK_TCP_SECONDS}s"}
"""Of schedulers and workers of a cluster: a link that is cut for less is nothing."""
