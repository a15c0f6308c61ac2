"""Steps without a picture: our sessions in a Dask worker against bare loops of Playwright, in short
turns.

What these machines give changes by half within minutes, so what is compared follows closely, and
more often than in `benchmarks.env.steps`.
"""

from __future__ import annotations

from functools import partial

from benchmarks import Figure
from benchmarks.bare_playwright import bare_rate
from benchmarks.env.pages import PAGES, VIEWPORT
from benchmarks.env.steps import SESSIONS, dask_worker, our_rate
from benchmarks.peers import PAGE
from benchmarks.rates import Rate, interleave
from envs.browser import find_chromium
from envs.sites.static_server import StaticSite

ROUNDS = 5
SECONDS = 6.0
"""Of each arm and round: six hundred steps."""


async def figures() -> list[Figure]:
    """Medians over the rounds; about five minutes."""
    found: list[Figure] = []
    site = StaticSite("pages", PAGES, viewport=VIEWPORT)
    await site.start()
    try:
        async with dask_worker() as client:
            for sessions in SESSIONS:
                bare = partial(bare_rate, find_chromium(), f"{site.origin}/{PAGE}", sessions, SECONDS)
                arms = {
                    "ours, text only": partial(our_rate, client, sessions, SECONDS, screenshots=False),
                    "bare, held clock": partial(bare, held_clock=True),
                    "bare, text only": partial(bare, screenshots=False),
                }
                found += _figures(sessions, await interleave(arms, ROUNDS))
    finally:
        await site.close()
    return found


def _figures(sessions: int, rates: dict[str, Rate]) -> list[Figure]:
    ours, held, bare = (
        rates[name].cpu_ms_per_step for name in ("ours, text only", "bare, held clock", "bare, text only")
    )
    return [
        Figure(f"CPU of a text-only step, {sessions}", ours, "ms", "<= 12"),
        Figure(f"text-only / bare with a held clock, {sessions}", ours / held, "ratio", "<= 1.5"),
        Figure(f"CPU of one with a held clock, {sessions}", held, "ms", ""),
        Figure(f"CPU of a bare text-only step, {sessions}", bare, "ms", ""),
    ]
