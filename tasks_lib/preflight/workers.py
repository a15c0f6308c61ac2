"""Checks the workers of a Dask cluster: storage, locks, versions, Chromium.

The client makes a folder in the storage and locks it. Each worker checks it and writes a file there
(`look`), for which the client waits. Then the client writes a file, for which the workers wait
(`wait_for_file`).
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import logging
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask

from envs.sites import LiveOptions
from envs.types import ConfigError
from tasks_lib.config import PROJECT, ClusterConfig
from tasks_lib.folder.values import git_commit, versions
from tasks_lib.preflight.chromium import check_chromium, compare_workers
from tasks_lib.preflight.findings import Finding, fault_of, guarded
from tasks_lib.preflight.locks import held_locks, lock_problems
from tasks_lib.preflight.storage import NFS_LOCKS, probe_folder
from tasks_lib.processes.dask_clients import (
    BROWSER_RESOURCE,
    EVALUATION_RESOURCE,
    TRAINER_RESOURCE,
    connect_client,
    places_offered,
    run_on_workers,
    workers_for,
    workers_offering,
)
from tasks_lib.processes.site_offers import check_offers
from tasks_lib.processes.trainer_nodes import trainer_workers
from training.ledger.store import atomic_write_bytes

CONNECT_SECONDS = 10.0
SEEN_SECONDS = 10.0
"""Longest time in seconds until a file of another machine is seen."""
SOON_SECONDS = 1.0
"""Seconds after which a file that is seen later gets a note."""
LOOK_SECONDS = 60.0
"""Deadline in seconds of one worker's checks; Chromium alone has 30 s."""
POLL_SECONDS = 0.05
OF_CLIENT = "of-client"
MOUNT = "mount the same storage under the same path on all machines, with short attribute caching (NFS: actimeo=1)"
SAME = "give all machines the same checkout, run `make setup` there and start the workers again"
BROWSER = "run `make setup` there, or set ROLLWRIGHT_CHROMIUM for that worker"


def check_cluster(address: str, storage: Path) -> Iterator[Finding]:
    """Yield the findings on each worker of the scheduler at ``address``.

    Args:
        address: Address of the Dask scheduler.
        storage: Absolute folder of the runs, under the same path on every machine.

    Raises:
        ConfigError: no scheduler answers.
        DiskError: nothing can be written to the storage.
    """
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with dask.config.set({"distributed.comm.timeouts.connect": CONNECT_SECONDS}):
        client = connect_client(address)
    with client, probe_folder(storage) as folder, held_locks(folder):
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        yield Finding("Dask", f"{address} answers; workers: {len(workers)}", "", "ok")
        yield from guarded(
            "Dask",
            lambda: _count_workers(
                workers_for(client, address, BROWSER_RESOURCE), places_offered(client, BROWSER_RESOURCE)
            ),
            "start workers",
        )
        yield from compare_workers(client, workers_offering(client, BROWSER_RESOURCE))
        if trainers := workers_offering(client, TRAINER_RESOURCE):
            yield Finding("Dask", f"workers that train (resource trainer): {len(trainers)}", "", "ok")
        # A file system may cache that a file does not exist. So the file is looked up before it is
        # made, as in a run.
        for worker in workers:
            (folder / file_name(worker)).exists()
        looks = run_on_workers(client, look, str(folder), facts(), SEEN_SECONDS, workers=workers)
        writers = [
            worker for worker, result in looks.items() if isinstance(result, list) and not _has_storage_fault(result)
        ]
        seen_here = _wait_for_all(folder, writers)
        atomic_write_bytes(folder / OF_CLIENT, b"")
        awaited = str(folder / OF_CLIENT), SEEN_SECONDS
        seen_there = run_on_workers(client, wait_for_file, *awaited, workers=writers)
        for worker in workers:
            result = looks[worker]
            if isinstance(result, Exception):
                yield fault_of(f"worker {worker}", result, SAME)
                continue
            if worker in writers:
                result = [*result, *_visibility(seen_here[worker], seen_there[worker])]
            yield from _summarize(f"worker {worker}", result)


def check_places(
    cluster: ClusterConfig, places: int, *, evaluator: bool, trainers: int, sites: Collection[str], live: LiveOptions
) -> None:
    """Refuse a cluster that offers too little for a run, before anything of the run starts.

    A local cluster is not there yet; it offers what the run needs.

    Args:
        places: Units that each rollout worker has to offer.
        evaluator: The run has a worker for evaluations only.
        trainers: Workers that take part in training.
        sites: Sites of the tasks, which a worker has to be able to serve.
        live: Addresses of live sites, and recipes that serve them.

    Raises:
        ConfigError: no scheduler answers, or its workers offer too little; names all that lacks.
    """
    if not cluster.address:
        return
    lacking: list[str] = []
    with connect_client(cluster.address) as client:
        needs: list[Callable[[], object]] = [partial(workers_for, client, cluster.address, BROWSER_RESOURCE, places)]
        needs += [partial(workers_for, client, cluster.address, EVALUATION_RESOURCE)] * evaluator
        needs.append(partial(check_offers, client, sites, live, BROWSER_RESOURCE))
        needs += [partial(trainer_workers, client, trainers, 0.0)] * bool(trainers)
        for need in needs:
            try:
                need()
            except ConfigError as error:
                lacking.append(str(error))
    if lacking:
        raise ConfigError("; also: ".join(lacking))


