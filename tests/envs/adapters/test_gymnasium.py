"""Gymnasium: the reference episodes, its own checker, and its vector environments."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import pickle
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from envs import StepRenderer, WebEnv, list_tasks
from envs.adapters import close_hosts, shared_host
from envs.adapters.gymnasium import RollwrightEnv, env_id
from envs.adapters.gymnasium_text import AnyText
from envs.adapters.gymnasium_vector import RollwrightVectorEnv
from envs.browser import WebSession
from envs.browser.options import Device
from envs.types import BrowserError, ConfigError, StopReason, TaskError, WebTask

from .reference import CANARY, SCRIPTS, canary_file, digest, reference

POOL = {"max_sessions": 6, "lease_deadline": 10.0}
HOST = {**StepRenderer().pool_options, **POOL}


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    yield
    close_hosts()


def web_task(task: str) -> WebTask:
    (found,) = RollwrightEnv(task).tasks.values()
    return found


def made(task: str, **options: Any) -> gym.Env[Any, Any]:
    return gym.make(f"envs.adapters.gymnasium:{env_id(task)}", pool=POOL, **options)


@pytest.mark.parametrize("task", SCRIPTS)
def test_an_episode_is_the_reference(task: str) -> None:
    expected = reference(task)
    env = made(task, screenshot=True, render_mode="rgb_array")
    try:
        observation, info = env.reset(seed=expected.trajectory.seed)
        seen, reward, terminated, truncated = [(observation, info)], 0.0, False, False
        for text in expected.texts:
            assert (reward, terminated, truncated) == (0.0, False, False)
            observation, reward, terminated, truncated, info = env.step(text)
            seen.append((observation, info))
            assert observation in env.observation_space
        assert [digest(info["observation"]) for _, info in seen] == expected.observations
        for number, (step, (observation, _)) in enumerate(zip(expected.steps, seen, strict=True)):
            renderer = StepRenderer(screenshot=True)
            assert observation["text"] == renderer.text(step, expected.texts[:number])
            image = renderer.image(step)
            assert np.array_equal(observation["screenshot"], 0 * observation["screenshot"] if image is None else image)
        assert np.array_equal(env.render(), observation["screenshot"])
        cut = expected.trajectory.stop_reason == StopReason.HORIZON
        assert (reward, terminated, truncated) == (expected.reward, not cut, cut)
        assert digest(info["trajectory"]) == digest(expected.trajectory)
    finally:
        env.close()


def test_every_task_has_an_id() -> None:
    assert all(gym.spec(env_id(task)).kwargs == {"task": task} for task in list_tasks())
    assert env_id("bundled/shop-open/200000/0") == "rollwright/bundled.shop-open.200000.0"
    assert "rollwright/tasks" in gym.registry


def test_the_space_of_texts_holds_any_text() -> None:
    space = AnyText(30)
    assert all(text in space for text in ("", "a b", "[1] “ü” 漢字 🙂\n", "x" * 30))
    assert not any(other in space for other in ("x" * 31, 1, None, b"a"))
    assert all(space.sample() in space for _ in range(50))
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space and space != AnyText(31) and space != gym.spaces.Text(30) and gym.spaces.Text(30) != space
    space.seed(3), copy.seed(3)
    assert space.sample() == copy.sample()


@pytest.mark.parametrize("options", [{}, {"screenshot": True}, {"mode": "set_of_marks", "render_mode": "rgb_array"}])
def test_gymnasiums_checker_has_nothing_to_say(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = made("miniwob/enter-text", **options)
        check_env(env.unwrapped)
        env.close()


def test_seeds_choose_pages_and_tasks(tmp_path: Path) -> None:
    env = RollwrightEnv(tasks=[web_task(task) for task in list(SCRIPTS)[:2]], pool=POOL)
    first = [env.reset(seed=1)[1], *(env.reset()[1] for _ in range(5))]
    again = [env.reset(seed=1)[1], *(env.reset()[1] for _ in range(5))]
    assert [info["observation"] for info in first] == [info["observation"] for info in again]
    assert {info["task"] for info in first} == set(list(SCRIPTS)[:2])
    assert len({info["seed"] for info in first}) > 3
    chosen = env.reset(seed=7, options={"task": "miniwob/enter-text"})[1]
    assert digest(chosen["observation"]) == reference("miniwob/enter-text").observations[0]
    with pytest.raises(ConfigError, match=r"options=\{'task': ID\}"):
        env.reset(options={"task": "miniwob/none"})
    held_out = RollwrightEnv("miniwob/click-test", split="held_out", pool=POOL)
    ranges = held_out.tasks["miniwob/click-test"].seeds
    assert ranges["held_out"].start <= held_out.reset(seed=10**9)[1]["seed"] < ranges["held_out"].stop
    env.close(), held_out.close()
    assert gym.make("rollwright/tasks", tasks=canary_file(tmp_path)).unwrapped.tasks == {CANARY.task_id: CANARY}


def test_what_cannot_be_made_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"either task= .* or tasks="):
        gym.make("rollwright/tasks")
    with pytest.raises(TaskError, match="no seeds of split='validation'"):
        RollwrightEnv(CANARY, split="validation")
    tasks = [web_task(task) for task in ("miniwob/click-test", "bundled/shop-open/200000/0")]
    with pytest.raises(ConfigError, match="viewports differ"):
        RollwrightEnv(tasks=tasks, screenshot=True)
    both = RollwrightEnv(tasks=tasks, screenshot=True, pool={"device": Device(width=400, height=300, scale=2)})
    assert both.observation_space["screenshot"].shape == (600, 800, 3)
    env = RollwrightEnv("miniwob/click-test", pool=POOL)
    with pytest.raises(TaskError, match=r"call reset\(\) first"):
        env.step("click [1]")
    with pytest.raises(ConfigError, match="an action is a text"):
        env.step(1)  # type: ignore[arg-type]
    env.close()


def test_limits_truncate_and_agents_terminate() -> None:
    def last(*texts: str, **options: Any) -> tuple[bool, bool, str]:
        env = RollwrightEnv("miniwob/enter-text", pool=POOL, **options)
        env.reset(seed=7)
        for text in texts:
            _, reward, terminated, truncated, info = env.step(text)
        env.close()
        assert not math.isnan(reward) and info["abstained"] is None and info["trajectory"] is not None
        return terminated, truncated, str(info["stop"])

    assert last("click [1]", horizon=1) == (False, True, "horizon")
    assert last(*["scroll down"] * 3, repeats=3, horizon=9) == (False, True, "repetition")
    assert last('{"action": "terminate"}') == (True, False, "terminated")
    assert last("no action at all", stop_on_invalid=True) == (True, False, "invalid_action")
    assert last("click [2]") == (True, False, "done")


def test_an_abstention_is_no_reward_of_zero() -> None:
    env = RollwrightEnv("miniwob/enter-text", pool=POOL)
    env.reset(seed=7)
    for pid in shared_host(**HOST).host.pool.browser_pids():
        os.kill(pid, signal.SIGKILL)
    observation, reward, terminated, truncated, info = env.step("click [1]")
    assert math.isnan(reward) and (terminated, truncated) == (False, True)
    assert info["abstained"] and info["stop"] in ("crash", "browser_error") and info["trajectory"].reward.score is None
    assert "without a reward" in observation["text"]
    assert digest(env.reset(seed=7)[1]["observation"]) == reference("miniwob/enter-text").observations[0]
    env.close()


def test_environments_share_nothing(tmp_path: Path) -> None:
    first, second = (gym.make("rollwright/tasks", tasks=canary_file(tmp_path), pool=POOL) for _ in range(2))
    assert "found: nothing" in first.reset()[1]["observation"].text
    first.step("click [1]")
    assert "cookie" in first.step('{"action": "refresh"}')[4]["observation"].text
    assert "found: nothing" in second.reset()[1]["observation"].text
    assert "found: nothing" in first.reset()[1]["observation"].text
    first.close(), second.close()


def test_a_forgotten_environment_gives_its_browser_back() -> None:
    options = {"max_sessions": 1, "lease_deadline": 5.0}
    for _ in range(3):
        RollwrightEnv("miniwob/click-test", pool=options).reset()
        gc.collect()
    env = RollwrightEnv("miniwob/click-test", pool=options)
    env.reset()
    env.close()
    RollwrightEnv("miniwob/click-test", pool=options).reset()


TEXTS = [
    ['type [1] "Nathalie"', "click [99]", "click [1]"],
    ["click [2]", "click [1]", "click [2]"],
    ["click [2]", "click [2]", "click [1]"],
    ["click [1]", "click [2]", "click [2]"],
    ["scroll down", "click [1]", "click [2]"],
    ["click [2]", "scroll down", "click [99]"],
]
VECTOR = {"task": "miniwob/enter-text", "horizon": 2, "pool": POOL}


def played(envs: Any) -> list[Any]:
    """Return what a vector environment gives for `TEXTS`; `DISABLED` has ended ones reset."""
    results = [envs.reset(seed=7), envs.reset(), envs.reset(seed=[7, None, 9])]
    for texts in TEXTS:
        results.append(envs.step(texts))
        over = results[-1][2] | results[-1][3]
        if over.any() and envs.autoreset_mode == AutoresetMode.DISABLED:
            results.append(envs.reset(options={"reset_mask": over}, seed=[3, 4, None]))
    results += [envs.call("render"), envs.metadata, envs.observation_space, envs.action_space, envs.np_random_seed]
    return results


def plain(value: Any) -> Any:
    """Nested results as values that compare with ``==``."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, [plain(item) for item in value])
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_vector_environment_gives_what_gymnasiums_gives(mode: AutoresetMode) -> None:
    ours = RollwrightVectorEnv(3, autoreset_mode=mode, **VECTOR)
    theirs = SyncVectorEnv([lambda: RollwrightEnv(**VECTOR)] * 3, autoreset_mode=mode)
    got, expected = played(ours), played(theirs)
    for step, (mine, gymnasiums) in enumerate(zip(got, expected, strict=True)):
        assert plain(mine) == plain(gymnasiums), step
    terminations, truncations = (
        [result[number] for result in got if isinstance(result, tuple) and len(result) == 5] for number in (2, 3)
    )
    assert np.any(terminations) and np.any(truncations), "the texts reach both ends"
    ours.close(), theirs.close()


