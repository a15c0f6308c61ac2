"""verifiers' own `generate` and ``vf-eval`` play the tasks, with a model that follows scripts."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envs import StepRenderer
from tests.chat_endpoint import completion, endpoint

from .own_environment import ROOT, framework_python, framework_variables, run_in
from .reference import CANARY, SCRIPTS, digest, reference

pytestmark = pytest.mark.frameworks

PLAY = """
import asyncio, json, os, sys
from verifiers.legacy.types import ClientConfig
from envs.adapters.verifiers import load_environment
from tests.envs.adapters.reference import CANARY

address, cases = json.loads(sys.argv[1])

async def play(task, seed, killing):
    given = CANARY if task == CANARY.task_id else task
    env = load_environment([given], None if seed is None else [seed], screenshot=True)
    respond = env.env_response
    async def response(messages, state, **rest):
        if killing:
            for pid in env._host.host.pool.browser_pids():
                os.kill(pid, 9)
        return await respond(messages, state, **rest)
    env.env_response = response
    config = ClientConfig(api_base_url=address, api_key_var="KEY", client_type="openai_chat_completions")
    rows = env._get_eval_inputs(1, 2)
    outputs = (await env.generate(rows, client=config, model=task, state_columns=["info"]))["outputs"]
    assert not env._playing
    return outputs

async def main():
    return [await play(*case) for case in cases]

print(json.dumps(asyncio.run(main()), default=lambda value: value.model_dump()))
"""


WRITING = (None, ("click [1]", '{"action": "refresh"}', '{"action": "terminate"}'))
"""Script that writes the canary's stores and looks again."""


def says(body: dict[str, Any]) -> tuple[int, Any]:
    """A model that says the next text of the script with its name."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    return answering({**SCRIPTS, CANARY.task_id: WRITING}[body["model"]][1][turn])


def answering(text: str) -> tuple[int, Any]:
    """The whole answer with a text."""
    answer = completion(text)
    answer["choices"][0]["index"] = 0
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "usage": usage, **answer}


@pytest.fixture(scope="module")
def played() -> list[list[dict[str, Any]]]:
    """Two rollouts of each script, of the canary, and of one of which the browser was killed."""
    cases = [(task, seed, False) for task, (seed, _) in SCRIPTS.items()]
    cases += [(CANARY.task_id, None, False), ("miniwob/enter-text", 7, True)]
    with endpoint(says) as (address, _):
        rollouts: list[list[dict[str, Any]]] = run_in("verifiers", PLAY, json.dumps([address, cases]), KEY="none")
    assert [len(pair) for pair in rollouts] == [2] * len(cases)
    return rollouts


def shown(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Role and content of messages."""
    return [{key: message[key] for key in ("role", "content")} for message in messages]


@pytest.mark.parametrize(("number", "task"), enumerate(SCRIPTS))
def test_rollouts_are_the_reference(number: int, task: str, played: list[list[dict[str, Any]]]) -> None:
    expected, renderer = reference(task), StepRenderer(screenshot=True)
    for output in played[number]:
        assert output["reward"] == expected.reward and output["error"] is None
        assert output["metrics"]["steps"] == len(expected.texts) and output["metrics"]["abstained"] == 0
        first = renderer.user_message(expected.steps[0])
        assert shown(output["prompt"]) == [*renderer.system_messages(), first]
        pages = [message for message in shown(output["completion"]) if message["role"] == "user"]
        assert pages == [renderer.user_message(step) for step in expected.steps[1:]]
        assert digest(output["info"]["trajectory"]) == digest(expected.trajectory)


def test_rollouts_share_nothing(played: list[list[dict[str, Any]]]) -> None:
    """Both play at the same time, and write what the other one would find."""
    for output in played[-2]:
        pages = [message["content"][-1]["text"] for message in output["completion"] if message["role"] == "user"]
        assert "found: nothing" in output["prompt"][-1]["content"][-1]["text"]
        assert "cookie,local,session,name" in pages[1].replace("k=", "")


def test_an_abstention_is_an_error(played: list[list[dict[str, Any]]]) -> None:
    for output in played[-1]:
        assert output["error"]["error"] == "InfraError" and output["stop_condition"] == "has_error"
        assert output["metrics"]["abstained"] == 1 and output["info"]["trajectory"]["reward"]["score"] is None


def test_vf_eval_runs_the_environment(tmp_path: Path) -> None:
    expected = reference("miniwob/enter-text")
    (snippet,) = re.findall(r"^vf-eval envs.*?(?=\n```)", (ROOT / "docs" / "frameworks.md").read_text(), re.M | re.S)
    program, *options = shlex.split(snippet.replace("\\\n", ""))
    with endpoint(says) as (address, _):
        options[options.index("-m") + 1], options[options.index("-b") + 1] = expected.task, address
        command = [str(framework_python("verifiers").with_name(program)), *options]
        done = subprocess.run(
            [*command, "-k", "KEY", "-s", "-C", "info", "-o", str(tmp_path), "-d"],
            cwd=tmp_path,
            env={**framework_variables(), "KEY": "none"},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (results,) = tmp_path.rglob("results.jsonl")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["reward"] for row in rows] == [expected.reward] * 2
