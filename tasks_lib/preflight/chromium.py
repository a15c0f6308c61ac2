"""Checks the Chromium of a machine, and that all workers of a cluster have the same one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tasks_lib.preflight.findings import Finding

if TYPE_CHECKING:
    import distributed

NAME = "Chromium"
UNPIN = "run `scripts/setup chromium` without ROLLWRIGHT_CHROMIUM, or keep it if all machines have the same"


def check_chromium() -> Iterator[Finding]:
    """Check that Chromium exists, starts as in a run, answers and stops.

    Yields a note if it is not the pinned version.

    Raises:
        BrowserError: Chromium does not exist, start, answer or stop.
    """
    from envs.browser import PINNED_PRODUCT, chromium_version, find_chromium

    executable = find_chromium()
    begun = time.monotonic()
    product, _ = asyncio.run(chromium_version(executable))
    yield Finding(NAME, f"{product} ({executable}) started in {time.monotonic() - begun:.1f} s", "", "ok")
    if product != PINNED_PRODUCT:
        yield Finding(NAME, f"{product} is not the pinned {PINNED_PRODUCT}: pictures and timings differ", UNPIN, "note")


def compare_workers(client: distributed.Client, workers: Sequence[str]) -> Iterator[Finding]:
    """Yield a fault if workers that play episodes have different browsers."""
    from tasks_lib.processes.browser_versions import browser_versions, describe_differences

    if differences := describe_differences(browser_versions(client, workers)):
        todo = "run `scripts/setup chromium` on each of these machines, or set ROLLWRIGHT_CHROMIUM to the same on all"
        yield Finding(NAME, f"workers have different browsers: {differences}", todo)
