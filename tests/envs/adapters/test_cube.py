"""CUBE's own runner of episodes plays the tasks, in an environment of its own (Python 3.12)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from envs import StepRenderer, list_tasks
from envs.actions.parsing import parse
from envs.registry import families
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


SUITE = """
import json, sys
from types import SimpleNamespace
from cube.core import Action
from cube.seed import AbstractSeedGenerator
from cube.testing import check_benchmark_metadata, check_reset_reproducibility, run_debug_suite
from envs.adapters.cube import CubeToolConfig
from envs.adapters.cube_benchmark import CubeBenchmarkConfig
from envs import list_tasks

cases = {task_id: (seed, actions) for task_id, seed, actions in json.loads(sys.argv[1])}

class ScriptSeeds(AbstractSeedGenerator):
    def __call__(self, task_metadata):
        yield cases[task_metadata.id][0]

def agent_of(task_id):
    left = iter(cases[task_id][1])
    return lambda observation, action_set: Action(name="browser", arguments=next(left))

whole = CubeBenchmarkConfig(tool_config=CubeToolConfig(screenshot=True), seed_generator=ScriptSeeds())
again = CubeBenchmarkConfig.model_validate_json(whole.model_dump_json(exclude={"seed_generator"}))
subset = whole.subset_from_list(list(cases))
module = SimpleNamespace(get_debug_benchmark=lambda: subset, make_debug_agent=agent_of)
out = {
    "listed": list(again.tasks()) == list_tasks() and again.num_tasks == again.benchmark_metadata.num_tasks,
    "families": {name: whole.named_subset(name).num_tasks for name in whole.named_subsets()},
    "reports": run_debug_suite("rollwright", module, print_json=False, workers=2),
    "checks": [check_benchmark_metadata(module), check_reset_reproducibility(module)],
}
with whole.subset_from_list(["miniwob/click-test"]).make() as benchmark:
    try:
        benchmark.spawn(next(iter(whole.subset_from_list(["miniwob/enter-text"]).get_task_configs())))
    except ValueError as error:
        out["foreign"] = str(error)
print(json.dumps(out))
"""


def test_the_benchmark_layer_lists_and_runs_all_tasks() -> None:
    found = run_in("cube", SUITE, json.dumps(script_cases()))
    assert found["listed"]
    assert found["families"] == {family: len(list_tasks(family)) for family in families()}
    assert {"miniwob", "bundled", "design2code", "oscar", "trac"} <= set(found["families"])
    assert "not found in benchmark 'rollwright'" in found["foreign"]
    assert [report["error"] for report in found["reports"]] == [None] * len(SCRIPTS)
    assert {report["task_id"]: (report["done"], report["reward"]) for report in found["reports"]} == {
        task: (True, reference(task).reward) for task in SCRIPTS
    }
    assert [check[0] for check in found["checks"]] == [True, True], found["checks"]


def script_cases() -> list[Any]:
    """Task, seed and CUBE's arguments of each action of the scripts."""
    cases = []
    for task, (seed, texts) in SCRIPTS.items():
        actions = [parse(text, ACTIONS).action.model_dump(mode="json") for text in texts]
        cases.append([task, seed, [{"action": one.pop("type"), **one} for one in actions]])
    return cases


@pytest.fixture(scope="module")
def out() -> dict[str, Any]:
    """What CUBE's runner reported of each script, and of what else is tested."""
    answers: dict[str, Any] = run_in("cube", PLAY, json.dumps(script_cases()))
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
