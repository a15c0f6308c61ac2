"""The TRL adapter, called as GRPOTrainer calls it."""

from __future__ import annotations

import hashlib
import inspect
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from transformers.utils import get_json_schema

from envs import StepRenderer, TaskError
from envs.actions.parsing import parse
from envs.adapters import close_hosts, shared_host
from envs.adapters.trl import TrlEnvironment
from envs.types import BrowserError, ConfigError
from envs.types.actions import ACTIONS

from .reference import CANARY, SCRIPTS, digest, reference, without_texts

SHOP = "bundled/shop-open/200000/0"


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    yield
    close_hosts()


def tools(env: TrlEnvironment) -> dict[str, Any]:
    """The tools as `GRPOTrainer` finds them."""
    members = inspect.getmembers(type(env), predicate=inspect.isfunction)
    return {name: getattr(env, name) for name, _ in members if name not in ("reset", "get_reward") and name[0] != "_"}


def call(env: TrlEnvironment, text: str) -> Any:
    """Call the tool for a script's text."""
    arguments = parse(text, ACTIONS).action.model_dump(exclude_defaults=True)
    name = parse(text, ACTIONS).action.type
    return tools(env)[name](**{key: value for key, value in arguments.items() if key != "type"})


@pytest.mark.parametrize("task", SCRIPTS)
def test_an_episode_is_the_reference(task: str) -> None:
    expected, shown = reference(task), StepRenderer(screenshot=True)
    env = TrlEnvironment(screenshot=True)
    pages = [env.reset(prompt=[], task=task, seed=expected.seed), *(call(env, text) for text in expected.texts)]
    for page, step in zip(pages, expected.steps, strict=True):
        text = page[-1]["text"] if isinstance(page, list) else page
        assert text == shown.text(step)
        assert isinstance(page, list) == bool(step.screenshot)
        assert page[0]["image"].size == shown.image(step).size if isinstance(page, list) else True
    assert env.get_reward() == expected.reward and env.abstained is None
    assert env.trajectory is not None
    assert digest(without_texts(env.trajectory)) == digest(without_texts(expected.trajectory))
    shots = [step.screenshot for step in env.trajectory.steps]
    assert shots == [name for name in expected.screenshots[: len(shots)] if name != hashlib.sha256(b"").hexdigest()]


def test_every_tool_has_a_schema() -> None:
    schemas = [get_json_schema(tool)["function"] for tool in tools(TrlEnvironment()).values()]
    names = "answer back click goto hover press scroll select submit terminate type"
    assert sorted(schema["name"] for schema in schemas) == names.split()
    for schema in schemas:
        described = schema["parameters"]["properties"].values()
        assert schema["description"] and all(one["description"] and "type" in one for one in described)
    click = next(schema for schema in schemas if schema["name"] == "click")["parameters"]
    assert click["properties"]["element"]["type"] == "integer" and click["required"] == ["element"]


def test_one_environment_plays_one_episode_after_another() -> None:
    env = partial(TrlEnvironment, task=SHOP)()
    for script, reward in ((SCRIPTS[SHOP][1], reference(SHOP).reward), ((), None), (SCRIPTS[SHOP][1], 1.0)):
        env.reset(prompt=[])
        for text in script:
            call(env, text)
        left = env.get_reward()
        if reward is None:  # the model calls no tool: the episode is graded as it stands
            assert left is not None and left < 1.0 and env.trajectory is not None
            assert str(env.trajectory.stop_reason) == "terminated"
        else:
            assert left == env.get_reward() == reward
    assert env.click(1) == "The episode is over."


def test_an_abstention_has_no_reward() -> None:
    env = TrlEnvironment(task=SHOP, max_sessions=1)
    env.reset(prompt=[])
    pool = shared_host(max_sessions=1, **StepRenderer().pool_options).host.pool
    os.kill(pool.browser_pids()[0], signal.SIGKILL)
    assert "without a reward" in env.click(1)
    assert env.get_reward() is None and env.abstained
    env.reset(prompt=[])
    assert env.abstained is None and env.get_reward() is not None, "the next episode has a browser again"


def test_a_page_that_does_not_open_has_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    env = TrlEnvironment(task=SHOP)

    def no_browser(**options: Any) -> Any:
        raise BrowserError("Chromium did not start")

    with monkeypatch.context() as patch:
        patch.setattr("envs.adapters.trl.shared_host", no_browser)
        assert env.reset(prompt=[]) == "The page did not open: Chromium did not start"
    assert "without a reward" in env.click(1)
    assert env.get_reward() is None and env.abstained == "Chromium did not start"
    env.reset(prompt=[])
    assert "Page:" in env.click(1) and env.get_reward() is not None and env.abstained is None


def test_wrong_uses_say_so() -> None:
    with pytest.raises(TaskError, match="column `task`"):
        TrlEnvironment().reset(prompt=[])
    with pytest.raises(ConfigError, match="set_of_marks"):
        TrlEnvironment(mode="coordinates")  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="reset"):
        TrlEnvironment().back()
    env = TrlEnvironment(task="miniwob/click-test")
    env.reset()
    assert "Error:" in env.click("x")  # type: ignore[arg-type]
    env.get_reward()


def test_sessions_share_nothing() -> None:
    first, second = TrlEnvironment(), TrlEnvironment()
    task: Any = CANARY
    assert "found: nothing" in first.reset(task=task)
    first.click(1)
    assert "found: nothing" in second.reset(task=task)
    assert "found: nothing" in first.reset(task=task)
    first.get_reward()
    second.get_reward()
