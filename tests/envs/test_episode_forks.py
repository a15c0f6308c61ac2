"""Forks of episodes on sites whose actions are repeated: MiniWoB and the bundled ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from envs import EnvHost
from envs.browser.forks import EpisodeHistory
from envs.browser.page import STOPPED
from envs.browser.page_step import PageStep
from envs.env import WebEnv, open_env
from envs.settle import SettleReason
from envs.types import BrowserError, Click, ConfigError, Type
from tests.builders import make_observation, page_task

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


async def test_a_fork_of_a_slow_page_is_equal_and_of_another_is_not() -> None:
    page: Any = None  # no action is repeated
    shown = make_observation(text="one", notices=(STOPPED[SettleReason.DEADLINE], "an alert"))
    history = EpisodeHistory(page_task("/a.html"), 0, [shown])

    def seen(**changes: Any) -> PageStep:
        return PageStep(shown.model_copy(update=changes), b"", done=False, hash_dom=lambda: "hash")

    fast = seen(notices=("an alert",))
    assert (await history.repeat(page, fast, "hash", 1)).observation == shown
    for other, dom_hash, words in (
        (seen(notices=()), "hash", r"after 0 actions, length of notices: the episode had 1, the fork has 0"),
        (seen(text="two"), "hash", r"after 0 actions, text: the episode had 'one', the fork has 'two'"),
        (fast, "other", r"parts of the document that observations do not show"),
    ):
        with pytest.raises(BrowserError, match=words):
            await history.repeat(page, other, dom_hash, 1)


def test_a_page_of_the_caller_is_refused() -> None:
    page: Any = object()
    with pytest.raises(ConfigError, match="a page of yours cannot be shown again"):
        open_env("miniwob/enter-text", page=page, forkable=True)


def value(env: WebEnv) -> str:
    assert env.page_step is not None
    return next(one.value or "" for one in env.page_step.observation.elements if one.tag == "input")
