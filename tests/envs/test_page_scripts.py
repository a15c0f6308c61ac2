"""Tasks whose start and end are Playwright functions: the page's own state decides the reward."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar
from urllib.parse import urljoin

import pytest
from playwright.async_api import expect

from envs import BrowserError, ConfigError, EnvHost, StepResult, WebTask
from envs.registry import find_task
from envs.types import Trajectory


class Basket:
    """The shop's basket must hold what the task names; the episode begins in a category."""

    async def setup(page: Any) -> None:  # type: ignore[misc]
        await page.get_by_role("link", name="Toys", exact=True).click()
        await page.wait_for_url("**/category/Toys", timeout=5000)

    async def validate(page: Any) -> None:  # type: ignore[misc]
        await page.goto(urljoin(page.url, "/basket"))
        await expect(page.get_by_role("link", name="Elmo Yo-yo")).to_be_visible(timeout=500)


class Rated:
    async def validate(page: Any) -> float:  # type: ignore[misc]
        await page.goto(urljoin(page.url, "/basket"))
        return float(await page.evaluate("document.links.length > 5 ? 0.25 : 0.75"))


class Broken:
    seen: ClassVar[list[str]] = []

    async def setup(page: Any) -> None:  # type: ignore[misc]
        raise LookupError("no such account")


class Odd:
    async def validate(page: Any) -> str:  # type: ignore[misc]
        return 7  # type: ignore[return-value]


class Plain:
    def validate(page: Any) -> bool:  # type: ignore[misc]
        return True


class Empty: ...


async def validate(page: Any) -> bool:
    return "Corner Shop" in await page.content()


def task(script: str) -> WebTask:
    shop = find_task("bundled/shop-open/200000/0")
    changes = {"script": script, "rubric": None, "rubric_hash": "", "instruction": "Do it.", "horizon": 20}
    return shop.model_copy(update=changes)


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[EnvHost]:
    async with EnvHost(max_sessions=1) as host:
        yield host


async def play(host: EnvHost, script: str, *texts: str) -> tuple[list[StepResult], Trajectory | None]:
    async with host.open(task(script)) as env:
        steps = [await env.reset()]
        for text in texts:
            named = next((one for one in steps[-1].observation.elements if one.text == text), None)
            steps.append(await env.step(text if named is None else {"type": "click", "element": named.index}))
        return steps, env.trajectory


END = '{"action": "terminate"}'


async def test_setup_runs_before_the_first_page_is_seen_and_validate_decides(host: EnvHost) -> None:
    steps, trajectory = await play(host, f"{__name__}:Basket", "Elmo Yo-yo", "Add to basket", END)
    assert "/category/Toys" in steps[0].observation.url
    assert steps[-1].reward == 1.0, [step.observation.error for step in steps]
    assert trajectory is not None and trajectory.recorded is not None and trajectory.recorded.validated == 1.0


async def test_a_failed_expectation_is_zero_with_its_words(host: EnvHost) -> None:
    steps, trajectory = await play(host, f"{__name__}:Basket", "Elmo Yo-yo", END)
    assert steps[-1].reward == 0.0 and steps[-1].abstained is None
    assert trajectory is not None and trajectory.recorded is not None
    assert "Elmo Yo-yo" in trajectory.recorded.validation


@pytest.mark.parametrize(("script", "reward"), [(f"{__name__}:Rated", 0.25), (__name__, 1.0)])
async def test_a_value_or_true_is_the_reward_and_a_module_may_hold_it(
    host: EnvHost, script: str, reward: float
) -> None:
    steps, trajectory = await play(host, script, END)
    assert steps[-1].reward == reward
    assert trajectory is not None and trajectory.final is not None
    assert "/basket" not in trajectory.final.url, "what validate does is not the episode's"


async def test_a_script_that_fails_is_no_reward(host: EnvHost) -> None:
    with pytest.raises(BrowserError, match=r"page script .*:Broken: setup raised LookupError: no such account"):
        await play(host, f"{__name__}:Broken")
    steps, _ = await play(host, f"{__name__}:Odd", END)
    assert steps[-1].reward is None and "validate gave 7; expected a number from 0 to 1" in str(steps[-1].abstained)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"{__name__}:Plain", r"write async def validate\(page\)"),
        (f"{__name__}:Empty", "has neither async def setup"),
        ("no_such_module:Task", "no_such_module cannot be imported"),
    ],
)
async def test_a_script_that_cannot_be_used_is_named(host: EnvHost, script: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        await play(host, script)
