"""The peers on their own: a bare Playwright loop against BrowserGym, click and observation at
1280x720, 4 and 8 environments.

``python -m benchmarks.peers [--rounds N] [--seconds S] [--sessions N…]`` prints medians and ratios;
`benchmarks.env` adds our own arm to these.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.bare_playwright import bare_rate
from benchmarks.browsergym import DEFAULTS, NO_WAITS, browsergym_rate
from benchmarks.rates import Rate, interleave
from envs.browser.process.chromium import find_chromium
from envs.sites.static_server import StaticServer

PAGES = Path(__file__).parent / "pages"
PAGE = "cards.html"


def peer_arms(url: str, sessions: int, seconds: float) -> dict[str, Callable[[], Awaitable[Rate]]]:
    """The arms by name, for `interleave`."""
    executable = find_chromium()
    return {
        f"bare Playwright, {sessions}": partial(bare_rate, executable, url, sessions, seconds),
        f"BrowserGym, {sessions}": partial(browsergym_rate, executable, url, sessions, seconds, DEFAULTS),
        f"BrowserGym without waits, {sessions}": partial(browsergym_rate, executable, url, sessions, seconds, NO_WAITS),
    }


async def _main(rounds: int, seconds: float, sessions: list[int]) -> None:
    server = StaticServer(PAGES)
    await server.start()
    try:
        for number in sessions:
            rates = await interleave(peer_arms(f"{server.origin}/{PAGE}", number, seconds), rounds)
            bare, *others = rates
            for name in others:
                print(f"{bare} / {name}: {rates[bare].steps_per_second / rates[name].steps_per_second:.1f}")
            for name, rate in rates.items():
                print(f"{name:32s} {rate.steps_per_second:7.2f} steps/s {rate.cpu_ms_per_step:7.1f} CPU ms/step")
    finally:
        await server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--sessions", type=int, nargs="+", default=[4, 8])
    asyncio.run(_main(**vars(parser.parse_args())))
