"""The benchmarks' count of a Dask scheduler's bytes, against payloads of a known size."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import distributed
import pytest

from benchmarks.dask_traffic import DaskTraffic

MB = 1_000_000

pytestmark = pytest.mark.dask


@pytest.fixture(scope="module")
def counted() -> Iterator[tuple[DaskTraffic, distributed.Client]]:
    """A count of a local cluster with one worker process, and its client in this process."""
    with (
        DaskTraffic().count() as traffic,
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.submit(len, b"warm", pure=False).result()
        yield traffic, client


def test_a_payload_counts_as_it_comes_in_and_as_it_goes_out(
    counted: tuple[DaskTraffic, distributed.Client],
) -> None:
    traffic, client = counted
    before = traffic.total
    assert client.submit(len, os.urandom(MB), pure=False).result() == MB
    assert 2 * MB <= traffic.total - before < 2.2 * MB


def test_a_result_counts_as_it_comes_in_and_as_it_goes_out(counted: tuple[DaskTraffic, distributed.Client]) -> None:
    traffic, client = counted
    before = traffic.total
    assert len(client.submit(os.urandom, MB, pure=False).result()) == MB
    assert 2 * MB <= traffic.total - before < 2.2 * MB


def test_a_result_that_stays_on_its_worker_does_not_count(counted: tuple[DaskTraffic, distributed.Client]) -> None:
    traffic, client = counted
    before = traffic.total
    distributed.wait(client.submit(os.urandom, MB, pure=False))
    assert 0 < traffic.total - before < 0.1 * MB


def test_a_cluster_without_tasks_exchanges_heartbeats_only(counted: tuple[DaskTraffic, distributed.Client]) -> None:
    traffic, _ = counted
    before = traffic.total
    time.sleep(2)
    assert 0 < traffic.total - before < 0.1 * MB
