"""NeMo-Gym's real server classes and its session contract, in an environment of its own."""

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
from unittest.mock import MagicMock
from fastapi.testclient import TestClient
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.server_utils import ServerClient
from nemo_gym.testing.session_conformance import check_resources_session_contract
from envs.adapters.nemo_gym import WebResourcesServer, WebResourcesServerConfig, dataset_rows
from tests.envs.adapters.reference import CANARY

config = WebResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="", name="web", max_sessions=3)
server = WebResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))
app = server.setup_webserver()

def client(task, seed):
    one = TestClient(app)
    answer = one.post("/seed_session", json={"task": task, "seed": seed})
    assert answer.status_code == 200, answer.text
    return one

def verified(one, task, seed, text=""):
    (row,) = dataset_rows([task], [seed])
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed",
               "content": [{"type": "output_text", "text": text, "annotations": []}]}
    response = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [message] if text else [],
                "parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    answer = one.post("/verify", json={**row, "response": response})
    assert answer.status_code == 200, answer.text
    return answer.json()

out = {"played": []}
for task, seed, actions in json.loads(sys.argv[1]):
    one = client(task, seed)
    pages = [one.post("/snapshot", json={}).text]
    pages += [one.post("/browser", json=action).text for action in actions]
    out["played"].append({"pages": pages, "late": one.post("/browser", json={"action": "wait"}).status_code,
                          "verified": verified(one, task, seed)})
out["left"] = len(server._table)

one, two = client(CANARY.model_dump(mode="json"), None), client(CANARY.model_dump(mode="json"), None)
one.post("/browser", json={"action": "click", "element": 1})
out["canary"] = [one.post("/browser", json={"action": "refresh"}).text, two.post("/snapshot", json={}).text]
out["answer"] = verified(two, "miniwob/enter-text", 7, "nothing")
out["again"] = verified(two, "miniwob/enter-text", 7)
verified(one, "miniwob/enter-text", 7)

one = client("miniwob/enter-text", 7)
for pid in server._host.host.pool.browser_pids():
    os.kill(pid, 9)
one.post("/browser", json={"action": "click", "element": 2})
out["abstained"] = verified(one, "miniwob/enter-text", 7)
out["unknown"] = TestClient(app).post("/seed_session", json={"task": "miniwob/enter-txt"}).text

seed = ResourcesSeedSessionRequest(
    resources_session_id="s1", episode_id={"rollout_id": "r"}, task_id={"taskset": "web", "task_id": "1"},
    task_data={"task": "miniwob/enter-text", "seed": 7})
check_resources_session_contract(app, seed, keeps_state=True)
out["contract"] = True
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def out() -> dict[str, Any]:
    """What the server answered: to each script, and to what else is tested."""
    cases = []
    for task, (seed, texts) in SCRIPTS.items():
        actions = [parse(text, ACTIONS).action.model_dump(mode="json") for text in texts]
        cases.append([task, seed, [{"action": one.pop("type"), **one} for one in actions]])
    answers: dict[str, Any] = run_in("nemo_gym", PLAY, json.dumps(cases))
    return answers


def without_pictures(trajectory: dict[str, Any]) -> dict[str, Any]:
    """A record without the words of the model and without pictures: a text agent sees none."""
    record = {**without_turns(trajectory), "final_screenshot": ""}
    return {**record, "steps": [{**step, "screenshot": ""} for step in record["steps"]]}


@pytest.mark.parametrize(("number", "task"), enumerate(SCRIPTS))
def test_an_episode_is_the_reference(number: int, task: str, out: dict[str, Any]) -> None:
    expected, played = reference(task), out["played"][number]
    assert played["pages"] == [StepRenderer().text(step) for step in expected.steps]
    verified = played["verified"]
    assert (verified["reward"], verified["mask_sample"]) == (expected.reward, False)
    assert digest(without_pictures(verified["trajectory"])) == digest(
        without_pictures(expected.trajectory.model_dump(mode="json"))
    )
    assert played["late"] == 422 and out["left"] == 0


def test_sessions_share_nothing(out: dict[str, Any]) -> None:
    first, second = out["canary"]
    assert "cookie,local,session,name" in first.replace("k=", "") and "found: nothing" in second


def test_the_last_message_is_the_answer(out: dict[str, Any]) -> None:
    assert (out["answer"]["stop"], out["answer"]["trajectory"]["answer"]) == ("answer", "nothing")


def test_what_was_not_measured_is_masked(out: dict[str, Any]) -> None:
    for verified, kind in [(out["abstained"], "provider_unavailable"), (out["again"], "session_lost")]:
        assert verified["mask_sample"] and verified["failure_kind"] == kind and verified["failure_reason"]
    assert out["abstained"]["trajectory"]["reward"]["score"] is None


def test_their_session_contract_holds(out: dict[str, Any]) -> None:
    assert out["contract"] and "enter-text" in out["unknown"]


def test_the_rows_of_the_page() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (snippet,) = re.findall(r"```py\n(from envs.adapters.nemo_gym .*?)```", page, re.DOTALL)
    rows = run_in("nemo_gym", f"import json\n{snippet}\nprint(json.dumps(rows))")
    assert [(row["task"], row["seed"]) for row in rows] == [("miniwob/enter-text", 7), ("miniwob/enter-text", 8)]
    assert [tool["name"] for tool in rows[0]["responses_create_params"]["tools"]] == ["snapshot", "browser"]
