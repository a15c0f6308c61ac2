"""NeMo-Gym's rollout collection plays our episodes: its simple agent, its model server, a script
for a model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from envs import StepRenderer
from envs.actions.parsing import parse
from envs.types.actions import ACTIONS

from ...chat_endpoint import endpoint
from .own_environment import run_in
from .reference import SCRIPTS, digest, reference
from .test_nemo_gym import without_pictures

pytestmark = pytest.mark.frameworks

TASKS = ("miniwob/enter-text", "bundled/shop-open/200000/0")
PROGRAM = "import sys; from tests.envs.adapters.nemo_gym_rollouts import main; main(*sys.argv[1:])"


def calls_of(task: str) -> list[tuple[str, dict[str, Any]]]:
    """The tool calls of a task's script, after a look at the page."""
    actions = [parse(text, ACTIONS).action.model_dump(mode="json") for text in SCRIPTS[task][1]]
    return [("snapshot", {}), *(("browser", {"action": one.pop("type"), **one}) for one in actions)]


def says(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Plays the script of the task that the first page shows, then says that it is done."""
    pages = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
    task = TASKS[bool(pages) and "Zephra" in pages[0]]
    calls = calls_of(task)
    if len(pages) < len(calls):
        name, arguments = calls[len(pages)]
        call = {"id": f"f{len(pages)}", "call_id": f"c{len(pages)}", "name": name, "arguments": json.dumps(arguments)}
        output = {"type": "function_call", "status": "completed", **call}
    else:
        text = {"type": "output_text", "text": "It is done.", "annotations": []}
        output = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    answer = {"id": f"r{len(pages)}", "object": "response", "created_at": 1, "model": "policy", "output": [output]}
    return 200, {**answer, "parallel_tool_calls": False, "tool_choice": "auto", "tools": []}


def test_their_collection_writes_the_reference(tmp_path: Path) -> None:
    given = json.dumps([(task, SCRIPTS[task][0]) for task in TASKS])
    with endpoint(says) as (address, _):
        run_in("nemo_gym", PROGRAM, address, given, str(tmp_path), timeout=100)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert Counter(record["_ng_task_index"] for record in records) == {0: 2, 1: 2}
    for record in records:
        expected = reference(TASKS[record["_ng_task_index"]])
        assert (record["reward"], record["mask_sample"]) == (expected.reward, False)
        assert digest(without_pictures(record["trajectory"])) == digest(
            without_pictures(expected.trajectory.model_dump(mode="json"))
        )
        pages = [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]
        assert pages[:-1] == [StepRenderer().text(step) for step in expected.steps[:-1]]
    (metrics,) = json.loads((tmp_path / "out_aggregate_metrics.json").read_text())
    assert metrics["agent_metrics"]["mean/reward"] == 1.0
