"""Times steps inside, in `WebEnv.step`, also those of servers.

``python -m benchmarks.adapter_steps.inner_clock FILE MODULE …`` runs a server with timed steps.
"""

from __future__ import annotations

import asyncio
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from envs.env import WebEnv


class InnerClock:
    """Seconds of the steps inside, in this process and in servers that it started."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.excluded = 0.0
        """Seconds of the present step that are the adapter's, though they pass inside."""
        self.chromium = list[float]()
        """Seconds for which calls of `of_chromium` waited for Chromium, each."""
        self.pictures = list[float]()
        """Seconds of calls of `of_pictures`, each."""

    def start(self) -> None:
        """Time the steps of this process."""
        inside = WebEnv.step

        async def step(env: WebEnv, action: Any) -> Any:
            self.excluded, started = 0.0, time.perf_counter()
            try:
                return await inside(env, action)
            finally:
                with self.file.open("a") as file:
                    file.write(f"{time.perf_counter() - started - self.excluded}\n")

        WebEnv.step = step  # type: ignore[method-assign, assignment]

    def exclude(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the function, whose seconds do not count as inside."""

        async def timed(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return await function(*args)
            finally:
                self.excluded += time.perf_counter() - started

        return timed

    def of_chromium(self, function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """Return the function of a `Cdp`, whose waits for Chromium are noted."""

        async def timed(cdp: Any) -> Any:
            waited = 0.0

            async def send(*args: Any) -> Any:
                nonlocal waited
                started = time.perf_counter()
                try:
                    return await cdp.send(*args)
                finally:
                    waited += time.perf_counter() - started

            result = await function(SimpleNamespace(send=send))
            self.chromium.append(waited)
            return result

        return timed

    def of_pictures(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which decodes a picture and whose seconds are noted."""

        def timed(*args: Any) -> Any:
            started = time.perf_counter()
            result = function(*args)
            self.pictures.append(time.perf_counter() - started)
            return result

        return timed

    @asynccontextmanager
    async def serving(self, *command: str) -> AsyncIterator[str]:
        """Start a server of ours whose steps are timed; yield its address."""
        async with serving("benchmarks.adapter_steps.inner_clock", str(self.file), *command) as (url, _):
            yield url


@asynccontextmanager
async def serving(*command: str) -> AsyncIterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server of ours on a free port; yield its address and process."""
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield await asyncio.to_thread(_address, process), process
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if match := re.search(r"http://127\.0\.0\.1:\d+", line):
            # The rest is read too, so that the server never waits for its reader.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return match[0]
    raise RuntimeError(f"the server did not start: {output}")


if __name__ == "__main__":
    _, file, module, *sys.argv[1:] = sys.argv
    InnerClock(Path(file)).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
