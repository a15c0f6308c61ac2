"""Environments that share browsers and sites, with and without ``await``, and what a step shows."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import Iterator

import pytest

from envs import (
    BrowserError,
    CapacityError,
    Click,
    ConfigError,
    EnvHost,
    Observation,
    StepRenderer,
    StepResult,
    SyncEnvHost,
)
from envs.prompts import user_text
from envs.types import StopReason


@pytest.fixture(scope="module")
def host() -> Iterator[SyncEnvHost]:
    with SyncEnvHost(max_sessions=2, lease_deadline=0.5, marks=True) as host:
        yield host


def test_environments_share_one_browser_and_one_server_of_a_site(host: SyncEnvHost) -> None:
    with host.open("miniwob/click-test", seed=3) as first, host.open("miniwob/click-button", seed=3) as second:
        pages = [env.reset().observation.url for env in (first, second)]
        assert len({page.split("/miniwob")[0] for page in pages}) == 1
        assert len([pid for pid in host.host.pool.browser_pids()]) > 0
        assert host.host.pool.counters.launches == 1
        assert first.step("click [1]").reward == 1.0


def test_a_host_without_a_free_session_says_so_and_lends_it_again(host: SyncEnvHost) -> None:
    first, second = host.open("miniwob/click-test"), host.open("miniwob/click-test")
    with pytest.raises(CapacityError, match=r"all 2 sessions were in use for 0\.5 s: close one"):
        host.open("miniwob/click-test")
    first.close()
    with host.open("miniwob/click-test") as third:
        assert third.reset().observation.elements
    second.close()


def test_a_forgotten_environment_gives_its_session_back(host: SyncEnvHost) -> None:
    for _ in range(5):
        host.open("miniwob/click-test").reset()
        gc.collect()


def test_a_host_closes_what_is_still_open_and_then_refuses() -> None:
    host = SyncEnvHost(max_sessions=2)
    env = host.open("miniwob/click-test")
    env.reset()
    host.close()
    with pytest.raises(BrowserError, match="closed"):
        env.step(Click(element=1))
    with pytest.raises(BrowserError, match="the host is closed"):
        host.open("miniwob/click-test")


async def test_a_host_closes_environments_that_were_left_open() -> None:
    async with EnvHost(max_sessions=1) as host:
        env = await host.open("miniwob/click-test")
        await env.reset()
    with pytest.raises(BrowserError, match="the environment is not open"):
        await env.reset()


async def test_a_host_in_an_event_loop_opens_environments_at_once() -> None:
    async with EnvHost(max_sessions=4) as host:

        async def play(seed: int) -> float | None:
            async with host.open("miniwob/click-test", seed=seed) as env:
                await env.reset()
                return (await env.step(Click(element=1))).reward

        assert await asyncio.gather(*(play(seed) for seed in range(200_000, 200_004))) == [1.0] * 4
        with pytest.raises(ConfigError, match="sites: the host has its own"):
            host.open("miniwob/click-test", sites=None)


def shown(**changes: object) -> StepResult:
    observation = Observation(instruction="Go.", elements=(), url="http://a.example/", viewport=(100, 100))
    values = {"reward": 0.0, "done": False, "observation": observation, "screenshot": b"\xff\xd8picture"}
    return StepResult(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("renderer", "kinds"),
    [
        (StepRenderer(), ["text"]),
        (StepRenderer(screenshot=True), ["image_url", "text"]),
        (StepRenderer(mode="set_of_marks"), ["image_url", "text"]),
        (StepRenderer(mode="coordinates"), ["image_url", "text"]),
    ],
)
def test_the_parts_of_a_step_are_those_of_its_mode(renderer: StepRenderer, kinds: list[str]) -> None:
    step = shown()
    parts = renderer.parts(step)
    assert [part["type"] for part in parts] == kinds
    assert parts[-1]["text"] == user_text(step.observation, mode=renderer.mode)  # the policy's own words
    if "image_url" in kinds:
        assert base64.b64decode(parts[0]["image_url"]["url"].partition(",")[2]) == step.screenshot
    content = renderer.user_message(step)["content"]
    assert content == (parts if len(kinds) > 1 else parts[0]["text"])
    assert renderer.pool_options["screenshots"] is ("image_url" in kinds)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"reward": 0.5, "stop": StopReason.DONE}, "The episode is over (done): reward 0.5"),
        (
            {"reward": None, "stop": StopReason.CRASH, "abstained": "the page crashed"},
            "The episode is over (crash) without a reward: the page crashed",
        ),
    ],
)
def test_an_ended_episode_is_said_to_be_over(changes: dict[str, object], line: str) -> None:
    assert StepRenderer().text(shown(done=True, **changes)).splitlines()[-1] == line
    assert "over" not in StepRenderer().text(shown())
