"""Connections to a Dask cluster, and its workers by the resources that they offer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from typing import Any

import dask
import distributed

from envs.types import ConfigError
from training.environment import WORKER_ENVIRONMENT

BROWSER_RESOURCE = "browser"
"""Dask resource of workers that may run rollouts: as many units as a worker plays episodes at once
(``rollout.concurrency``)."""
EVALUATION_RESOURCE = "evaluation"
"""Dask resource of a worker that plays evaluations only, and serves the evaluated version
(``evaluation.where``)."""
TRAINER_RESOURCE = "trainer"
"""Dask resource of workers whose machine takes part in training. A trainer takes one of each."""

PRELOAD = "tasks_lib.processes.site_offers"
"""Module with which workers start that play episodes: it offers the sites that they can serve."""

ANSWER_SECONDS = 120.0
"""Longest wait for a worker's answer to a question, such as where it can be reached."""
EPISODES_PER_UNIT = 3
"""Episodes of a shard per unit that it takes: a worker has three times as many as it plays at once.

Episodes that wait at the worker fill places that a group's last, long episodes leave.
"""


def worker_options(resource: str, places: int) -> list[str]:
    """Return the options of ``dask worker`` that offer a resource.

    A shard blocks a thread; one more thread is left for other tasks.
    """
    offers = [] if resource == TRAINER_RESOURCE else ["--preload", PRELOAD]
    return ["--nthreads", str(places + 1), "--resources", f"{resource}={places}", *offers]


def units_of_shard(episodes: int, places: int, *, shared: bool) -> int:
    """Return the units of a worker that a shard takes.

    Args:
        episodes: Episodes of the shard.
        places: Units that the worker offers.
        shared: True if shards run side by side on a worker; at least two of them always fit.
    """
    return max(1, min(episodes // EPISODES_PER_UNIT, places // 2)) if shared else places


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


def run_on_workers(
    client: distributed.Client,
    function: Callable[..., Any],
    *values: Any,
    workers: Collection[str],
    seconds: float = ANSWER_SECONDS,
) -> dict[str, Any]:
    """Run a function on workers and return its results by address.

    A failure is the result of its worker, and so is ``TimeoutError`` of one that has not answered
    in ``seconds``: `distributed.Client.run` would wait for it for ever.
    """

    async def ask() -> dict[str, Any]:
        # Of one worker each, as the scheduler answers once all workers have.
        asked = {
            worker: asyncio.ensure_future(client.run(function, *values, workers=[worker], on_error="return"))
            for worker in workers
        }
        if asked:
            await asyncio.wait(asked.values(), timeout=seconds)
        late = [worker for worker, answer in asked.items() if not answer.done()]
        for worker in late:
            asked[worker].cancel()
        ended = dict(zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True), strict=True))
        return {
            worker: TimeoutError(f"no answer in {seconds:g} s")
            if worker in late
            else result
            if isinstance(result, BaseException)
            else result[worker]
            for worker, result in ended.items()
        }

    results: dict[str, Any] = client.sync(ask)
    return results


def places_offered(client: distributed.Client, resource: str) -> int:
    """Return the units of a resource that each worker offers; the fewest, where they differ."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    units = [int(worker["resources"][resource]) for worker in workers if resource in worker.get("resources", {})]
    return max(1, min(units, default=1))


def workers_for(client: distributed.Client, address: str, resource: str, places: int = 1) -> list[str]:
    """Return the addresses of the workers of the cluster at ``address`` that offer a resource.

    Raises:
        ConfigError: none does, or one offers fewer units than ``places``.
    """
    offering = workers_offering(client, resource)
    start = f"start workers with: dask worker {address} {' '.join(worker_options(resource, places))}"
    if not offering:
        raise ConfigError(f"no worker of the Dask cluster at {address} offers the resource {resource!r}; {start}")
    if (offered := places_offered(client, resource)) < places:
        raise ConfigError(
            f"a worker of the Dask cluster at {address} offers {resource}={offered}, and rollout.concurrency is {places}: "
            f"an asynchronous run would leave places empty; {start}, or set rollout.concurrency={offered}"
        )
    return offering


def worker_settings(workers: int) -> dict[str, Any]:
    """Return Dask's settings for the workers of a local cluster.

    OpenMP, glibc and Dask's logging read theirs from the environment when they are loaded.
    """
    return {
        "distributed.nanny.pre-spawn-environ": {
            **dask.config.get("distributed.nanny.pre-spawn-environ", {}),
            **WORKER_ENVIRONMENT,
            "OMP_NUM_THREADS": max(1, (os.cpu_count() or 1) // workers),
            "DASK_LOGGING__DISTRIBUTED": "warning",
        },
        # Dask profiles a thread a hundred times a second, which says nothing of an event loop, and
        # checks fifty times a second that the worker's own loop is alive. Together they took
        # 0.3 ms of a step. They are not set in the environment, because all our settings overrule
        # it in a nanny's worker.
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "100ms",
    }