def test_a_step_past_the_end_is_refused_before_anything_is_done() -> None:
    envs = RollwrightVectorEnv(2, autoreset_mode="Disabled", **VECTOR)
    envs.reset(seed=7)
    envs.step(["scroll down", "click [2]"])
    with pytest.raises(AssertionError, match=r"the episodes of \[1\] are over"):
        envs.step(["click [2]", "click [2]"])
    mask = np.array([False, True])
    envs.reset(options={"reset_mask": mask})
    assert envs.step(["click [2]", "click [1]"])[2].tolist() == [True, False]  # the first could still act
    envs.close()


def test_a_vectors_environments_act_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = gym.make_vec(f"envs.adapters.gymnasium:{env_id('miniwob/click-test')}", num_envs=4, pool=POOL)
    assert isinstance(envs.unwrapped, RollwrightVectorEnv)
    barrier, step = asyncio.Barrier(4), WebEnv.step

    async def together(self: WebEnv, action: Any) -> Any:
        async with asyncio.timeout(20):
            await barrier.wait()  # goes on when all four wait here
        return await step(self, action)

    envs.reset(seed=1)
    monkeypatch.setattr(WebEnv, "step", together)
    assert envs.step(["click [1]"] * 4)[1].tolist() == [1.0] * 4
    envs.close()


