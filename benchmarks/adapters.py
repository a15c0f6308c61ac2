"""Overhead of a step through each adapter and server over the same step of `open_env`.

Each plays the same episode of the bundled shop (`benchmarks.adapter_steps`). Then 64 sessions play
at once, through OpenEnv's server and without one, beside other servers (`benchmarks.served`).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import Figure, adapter_steps
from benchmarks.adapter_steps.inner_clock import serving
from benchmarks.served import browsergym_rate, omniboxes_rate
from envs import EnvHost

SESSIONS = 64
CROWD_SECONDS = 30.0
LEAK_EPISODES = 2000
CLICK = ("miniwob/click-test", "click [1]")

PARTS = ("steps", "sessions", "served", "leak")
CHECKBOX = "miniwob/click-checkboxes"
CLICKS = 1000
"""Horizon of its episodes: the peers' pages are clicked on without an end, too."""
PEER_SESSIONS = {"OPENENV": 2, "WEBGYM": 16}
"""Sessions of a peer by its variable: more do not raise its rate on two cores."""


def run(parts: tuple[str, ...] = PARTS) -> list[Figure]:
    """Figures of all parts."""
    measures = {"steps": adapter_steps.figures, "sessions": _crowd, "served": _served, "leak": _leak}
    return [figure for part in parts for figure in asyncio.run(measures[part]())]


async def _crowd() -> list[Figure]:
    """Steps a second of 64 sessions at once, in this process and through OpenEnv's server."""
    from envs.adapters.openenv import OpenEnvAction, OpenEnvClient

    task, text = CLICK
    async with EnvHost(max_sessions=SESSIONS, screenshots=False) as host, AsyncExitStack() as stack:
        envs = [await stack.enter_async_context(host.open(task)) for _ in range(SESSIONS)]
        direct = await _rates([(env.reset, partial(env.step, text)) for env in envs])
    limit = ("--max-sessions", str(SESSIONS))
    async with (
        serving("envs.adapters.openenv", "--port", "0", "--no-screenshot", *limit) as (url, _),
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(OpenEnvClient(base_url=url)) for _ in range(SESSIONS)]
        action = OpenEnvAction(action=text)
        served = await _rates([(partial(client.reset, task=task), partial(client.step, action)) for client in clients])
    return [
        Figure(f"{SESSIONS} sessions, open_env", sum(direct), "episodes/s", ""),
        Figure(f"{SESSIONS} sessions through OpenEnv", sum(served), "episodes/s", ""),
        Figure("OpenEnv / open_env", sum(served) / sum(direct), "ratio", ""),
        Figure("slowest session / median, OpenEnv", min(served) / statistics.median(served), "ratio", ">= 0.8"),
    ]


async def _served() -> list[Figure]:
    """Clicks with their screenshots: 64 sessions of our OpenEnv server beside other servers."""
    ours = await _our_rate(SESSIONS)
    figures = [Figure(f"{SESSIONS} sessions through OpenEnv, screenshots", ours, "steps/s", "")]
    for name, variable, rate, target in (
        ("OpenEnv's BrowserGym", "OPENENV", browsergym_rate, ">= 8"),
        ("OmniBoxes", "WEBGYM", omniboxes_rate, ">= 15"),
    ):
        if checkout := os.environ.get(variable):
            sessions = PEER_SESSIONS[variable]
            peer = await rate(Path(checkout), sessions, CROWD_SECONDS)
            figures.append(Figure(f"{name}, {sessions} sessions", peer.steps_per_second, "steps/s", ""))
            figures.append(Figure(f"ours / {name}", ours / peer.steps_per_second, "ratio", target))
        else:
            print(f"{name} is left out: {variable} names no checkout", file=sys.stderr)
    return figures


async def _our_rate(sessions: int) -> float:
    from envs.adapters.openenv import OpenEnvAction, OpenEnvClient

    async with (
        serving("envs.adapters.openenv", "--port", "0", "--max-sessions", str(sessions)) as (url, _),
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(OpenEnvClient(base_url=url)) for _ in range(sessions)]
        for client in clients:
            await client.reset(task=CHECKBOX, horizon=CLICKS)

        async def play(client: OpenEnvClient) -> int:
            steps = 0
            while time.perf_counter() < end:
                done = await client.step(OpenEnvAction(action=f"click [{1 + steps % 2}]"))
                assert done.observation.screenshot and not done.done
                steps += 1
            return steps

        started = time.perf_counter()
        end = started + CROWD_SECONDS
        return sum(await asyncio.gather(*map(play, clients))) / (time.perf_counter() - started)


async def _rates(players: list[tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]]) -> list[float]:
    """Episodes a second of each player, all at once; an episode is a reset and a click."""

    async def play(reset: Callable[[], Awaitable[Any]], step: Callable[[], Awaitable[Any]], end: float) -> int:
        episodes = 0
        while time.perf_counter() < end:
            await reset()
            assert (await step()).reward == 1.0
            episodes += 1
        return episodes

    for reset, step in players:  # each opens its page
        await reset()
        await step()
    end = time.perf_counter() + CROWD_SECONDS
    played = await asyncio.gather(*(play(reset, step, end) for reset, step in players))
    return [episodes / CROWD_SECONDS for episodes in played]


async def _leak() -> list[Figure]:
    """Growth of OpenEnv's server after 2,000 episodes by eight clients, each session used anew."""
    from envs.adapters.openenv import OpenEnvAction, OpenEnvClient

    task, text = CLICK
    async with serving("envs.adapters.openenv", "--port", "0", "--no-screenshot", "--max-sessions", "8") as (
        url,
        server,
    ):

        async def play(episodes: int) -> None:
            for _ in range(episodes // 10):
                async with OpenEnvClient(base_url=url) as client:
                    for _ in range(10):
                        await client.reset(task=task)
                        assert (await client.step(OpenEnvAction(action=text))).reward == 1.0

        async def all_play(episodes: int) -> tuple[float, int]:
            await asyncio.gather(*(play(episodes // 8) for _ in range(8)))
            process = psutil.Process(server.pid)
            return process.memory_info().rss / 2**20, process.num_fds()

        before, files = await all_play(400)
        after, files_after = await all_play(LEAK_EPISODES)
    return [
        Figure(f"memory of the server after {LEAK_EPISODES} more episodes", after - before, "MB", "<= 20"),
        Figure("open files of the server, more", float(files_after - files), "", "<= 4"),
    ]
