"""CUBE's own runner of episodes plays the tasks, in an environment of its own (Python 3.12)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from envs import StepRenderer
from envs.actions.parsing import parse
from envs.types.actions import ACTIONS

from .own_environment import ROOT, run_in
from .reference import SCRIPTS, digest, reference
from .test_mcp import without_turns

pytestmark = pytest.mark.frameworks

PLAY = """
import json, os, sys
from cube.core import Action
from cube.task import TaskMetadata
from cube.testing import run_debug_episode
from envs.adapters.cube import CubeTaskConfig, CubeToolConfig
from envs.adapters.shared_host import close_hosts, shared_host
from tests.envs.adapters.reference import CANARY

def task_of(task_id, seed=None, **options):
    options = {"screenshot": True, **options}
    config = CubeTaskConfig(metadata=TaskMetadata(id=task_id), seed=seed, tool_config=CubeToolConfig(**options))
    return CubeTaskConfig.model_validate_json(config.model_dump_json()).make()

out = {"played": []}
for task_id, seed, actions in json.loads(sys.argv[1]):
    task, pages, left = task_of(task_id, seed), [], iter(actions)
    def agent(observation, action_set):
        pages.append(observation)
        return Action(name="browser", arguments=next(left))
    report = run_debug_episode(task, agent)
    info = task.evaluate()[1]
    texts = [[content.data for content in page.contents if isinstance(content.data, str)] for page in pages]
    pictures = [[content.data.size for content in page.contents if not isinstance(content.data, str)] for page in pages]
    out["played"].append({"report": report, "texts": texts, "pictures": pictures, "info": info})

one, two = task_of("c", task=CANARY), task_of("c", task=CANARY)
one.reset(), two.reset()
one.step(Action(name="browser", arguments={"action": "click", "element": 1}))
again = one.step(Action(name="browser", arguments={"action": "refresh"}))
out["canary"] = [again.obs.contents[-1].data, two.tool.observation().contents[-1].data]
one.close(), two.close()

two = task_of("miniwob/enter-text", 7)
two.reset()
missing = two.step(Action(name="browser", arguments={"action": "click", "element": 99}))
out["missing"] = [missing.done, missing.error.exception_str, missing.obs.contents[-1].data]
stopped = two.step(Action(name="final_step"))
out["stopped"] = [stopped.done, stopped.info["stop"]]
late = Action(name="browser", arguments={"action": "wait"})
out["late"] = [two.step(late).error.exception_str]
out["schema"] = [schema.name for schema in two.action_set]
two.close()
out["late"].append(two.tool.execute_action(late).error.exception_str)

task = task_of("miniwob/enter-text", 7)
def killing(observation, action_set):
    host = shared_host(**task.tool.renderer.pool_options, max_sessions=16)
    for pid in host.host.pool.browser_pids():
        os.kill(pid, 9)
    return Action(name="browser", arguments={"action": "click", "element": 2})
out["abstained"] = run_debug_episode(task, killing)
close_hosts()
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def out() -> dict[str, Any]:
    """What CUBE's runner reported of each script, and of what else is tested."""
    cases = []
    for task, (seed, texts) in SCRIPTS.items():
        actions = [parse(text, ACTIONS).action.model_dump(mode="json") for text in texts]
        cases.append([task, seed, [{"action": one.pop("type"), **one} for one in actions]])
    answers: dict[str, Any] = run_in("cube", PLAY, json.dumps(cases))
    return answers


@pytest.mark.parametrize(("number", "task"), enumerate(SCRIPTS))
def test_an_episode_is_the_reference(number: int, task: str, out: dict[str, Any]) -> None:
    expected, played = reference(task), out["played"][number]
    report = played["report"]
    assert report["error"] is None and report["tools_list_ok"] and report["close_idempotent_ok"]
    assert (report["done"], report["reward"], report["steps"]) == (True, expected.reward, len(expected.texts))
    assert played["texts"] == [[StepRenderer().text(step)] for step in expected.steps[:-1]]
    assert [len(pictures) for pictures in played["pictures"]] == [1] * (len(expected.steps) - 1)
    assert digest(without_turns(played["info"]["trajectory"])) == digest(
        without_turns(expected.trajectory.model_dump(mode="json"))
    )


def test_two_tasks_share_nothing(out: dict[str, Any]) -> None:
    first, second = out["canary"]
    assert "cookie,local,session,name" in first.replace("k=", "") and "found: nothing" in second


def test_an_action_that_was_not_carried_out_is_an_error_of_its_step(out: dict[str, Any]) -> None:
    done, reason, page = out["missing"]
    assert not done and "99" in reason and f"Error: {reason}" in page


def test_the_final_step_ends_the_episode(out: dict[str, Any]) -> None:
    assert out["schema"] == ["browser", "final_step"] and out["stopped"] == [True, "terminated"]
    assert "the episode is over" in out["late"][0] and "is closed" in out["late"][1]


def test_an_abstention_is_an_error_of_the_episode(out: dict[str, Any]) -> None:
    assert "BrowserError: the episode has no reward" in out["abstained"]["error"] and not out["abstained"]["done"]


def test_the_example_of_the_page() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (snippet,) = re.findall(r"```py\n(from cube.core .*?)```", page, re.DOTALL)
    ending = "from envs.adapters import close_hosts\nclose_hosts()\nprint([int(out.done), out.reward])"
    assert run_in("cube", f"{snippet}\n{ending}") == [1, 1.0]
