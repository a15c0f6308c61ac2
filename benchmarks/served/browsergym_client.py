"""Run by the peers' Python: ``browsergym_client.py URL SESSIONS SECONDS`` clicks a checkbox in each
session of OpenEnv's BrowserGym server and prints the steps of each session as JSON."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

from browsergym_env.client import BrowserGymEnv
from browsergym_env.models import BrowserGymAction


async def main(url: str, sessions: int, seconds: float) -> None:
    """Open the sessions one by one, then let all click."""
    clients = [BrowserGymEnv(base_url=url, message_timeout_s=600, connect_timeout_s=120) for _ in range(sessions)]
    clicks = [await _begin(client) for client in clients]
    started = time.perf_counter()
    end = started + seconds
    steps = await asyncio.gather(*(_play(client, click, end) for client, click in zip(clients, clicks)))  # noqa: B905
    print(json.dumps({"steps": steps, "seconds": time.perf_counter() - started}))
    for client in clients:
        await client.close()


async def _begin(client: BrowserGymEnv) -> str:
    await client.connect()
    page = (await client.reset()).observation.axtree_txt
    checkbox = re.search(r"\[(\w+)\] checkbox", page)
    assert checkbox, page
    return f'click("{checkbox[1]}")'


async def _play(client: BrowserGymEnv, click: str, end: float) -> int:
    steps = 0
    while time.perf_counter() < end:
        observation = (await client.step(BrowserGymAction(action_str=click))).observation
        assert not observation.error and not observation.last_action_error, observation.error
        assert observation.screenshot
        steps += 1
    return steps


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
