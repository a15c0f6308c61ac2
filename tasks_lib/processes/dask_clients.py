"""Connections to a Dask cluster, and its workers by the resources that they offer."""

from __future__ import annotations

import distributed

from envs.types import ConfigError

BROWSER_RESOURCE = "browser"
"""Dask resource of workers that may run rollouts; one shard takes one."""
EVALUATION_RESOURCE = "evaluation"
"""Dask resource of a worker that plays evaluations only, and serves the evaluated version
(``evaluation.where``)."""
TRAINER_RESOURCE = "trainer"
"""Dask resource of workers whose machine takes part in training. A trainer takes one of each."""


def connect_client(cluster: distributed.deploy.Cluster | str) -> distributed.Client:
    """Return a client of a cluster, or of a scheduler's address.

    Raises:
        ConfigError: no scheduler answers.
    """
    try:
        return distributed.Client(cluster, set_as_default=False)
    except OSError as error:
        raise ConfigError(f"cluster.address: no Dask scheduler answers at {cluster} ({error})") from error


def workers_offering(client: distributed.Client, resource: str) -> list[str]:
    """Return the addresses of the workers that offer a resource, in the order of their names."""
    workers = client.scheduler_info(n_workers=-1)["workers"].items()
    offering = sorted(
        (str(worker["name"]), address) for address, worker in workers if resource in worker.get("resources", {})
    )
    return [address for _, address in offering]
