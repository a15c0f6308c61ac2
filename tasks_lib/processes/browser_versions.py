"""Versions of the Chromiums of a cluster's workers, and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import distributed

from envs.browser import chromium_version, find_chromium
from tasks_lib.processes.dask_clients import run_on_workers


async def browser_version() -> str:
    """Return product and revision of this machine's Chromium: ``HeadlessChrome/140.0.7339.80
    @3f1cfd…``.

    Chromium is started for that.

    Raises:
        BrowserError: there is none, or it does not start.
    """
    return " ".join(await chromium_version(find_chromium()))


def browser_versions(client: distributed.Client, workers: Sequence[str]) -> dict[str, str]:
    """Return the version of each worker, by address; workers that cannot tell are left out."""
    answers = run_on_workers(client, browser_version, workers=workers)
    return {worker: answer for worker, answer in answers.items() if isinstance(answer, str)}


def describe_differences(versions: Mapping[str, str]) -> str:
    """Say which workers have which version; empty where all have the same."""
    products = sorted(set(versions.values()))
    if len(products) < 2:
        return ""
    return "; ".join(
        f"{product} on {', '.join(worker for worker in versions if versions[worker] == product)}"
        for product in products
    )
