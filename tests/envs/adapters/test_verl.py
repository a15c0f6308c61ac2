"""The verl adapters under verl's own agent loops, tool registry and token builders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from ...training.vision_models import make_checkpoint
from .overlay import ROOT, run_with_overlay
from .reference import SCRIPTS, digest, reference, without_texts

pytestmark = pytest.mark.frameworks

SHOP = "bundled/shop-open/200000/0"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `verl_loops` prints."""
    checkpoint = make_checkpoint("qwen3_vl", tmp_path_factory.mktemp("qwen3_vl") / "checkpoint")
    return run_with_overlay("verl", "verl_loops", str(checkpoint))


@pytest.mark.parametrize("task", SCRIPTS)
def test_an_episode_of_tool_calls_is_the_reference(task: str, found: Any) -> None:
    expected = reference(task)
    first, *calls = found["calls"]["episodes"][task]
    assert len(calls) == len(expected.texts)
    for call, step in zip([first, *calls], expected.steps, strict=True):
        assert f"Task: {step.observation.instruction}" in call["text"]
        for element in step.observation.elements:
            assert f"[{element.index}] " in call["text"]
        assert bool(call["images"]) == bool(step.screenshot)
    assert [call["reward"] for call in calls] == [0.0] * (len(calls) - 1) + [expected.reward]
    assert calls[-1]["abstained"] == "" and calls[-1]["score"] == {"score": expected.reward, "abstained": 0.0}
    assert calls[-1]["trajectory"] == digest(without_texts(expected.trajectory))


def test_calls_that_do_not_go_on_say_so(found: Any) -> None:
    calls = found["calls"]
    assert calls["after the end"]["text"].startswith("The episode is over") and calls["after the end"]["reward"] == 0.0
    shown, *wrong = calls["no object"]
    assert "Error:" not in shown["text"] and all("Error:" in call["text"] for call in wrong)
    assert "create_kwargs.task" in calls["no task"]
    killed = calls["killed"]
    assert killed["reward"] is None and killed["abstained"] and "without a reward" in killed["text"]
    assert killed["score"]["abstained"] == 1.0
    properties = calls["schema"]["function"]["parameters"]["properties"]
    assert calls["schema"]["function"]["name"] == "step_browser" and properties["element"]["type"] == "integer"
    assert {schema["type"] for schema in properties.values()} <= {"integer", "number", "string", "boolean"}


def test_an_instance_without_a_trajectory_has_its_own_session(found: Any) -> None:
    first, second, reward, again = found["calls"]["instance"]
    assert "Page:" in first and "The episode is over" in second and reward == again and reward is not None
    assert found["calls"]["released"]


def test_sessions_share_nothing(found: Any) -> None:
    first, written, second = found["canary"]
    assert "found: nothing" in first and "found: nothing" in second
    assert "cookie,local,session,name" in written.replace("k=", "")
    reader, writer = found["loop canary"]
    assert reader.count("found: nothing") == reader.count("found: ") == 2
    assert "found: k=cookie,local,session,name" in writer, "an episode must see its own marks"


def test_verls_own_loop_plays_to_the_reward(found: Any) -> None:
    loop = found["tool loop"]
    assert loop["rewards"] == [0.0] * len(SCRIPTS[SHOP][1]) + [reference(SHOP).reward]
    assert loop["abstained"] == "" and loop["trained"] == loop["sampled"] > 0


@pytest.mark.parametrize("task", SCRIPTS)
def test_an_episode_of_our_loop_is_the_reference(task: str, found: Any) -> None:
    expected, played = reference(task), found["loop"][task]
    assert played["reward"] == expected.reward and played["abstained"] == ""
    assert played["trajectory"] == digest(expected.trajectory)
    assert played["kept"] and played["trained"] == played["sampled"], "sampled ids are kept, and trained on alone"
    assert len(set(played["lengths"])) == 1
    assert played["images"] == sum(bool(step.screenshot) for step in expected.steps[:-1])


def test_an_abstention_is_played_again_or_not_trained_on(found: Any) -> None:
    loop: Callable[[str], Any] = found["loop"].__getitem__
    assert loop("text")["attempts"] == 1 and loop("text")["kept"]
    assert loop("retried")["attempts"] == 2
    assert loop("retried")["reward"] == reference(SHOP).reward and loop("retried")["abstained"] == ""
    for name in ("lost", "too long"):
        assert loop(name)["abstained"] and loop(name)["reward"] == 0.0
        assert loop(name)["sampled"] > 0 and loop(name)["trained"] == 0


def test_verls_worker_plays_the_row_of_the_page_by_our_yaml_files(found: Any) -> None:
    worker = found["worker"]
    file = yaml.safe_load((ROOT / "deployments/frameworks/verl_loop.yaml").read_text())
    assert [worker["loaded"]] == file and file[0]["_target_"] == "envs.adapters.verl_loop.BrowserAgentLoop"
    loop, tool = worker["rollwright"], worker["tool_agent"]
    assert (loop["score"], loop["abstained"]) == (1.0, "")
    assert (tool["tool_rewards"], tool["abstained"]) == ([0.0, 1.0], "")
    assert loop["trained"] == loop["sampled"] > 0 and tool["trained"] == tool["sampled"] > 0
