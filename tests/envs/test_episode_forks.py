"""Forks of episodes on sites whose actions are repeated: MiniWoB and the bundled ones."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from envs import EnvHost
from envs.env import WebEnv
from envs.types import BrowserError, Click, ConfigError, Type

from .adapters.reference import reference


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[EnvHost]:
    async with EnvHost(max_sessions=3) as shared:
        yield shared


@pytest.mark.parametrize("task", ["miniwob/enter-text", "miniwob/click-button-sequence", "bundled/shop-open/200000/0"])
async def test_a_fork_ends_as_the_episode_does(host: EnvHost, task: str) -> None:
    recorded = reference(task).trajectory
    actions = [step.action for step in recorded.steps]
    async with host.open(task, seed=recorded.seed, forkable=True) as env:
        await env.reset()
        for number, action in enumerate(actions):
            async with env.fork(1) as (fork,):
                assert fork.page_step is not None and env.page_step is not None
                assert fork.page_step.observation == env.page_step.observation
                for rest in actions[number:]:
                    result = await fork.step(rest)
                assert result.done and result.reward == recorded.reward.score
            await env.step(action)
        assert env.trajectory is not None and env.trajectory.reward.score == recorded.reward.score


async def test_forks_on_one_page_do_not_see_each_other(host: EnvHost) -> None:
    async with host.open("miniwob/enter-text", seed=7, forkable=True) as env:
        first = await env.reset()
        (field,) = [one.index for one in first.observation.elements if one.tag == "input"]
        await env.step(Type(element=field, text="first"))
        async with env.fork(2) as (left, right):
            await left.step(Type(element=field, text="left"))
            assert [value(one) for one in (env, left, right)] == ["first", "left", "first"]
            with pytest.raises(ConfigError, match="3 forks of an episode: the pool has 3 sessions; from 1 to 2 fit"):
                async with env.fork(3):
                    raise AssertionError("there is no room")
        async with env.page() as page:
            await page.title()
        with pytest.raises(BrowserError, match="cannot be forked: a foreign client had its page"):
            async with env.fork(1):
                raise AssertionError("the actions do not lead to its page")
        assert (await env.step(Click(element=field))).observation.error is None


def value(env: WebEnv) -> str:
    assert env.page_step is not None
    return next(one.value or "" for one in env.page_step.observation.elements if one.tag == "input")
