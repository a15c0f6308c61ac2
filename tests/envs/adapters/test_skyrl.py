"""Episodes through skyrl-gym's own `make`, from the threads of a pool, and a generator that repeats
abstained ones."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import skyrl_gym
from skyrl_gym.metrics import aggregate_for_environment

from envs import SeedRange, Split, StepRenderer
from envs.adapters import close_hosts, shared_host
from envs.adapters.skyrl import LEASE_DEADLINE, AbstainedError, RepeatAbstained, SkyRLWebEnv, register
from envs.adapters.skyrl_dataset import save_dataset
from envs.sync import SyncWebEnv
from envs.tasks import save_tasks
from envs.types import BrowserError, ConfigError, TaskError

from .reference import CANARY, SCRIPTS, canary_file, digest, reference

CONFIG = {"screenshot": True, "max_sessions": 4}
KEYS = {"success", "reward", "steps", "errors", "ended", "abstained"}


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    register()
    register()  # does nothing
    yield
    close_hosts()


def make(**extras: Any) -> Any:
    return skyrl_gym.make("rollwright", env_config=CONFIG, extras=extras)


def page_of(message: dict[str, Any]) -> tuple[str, str]:
    """sha256 of the picture and the text of a user message."""
    assert message["role"] == "user"
    *pictures, text = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
    shown = [b64decode(one["image_url"]["url"].partition(",")[2]) for one in pictures]
    return (hashlib.sha256(b"".join(shown)).hexdigest(), text["text"])


def play(task: str, pool: ThreadPoolExecutor) -> Any:
    """Play a reference episode as SkyRL does: each call from a thread of its pool."""
    expected = reference(task)
    env = make(task=task, seed=expected.seed, max_turns=100)
    messages, info = pool.submit(env.init, [{"role": "user", "content": "…"}]).result()
    assert info == {} and [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"] == StepRenderer().system()
    outputs = [pool.submit(env.step, text).result() for text in expected.texts]
    metrics = env.get_metrics()
    pool.submit(env.close).result()
    pages = [page_of(message) for message in [messages[-1], *(one["observations"][0] for one in outputs)]]
    renderer = StepRenderer(screenshot=True)
    texts = [renderer.text(step) for step in expected.steps]
    assert pages == list(zip(expected.screenshots, texts, strict=True))
    assert [one["reward"] for one in outputs] == [step.reward for step in expected.steps[1:]]
    assert [one["done"] for one in outputs] == [step.done for step in expected.steps[1:]]
    assert digest(outputs[-1]["metadata"]["trajectory"]) == digest(expected.trajectory)
    assert metrics == {
        "success": expected.trajectory.reward.passed,
        "reward": expected.reward,
        "steps": len(expected.texts),
        "errors": sum(bool(step.observation.error) for step in expected.steps),
        "ended": True,
        "abstained": False,
    }
    return metrics


def test_episodes_from_threads_of_a_pool_are_the_reference() -> None:
    for task in SCRIPTS:
        reference(task)
    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(4) as players:
        metrics = list(players.map(play, SCRIPTS, [pool] * len(SCRIPTS)))
    averages = aggregate_for_environment("rollwright", metrics)
    rewards = [reference(task).reward for task in SCRIPTS]
    assert averages["reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert averages["episodes"] == averages["graded"] == len(SCRIPTS) and averages["abstained"] == 0.0


def test_two_episodes_share_no_store(tmp_path: Path) -> None:
    first, second = (make(task=CANARY.task_id, tasks=str(canary_file(tmp_path))) for _ in range(2))
    assert "found: nothing" in page_of(first.init([])[0][-1])[1]
    first.step("click [1]")
    again = first.step('{"action": "refresh"}')
    assert "cookie" in page_of(again["observations"][0])[1], "an episode must see its own marks"
    assert "found: nothing" in page_of(second.init([])[0][-1])[1]
    assert "found: nothing" in page_of(first.init([])[0][-1])[1], (
        "a new episode must not see the marks of the one before"
    )
    first.close()
    second.close()


def test_modes_turns_and_system_messages_are_the_caller_s() -> None:
    own = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "placeholder"}]
    with skyrl_gym.make("rollwright", extras={"task": "miniwob/enter-text", "seed": 7, "max_turns": 1}) as env:
        messages, _ = env.init(own)
        assert messages[0] == own[0] and len(messages) == 2 and isinstance(messages[1]["content"], str)
        assert env.get_metrics().keys() == KEYS and env.get_metrics()["ended"] is False
        output = env.step("click [1]")
        assert output["done"] and output["reward"] == 0.0 and output["metadata"]["stop"] == "horizon"
    marks = skyrl_gym.make("rollwright", env_config={"mode": "set_of_marks"}, extras={"task": "miniwob/click-test"})
    messages, _ = marks.init([])
    assert '"mark"' in messages[0]["content"] and messages[1]["content"][0]["type"] == "image_url"
    marks.close()


@pytest.mark.parametrize(
    ("config", "extras", "error", "said"),
    [
        ({}, {}, ConfigError, "task: Field required"),
        ({"mod": "text"}, {"task": "miniwob/click-test"}, ConfigError, "mod: Extra inputs"),
        ({"mode": "dreams"}, {"task": "miniwob/click-test"}, ConfigError, "mode: Input should be"),
        ({}, {"task": "miniwob/no-such"}, TaskError, "no task 'miniwob/no-such'"),
        ({}, {"task": "miniwob/click-test", "seed": 10**9}, TaskError, "seed 1000000000 is not one of"),
    ],
)
def test_wrong_options_are_refused(config: dict[str, Any], extras: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        skyrl_gym.make("rollwright", env_config=config, extras={**extras, "data_source": "kept apart"})
    with pytest.raises(TaskError, match="no episode"):
        make(task="miniwob/click-test").step("click [1]")


def test_a_killed_browser_is_an_error_and_no_reward() -> None:
    env = make(task="bundled/shop-open/200000/0")
    env.init([])
    host = shared_host(**StepRenderer(screenshot=True).pool_options, max_sessions=4, lease_deadline=LEASE_DEADLINE)
    os.kill(host.host.pool.browser_pids()[0], signal.SIGKILL)
    with pytest.raises(AbstainedError, match=r"bundled/shop-open/200000/0 \(seed 200000\) ended without a reward"):
        env.step("click [1]")
    metrics = env.get_metrics()
    assert metrics.keys() == KEYS and metrics["abstained"] and not metrics["success"]
    with pytest.raises(TaskError, match="no episode"):
        env.step("click [1]")
    graded = {**metrics, "success": True, "reward": 1.0, "abstained": False}
    averages = aggregate_for_environment("rollwright", [metrics, graded, {}])
    assert (averages["success"], averages["reward"], averages["abstained"]) == (1.0, 1.0, 0.5)
    assert "success" not in aggregate_for_environment("rollwright", [metrics]), "no average of nothing"


class Generator:
    """The calls of SkyRL's `SkyRLGymGenerator.agent_loop`, in its order, with texts for a model."""

    def __init__(self) -> None:
        self.env_executor = ThreadPoolExecutor(2)
        self.playing = self.most = 0

    async def agent_loop(self, prompt: Any, env_class: str, env_extras: dict[str, Any], max_tokens: int) -> Any:
        run, loop = self.env_executor, asyncio.get_running_loop()
        env_extras["max_turns"] = max_tokens
        env = skyrl_gym.make(env_class, env_config={}, extras=env_extras)
        self.playing += 1
        self.most = max(self.most, self.playing)
        try:
            await loop.run_in_executor(run, env.init, prompt)
            output, rewards = {"done": False}, []
            while not output["done"]:
                output = await loop.run_in_executor(run, env.step, "click [1]")
                rewards.append(output["reward"])
            metrics = env.get_metrics()
            await loop.run_in_executor(run, env.close)
            return rewards, metrics
        finally:
            self.playing -= 1