def facts() -> dict[str, str]:
    """Return the values that must be the same on all machines, by name.

    The commit is left out if there is no git.
    """
    own = {"Python": platform.python_version(), "rollwright": importlib.metadata.version("rollwright")}
    commit = git_commit()
    return own | versions() | ({"commit": commit[:12]} if commit else {}) | {"project": str(PROJECT)}


async def look(folder: str, ours: Mapping[str, str], seconds: float, dask_worker: Any) -> list[Finding]:
    """Check a worker, in a thread of its process.

    Writes the worker's file into the folder if it sees the folder.

    Args:
        folder: Path of the client's folder.
        ours: `facts` of the client.
        seconds: Seconds in which the folder must be seen.
        dask_worker: Worker, passed by Dask.

    Raises:
        TimeoutError: a check hangs.
    """
    offered = dask_worker.state.total_resources
    name, trains = file_name(dask_worker.address), TRAINER_RESOURCE in offered and BROWSER_RESOURCE not in offered
    work = partial(_look, Path(folder), ours, seconds, name, browser=not trains)
    return await asyncio.wait_for(asyncio.to_thread(work), LOOK_SECONDS)


async def wait_for_file(path: str, seconds: float) -> float | None:
    """Return the seconds until a file is seen; ``None`` if it is not seen within ``seconds``."""
    begun = time.monotonic()
    while not await asyncio.to_thread(Path(path).exists):
        if time.monotonic() - begun > seconds:
            return None
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - begun


def file_name(worker: str) -> str:
    """Return the name of the file that a worker writes, by its address."""
    return f"of-{hashlib.sha256(worker.encode()).hexdigest()[:16]}"


def _look(folder: Path, ours: Mapping[str, str], seconds: float, name: str, *, browser: bool) -> list[Finding]:
    checks: dict[str, tuple[Callable[[], Iterator[Finding]], str]] = {
        "storage": (partial(_write, folder, name, seconds), MOUNT),
        "locks": (partial(_locks, folder), NFS_LOCKS),
        "versions": (partial(_compare, ours), SAME),
    }
    if browser:  # a worker that only trains needs none
        checks["Chromium"] = check_chromium, BROWSER
    return [finding for key, (check, todo) in checks.items() for finding in guarded(key, check, todo)]


def _write(folder: Path, name: str, seconds: float) -> Iterator[Finding]:
    begun = time.monotonic()
    while not folder.exists():
        if time.monotonic() - begun > seconds:
            yield Finding("storage", f"does not see {folder} within {seconds:g} s", MOUNT)
            return
        time.sleep(POLL_SECONDS)
    (folder / OF_CLIENT).exists()
    atomic_write_bytes(folder / name, b"")


def _locks(folder: Path) -> Iterator[Finding]:
    if not folder.exists():
        return  # reported by the check of storage
    if problems := lock_problems(folder):
        yield Finding("locks", "; ".join(problems), NFS_LOCKS)
    else:
        yield Finding("locks", "locks of this machine keep it out", "", "ok")


def _compare(ours: Mapping[str, str]) -> Iterator[Finding]:
    theirs = facts()
    differ = [
        f"{name} {theirs[name]} there, {ours[name]} here"
        for name in sorted(ours.keys() & theirs.keys())
        if ours[name] != theirs[name]
    ]
    if differ:
        yield Finding("versions", ", ".join(differ), SAME)
    else:
        yield Finding("versions", f"the same project, Python {theirs['Python']} and packages", "", "ok")


def _count_workers(workers: list[str], places: int) -> Iterator[Finding]:
    what = f"workers that take rollouts: {len(workers)}, and each plays {places} episodes at once (resource browser)"
    yield Finding("Dask", what, "", "ok")


def _has_storage_fault(findings: list[Finding]) -> bool:
    return any(finding.path == "storage" and finding.severity == "fault" for finding in findings)


def _wait_for_all(folder: Path, workers: list[str]) -> dict[str, float | None]:
    """Return the seconds until each worker's file is seen here; ``None`` after the deadline."""
    begun = time.monotonic()
    seen: dict[str, float | None] = {}
    while (
        missing := [worker for worker in workers if worker not in seen]
    ) and time.monotonic() - begun <= SEEN_SECONDS:
        for worker in missing:
            with suppress(OSError):
                (folder / file_name(worker)).stat()
                seen[worker] = time.monotonic() - begun
        time.sleep(POLL_SECONDS)
    return dict.fromkeys(workers) | seen


def _visibility(here: float | None, there: object) -> Iterator[Finding]:
    """Yield the findings of waiting for files in both directions."""
    if isinstance(there, Exception):
        yield fault_of("storage", there, MOUNT)
        return
    for what, seconds in (("its file is seen here", here), ("our file is seen there", there)):
        if not isinstance(seconds, float):
            yield Finding("storage", f"not within {SEEN_SECONDS:g} s: {what}", MOUNT)
        elif seconds > SOON_SECONDS:
            yield Finding("storage", f"{what} after {seconds:.1f} s", MOUNT, "note")
        else:
            yield Finding("storage", f"{what} after {seconds:.1f} s", "", "ok")


def _summarize(worker: str, findings: list[Finding]) -> Iterator[Finding]:
    """Yield one finding for all that is well, and each other finding by itself."""
    well = [finding.what for finding in findings if finding.severity == "ok"]
    if well:
        yield Finding(worker, "; ".join(well), "", "ok")
    for finding in findings:
        if finding.severity != "ok":
            yield replace(finding, path=f"{worker}, {finding.path}")
