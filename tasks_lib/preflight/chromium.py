"""Checks the browser of one machine: the doctor's own, and that of each worker of a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from tasks_lib.preflight.findings import Finding


def check_chromium() -> Iterator[Finding]:
    """It is there, starts as in a run, answers and stops.

    Raises:
        BrowserError: it does not.
    """
    from envs.browser import chromium_version, find_chromium

    executable = find_chromium()
    begun = time.monotonic()
    version = asyncio.run(chromium_version(executable))
    yield Finding("Chromium", f"{version} ({executable}) started in {time.monotonic() - begun:.1f} s", "", "ok")