class WebGenerator(RepeatAbstained, Generator):
    max_sessions = 3


async def test_a_generator_plays_abstained_episodes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    played, fail = SyncWebEnv.step, iter([True, False, True])
    lost: list[str] = []

    def step(self: SyncWebEnv, action: Any) -> Any:
        if next(fail, False):
            lost.append(self.task.task_id)
            monkeypatch.setattr(self._env._session, "step", gone)  # as if its browser went away
        return played(self, action)

    async def gone(*_: Any) -> Any:
        raise BrowserError("Chromium went away")

    monkeypatch.setattr(SyncWebEnv, "step", step)
    generator, extras = WebGenerator(), {"task": "miniwob/click-test", "seed": 3}
    outputs = await asyncio.gather(*(generator.agent_loop([], "rollwright", extras, 5) for _ in range(8)))
    assert len(lost) == 2 and [rewards for rewards, _ in outputs] == [[1.0]] * 8
    assert generator.most == 3, "no more than there are sessions"
    assert extras == {"task": "miniwob/click-test", "seed": 3}, "siblings of a group share it"
    fail = iter([True] * 3)
    with pytest.raises(AbstainedError, match="Chromium went away"):
        await generator.agent_loop([], "rollwright", extras, 5)


def test_a_dataset_s_rows_are_played(tmp_path: Path) -> None:
    other = CANARY.model_copy(update={"task_id": "canary/test", "seeds": {Split.HELD_OUT: SeedRange(start=5, stop=6)}})
    save_tasks(tmp_path / "tasks.jsonl", [CANARY, other])
    save_tasks(tmp_path / "other.jsonl", [CANARY])
    assert save_dataset(tmp_path / "train.parquet", tmp_path / "tasks.jsonl", seeds=2) == 2
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert [(row["task"], row["seed"], row["env_class"]) for row in rows] == [
        ("canary/stores", 0, "rollwright"),
        ("canary/stores", 1, "rollwright"),
    ]
    row = rows[1]
    prompt, env_class = row.pop("prompt"), row.pop("env_class")  # as SkyRL's PromptDataset does
    assert prompt == [{"role": "user", "content": CANARY.instruction}]
    with skyrl_gym.make(env_class, extras=row) as env:
        assert isinstance(env, SkyRLWebEnv) and env.seed == 1
        assert "found: nothing" in env.init(prompt)[0][-1]["content"]
    assert save_dataset(tmp_path / "ids.parquet", ["miniwob/click-test"], split=Split.TRAIN) == 1
    with pytest.raises(TaskError, match="no task has seeds of the split"):
        save_dataset(tmp_path / "none.parquet", tmp_path / "other.jsonl", split=Split.HELD_OUT)


def test_the_snippet_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "frameworks.md").read_text()
    (snippet,) = re.findall(r"```python\n(import skyrl_gym.*?)```", page, re.DOTALL)
    assert len(snippet.splitlines()) <= 12
    exec(snippet, {})
    assert capsys.readouterr().out.startswith("1.0 True {'success': True")
