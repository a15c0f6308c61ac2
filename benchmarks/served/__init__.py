"""Servers of others as peers: OpenEnv's own BrowserGym environment and WebGym's OmniBoxes.

Neither is in a package: ``OPENENV`` and ``WEBGYM`` name folders with a checkout of
meta-pytorch/OpenEnv and microsoft/webgym (OmniBoxes also needs ``redis-server``). A peer without a
folder is left out. The clients click a checkbox of MiniWoB's ``click-checkboxes`` and take the
screenshot, as ours do. Only the executable of Chromium is ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.browsergym import ensure_environment
from envs.browser.process.chromium import find_chromium
from envs.sites.static_server import StaticServer

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-frameworks" / "served"
"""Environment of the peers, made on demand; ignored by git."""
START_SECONDS = 180.0
KEY = {"x-api-key": "default_key"}
"""OmniBoxes' only key."""


@dataclass(frozen=True, slots=True)
class ServedRate:
    """Steps of the sessions of one server."""

    steps_per_second: float
    fairness: float
    """Steps of the slowest session / of the median one."""

    @classmethod
    def of(cls, steps: Sequence[int], seconds: float) -> ServedRate:
        """Add up the steps of the sessions."""
        return cls(sum(steps) / seconds, min(steps) / max(statistics.median(steps), 1))


async def browsergym_rate(checkout: Path, sessions: int, seconds: float) -> ServedRate:
    """Measure OpenEnv's BrowserGym server, which starts a Chromium (two pages) for each session.

    Raises:
        RuntimeError: the server or its client failed.
    """
    python = await asyncio.to_thread(ensure_environment, ENVIRONMENT, HERE / "requirements.txt")
    paths = {"PYTHONPATH": str(checkout / "envs")}
    async with _miniwob() as pages, AsyncExitStack() as stack:
        port = _free_port()
        task = {"BROWSERGYM_TASK_NAME": "click-checkboxes", "MINIWOB_URL": f"{pages}/miniwob/"}
        limit = {"MAX_CONCURRENT_ENVS": str(sessions)}
        served = ("uvicorn", "browsergym_env.server.app:app", "--port", str(port), "--ws-max-size", str(2**27))
        await stack.enter_async_context(_running(python, served, paths | task | limit))
        await _answers(f"http://127.0.0.1:{port}/health")
        client = await asyncio.create_subprocess_exec(
            str(python),
            str(HERE / "browsergym_client.py"),
            f"http://127.0.0.1:{port}",
            str(sessions),
            str(seconds),
            env={**os.environ, **paths},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await client.communicate()
    if client.returncode:
        raise RuntimeError("the client of OpenEnv's BrowserGym server failed, see above")
    measured = json.loads(output.splitlines()[-1])
    return ServedRate.of(measured["steps"], measured["seconds"])


async def omniboxes_rate(checkout: Path, sessions: int, seconds: float) -> ServedRate:
    """Measure OmniBoxes: a process with a Chromium for each session, a node and a master.

    Raises:
        RuntimeError: a request failed.
    """
    python = await asyncio.to_thread(ensure_environment, ENVIRONMENT, HERE / "requirements.txt")
    async with _miniwob() as pages, AsyncExitStack() as stack:
        redis, node, master = _free_port(), _free_port(), _free_port()
        store = ["redis-server", "--port", str(redis), "--save", "", "--bind", "127.0.0.1"]
        await stack.enter_async_context(_process(store, {}))
        paths, at = {"PYTHONPATH": str(checkout)}, ("--redis_port", str(redis))
        for _ in range(sessions):
            one = ("omniboxes.node.instance_server", "--port", str(_free_port()), *at)
            await stack.enter_async_context(_running(python, one, paths))
        # Its handlers block their process while they wait, so that each session gets one.
        workers = ("--workers", str(sessions))
        await stack.enter_async_context(
            _running(python, ("omniboxes.node.server", "--port", str(node), *at, *workers), paths)
        )
        await _answers(f"http://127.0.0.1:{node}/info", available=sessions)
        nodes = ("--nodes", f"http://127.0.0.1:{node}")
        await stack.enter_async_context(
            _running(python, ("omniboxes.master.server", "--port", str(master), *nodes, *workers), paths)
        )
        await _answers(f"http://127.0.0.1:{master}/info")
        limits = httpx.Limits(max_connections=sessions)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{master}", headers=KEY, timeout=600, limits=limits)
        )
        page = f"{pages}/miniwob/click-checkboxes.html"
        instances = [await _open_instance(client, page) for _ in range(sessions)]
        started = time.perf_counter()
        end = started + seconds
        steps = await asyncio.gather(*(_click_and_look(client, instance, end) for instance in instances))
        return ServedRate.of(steps, time.perf_counter() - started)


async def _open_instance(client: httpx.AsyncClient, page: str) -> dict[str, str]:
    """Take an instance; the master learns of free ones every few seconds."""
    end = time.perf_counter() + START_SECONDS
    while (answer := await client.post("/get", params={"lifetime_mins": 45})).status_code != 200:
        if time.perf_counter() > end:
            raise RuntimeError(f"OmniBoxes gave no instance: {answer.text}")
        await asyncio.sleep(1)
    instance: dict[str, str] = answer.json()
    _checked(await client.post("/execute", json={"visit_page": {"url": page}, **instance}))
    return instance


async def _click_and_look(client: httpx.AsyncClient, instance: dict[str, str], end: float) -> int:
    steps = 0
    while time.perf_counter() < end:
        click = {"x": 20, "y": 75 + 20 * (steps % 3)}
        _checked(await client.post("/execute", json={"click_coords": click, **instance}))
        picture = await client.get("/screenshot", params={"interaction_mode": "coordinates", **instance})
        assert _checked(picture).content.startswith(b"\x89PNG")
        steps += 1
    return steps


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.status_code != 200:
        raise RuntimeError(f"OmniBoxes: {answer.status_code} {answer.text[:200]}")
    return answer


@asynccontextmanager
async def _miniwob() -> AsyncIterator[str]:
    """Serve the pages of the peers' ``miniwob`` package, and yield their origin."""
    (pages,) = ENVIRONMENT.glob("lib/python3*/site-packages/miniwob/html")
    server = StaticServer(pages)
    await server.start()
    try:
        yield server.origin
    finally:
        await server.close()


def _running(python: Path, module: Sequence[str], variables: dict[str, str]) -> Any:
    """Run a module of a peer, with our Chromium."""
    return _process([str(python), str(HERE / "with_chromium.py"), *module], variables)


@asynccontextmanager
async def _process(command: Sequence[str], variables: dict[str, str]) -> AsyncIterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "CHROMIUM": str(find_chromium()), **variables}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                process.kill()


async def _answers(url: str, **expected: Any) -> None:
    """Wait until a GET is answered, with the expected fields."""
    end = time.perf_counter() + START_SECONDS
    async with httpx.AsyncClient(headers=KEY, timeout=10) as client:
        while time.perf_counter() < end:
            try:
                answer = await client.get(url)
                if answer.status_code == 200 and (not expected or answer.json().items() >= expected.items()):
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(1)
    raise RuntimeError(f"{url} does not answer {expected or ''}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