def test_one_environment_of_a_vector_may_abstain(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = RollwrightVectorEnv(2, **VECTOR)
    envs.reset(seed=7)
    step, broken = WebSession.step, envs.envs[1].seat.env

    async def fails(self: WebSession, *args: Any, **options: Any) -> Any:
        if broken is not None and self is broken._session:
            raise BrowserError("the browser is gone")
        return await step(self, *args, **options)

    monkeypatch.setattr(WebSession, "step", fails)
    _, rewards, terminations, truncations, infos = envs.step(["click [2]"] * 2)
    assert np.isnan(rewards).tolist() == [False, True]
    assert (terminations.tolist(), truncations.tolist()) == ([True, False], [False, True])
    assert infos["abstained"].tolist() == [None, "the browser is gone"]
    envs.close()


def test_an_error_leaves_nothing_behind() -> None:
    envs = RollwrightVectorEnv(2, **VECTOR)
    expected = envs.reset(seed=7)
    with pytest.raises(ConfigError, match="an action is a text"):
        envs.step(["click [1]", 2])
    assert plain(envs.reset(seed=7)) == plain(expected)
    with pytest.raises(ValueError, match="must match num_envs=2"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(TypeError, match=r"dtype=np\.bool_"):
        envs.reset(seed=8, options={"reset_mask": np.array([1, 1])})
    assert plain(envs.reset(seed=7)) == plain(expected)
    envs.close()


def test_gymnasiums_processes_play_too() -> None:
    expected = reference("miniwob/enter-text")
    make = [lambda: RollwrightEnv("miniwob/enter-text", pool={**POOL, "screenshots": True})] * 2
    parents = make[0]()
    parents.reset()  # forking beside running event loops is what users do
    with pytest.raises(ValueError, match="shared_memory=False") as refused:
        AsyncVectorEnv(make)
    assert "loses texts" in str(refused.value.__cause__)
    envs = AsyncVectorEnv(make, shared_memory=False)
    _, infos = envs.reset(seed=[expected.seed, 8])
    assert digest(infos["observation"][0]) == expected.observations[0] != digest(infos["observation"][1])
    for text in expected.texts:
        _, rewards, terminations, _, infos = envs.step([text, text])
    assert rewards[0] == expected.reward and terminations.tolist() == [True, True]
    assert digest(infos["trajectory"][0]) == digest(expected.trajectory)
    envs.close()
    parents.close()


def test_the_snippet_of_the_docs_runs() -> None:
    section = (Path(__file__).parents[3] / "docs/frameworks.md").read_text().partition("## Gymnasium")[2]
    snippet = section.split("```python\n")[1].split("```")[0]
    assert len(snippet.splitlines()) <= 12
    exec(snippet, {})
