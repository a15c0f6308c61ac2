"""What a site of somebody else answers an episode with: walls with the statuses of errors, errors,
captchas in frames. Real Chromium."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser import BrowserPool
from envs.sites import LiveOptions, make_site
from envs.types import StopReason, Trajectory, WebTask
from tasks_lib.config import RolloutConfig
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tests.builders import make_task
from tests.loopback import Quiet, serving
from tests.turns import make_turn
from training.records.groups import GroupSpec

DATADOME = "https://geo.captcha-delivery.com/captcha/?initialCid=1"
PUZZLE = "https://www.google.com/recaptcha/api2/bframe?hl=en"

ANSWERS: dict[str, tuple[int, str]] = {
    "/": (200, "<title>Shop</title><p>Lamps</p>"),
    "/challenge": (503, "<title>Just a moment...</title><p>Please wait</p>"),
    "/denied": (403, "<title>Access denied</title><p>No</p>"),
    "/limit": (429, "<title>Sorry</title><p>Too many requests</p>"),
    "/down": (503, "<title>Sorry</title><p>We are being repaired</p>"),
    "/empty": (502, ""),
    "/gone": (404, "<title>Sorry</title><p>No such page</p>"),
    "/nothing": (404, ""),
    "/frame": (403, f"<title>shop.example</title><iframe src='{DATADOME}' width=400 height=300></iframe>"),
    "/puzzle": (200, f"<title>Log in</title><iframe src='{PUZZLE}' width=400 height=300></iframe>"),
    "/waiting": (
        200,
        f"""<title>Log in</title><p>Your name</p>
<div style="visibility: hidden; position: absolute; top: -10000px"><iframe src="{PUZZLE}" width=400 height=300></iframe></div>
<div style="visibility: hidden"><iframe src="{PUZZLE}" width=400 height=300></iframe></div>
<div style="opacity: 0; position: absolute; top: 0"><iframe src="{PUZZLE}" width=400 height=300></iframe></div>
<iframe src="{PUZZLE}" width=1 height=1></iframe><iframe src="{PUZZLE}" style="display: none"></iframe>
<div style="height: 5000px"></div><iframe src="{PUZZLE}" width=400 height=300></iframe>""",
    ),
}


class Host(Quiet):
    """Answers as `ANSWERS` says."""

    def do_GET(self) -> None:
        self.answer(*ANSWERS.get(self.path, (404, "")))


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with serving(Host) as origin:
        yield origin


def task_at(path: str) -> WebTask:
    return make_task(f"shop{path}", kind="shop", path=path)


@pytest.fixture(scope="module")
def played(host: str) -> dict[str, list[Trajectory]]:
    """The attempts of an episode that begins at each path; its policy answers at once, but goes
    from ``/`` to the challenge first."""

    async def turn(situation: Any) -> Any:
        away = situation.group.task.path == "/" and not situation.steps
        said = f'{{"action": "goto", "url": "{host}/challenge"}}' if away else '{"action": "answer", "text": "x"}'
        return make_turn(situation, said)

    async def run() -> dict[str, list[Trajectory]]:
        live = LiveOptions({"shop": host})
        rollout = RolloutConfig(episode_deadline=60.0, attempts=2, repeats=0)
        clock: Any = lambda doing: nullcontext()  # noqa: E731
        turns: Any = SimpleNamespace(run=turn)
        actor: Any = SimpleNamespace(policy_version=0)
        async with BrowserPool(max_sessions=2) as pool:
            runner = EpisodeRunner(pool, {"shop": make_site("shop", live)}, actor, turns, clock, rollout, live)

            async def episode(path: str) -> list[Trajectory]:
                return await runner.run(GroupSpec(group_id="e0-g0", task=task_at(path), seeds=(0,)), 0, SlotStatus())

            return dict(zip(ANSWERS, await asyncio.gather(*map(episode, ANSWERS)), strict=True))

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "wall"),
    [
        ("/challenge", "cloudflare"),
        ("/denied", "denied"),
        ("/limit", "rate_limit"),
        ("/frame", "datadome"),
        ("/puzzle", "recaptcha"),
    ],
)
def test_a_wall_at_the_first_page_is_a_wall_whatever_its_status(
    played: dict[str, list[Trajectory]], path: str, wall: str
) -> None:
    (only,) = played[path]  # nobody runs at it again
    assert (only.stop_reason, only.wall) == (StopReason.BLOCKED, wall) and only.error and path in only.error
    assert only.final is not None and not only.steps


def test_a_wall_later_on_is_one_too(played: dict[str, list[Trajectory]]) -> None:
    (only,) = played["/"]
    assert (only.stop_reason, only.wall, len(only.steps)) == (StopReason.BLOCKED, "cloudflare", 1)


@pytest.mark.parametrize(
    ("path", "reason", "status"),
    [
        ("/down", StopReason.HTTP_ERROR, 503),
        ("/empty", StopReason.HTTP_ERROR, 502),
        ("/gone", StopReason.BROWSER_ERROR, 404),
        ("/nothing", StopReason.BROWSER_ERROR, 404),
    ],
)
def test_an_error_at_the_first_page_is_tried_again_and_no_wall(
    played: dict[str, list[Trajectory]], path: str, reason: StopReason, status: int
) -> None:
    assert [(each.stop_reason, each.wall, each.steps) for each in played[path]] == [(reason, "", ())] * 2
    assert all(f"answered {status}" in (each.error or "") for each in played[path])


def test_a_puzzle_that_waits_for_its_turn_is_no_wall(played: dict[str, list[Trajectory]]) -> None:
    (only,) = played["/waiting"]
    assert (only.stop_reason, only.error, only.wall) == (StopReason.ANSWER, None, "")
