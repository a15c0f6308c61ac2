"""Agents of browser-use, LangGraph and AgentLab, as they are, play through the proxy's command.

Behind it is a server that answers as vLLM does, by rules. What is recorded is compared with what
that server was sent and answered.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from envs import EnvHost
from envs.adapters import close_hosts
from envs.adapters.browsergym import BrowserGymEnv
from envs.server.devtools import DevToolsFront
from envs.supply import DevToolsSupply
from training.ledger.store import write_json
from training.policy.renderer import Renderer
from training.proxy.join import main as join_command
from training.proxy.records import CallStore

from ...envs.adapters.json_lines import ask
from ...envs.adapters.own_environment import ROOT, framework_python
from ...envs.server.serving import listening, served
from ...loopback import serving
from ..serving_vllm.fake_vllm import fake
from .conftest import READER

pytestmark = pytest.mark.frameworks

CONTEXT = 32_768
"""browser-use asks for 4,096 tokens after some 26,000 of this tokenizer's."""
QUIET = {"ANONYMIZED_TELEMETRY": "false", "BROWSER_USE_CLOUD_SYNC": "false", "BROWSER_USE_VERSION_CHECK": "false"}


def browser_use_turn(prompt: str) -> str:
    """Fills the field that browser-use's page shows, submits, and is done when there is none."""
    page = prompt.rpartition("<browser_state>")[2].partition("</browser_state>")[0]
    field = re.search(r"\[(\d+)\]<input (.*?)/>", page)
    word = re.search(r"<span />\s+(\w+)", page)
    if not field or not word:
        action: dict[str, Any] = {"done": {"text": "It is sent.", "success": True}}
    elif f"value={word[1]}" in field[2]:
        (button,) = re.findall(r"\[(\d+)\]<button ", page)
        action = {"click": {"index": int(button)}}
    else:
        action = {"input": {"index": int(field[1]), "text": word[1]}}
    said = dict.fromkeys(("thinking", "evaluation_previous_goal", "memory", "next_goal"), "")
    return json.dumps({**said, "action": [action]})


def langgraph_turn(prompt: str) -> str:
    """Calls the tool for the same; says so when the task has ended."""
    if "The task has ended." in prompt:
        return "It is sent."
    (word,) = set(re.findall(r'Enter "(\w+)"', prompt))
    field, button = re.findall(r"\[(\d+)\] (?:textbox|button)", prompt)[-2:]
    action = f"click [{button}]" if "<tool_response>" in prompt.rpartition("user\n")[2] else f'type [{field}] "{word}"'
    return "<tool_call>\n" + json.dumps({"name": "browser", "arguments": {"action": action}}) + "\n</tool_call>"


def agentlab_turn(prompt: str) -> str:
    """Fills the field of the page that AgentLab's prompt shows, then submits."""
    ((field, value),) = re.findall(r"\[(\d+)\] textbox '[^']*'(?: value='([^']*)')?", prompt)
    (button,) = re.findall(r"\[(\d+)\] button 'Submit'", prompt)
    word = re.findall(r'Enter "(\w+)"', prompt)[0]
    action = f"click({button!r})" if value == word else f"fill({field!r}, {word!r})"
    return f"<think>It is next.</think>\n<action>\n{action}\n</action>"


RULES = {"<browser_state>": browser_use_turn, "# Action space": agentlab_turn, "": langgraph_turn}
"""Rules by what the prompt of their agent holds."""


@dataclass
class Recording:
    """The proxy's address and records, and the turns of the server behind it."""

    address: str
    store: CallStore
    turns: list[dict[str, Any]]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    root = tmp_path_factory.mktemp("foreign")
    renderer = Renderer(READER, "")
    turns: list[dict[str, Any]] = []

    def generated(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        jpegs = [base64.b64decode(part["url"].partition(",")[2]) for part in body["content_parts"]]
        sizes = renderer.image_inputs(jpegs)["image_grid_thw"].prod(1) // 4 if jpegs else []
        counts = [int(size) for size in sizes]
        ids, places = list[int](), list[dict[str, int]]()
        for token in body["token_ids"]:
            count = counts[len(places)] if token == renderer.image_token_id else 1
            if token == renderer.image_token_id:
                places.append({"offset": len(ids), "length": count})
            ids += [token] * count
        prompt = renderer.tokenizer.decode(body["token_ids"])
        rule = next(rule for mark, rule in RULES.items() if mark in prompt)
        answer = list(renderer.encode_response(rule(prompt)))
        logprobs = [-1 / (2 + place) for place in range(len(answer))]
        turns.append({"prompt_ids": ids, "response_ids": answer, "logprobs": logprobs, "jpegs": jpegs})
        choice = {
            "token_ids": answer,
            "logprobs": {"content": [{"token_id": t, "logprob": p} for t, p in zip(answer, logprobs, strict=True)]},
            "finish_reason": "stop",
            "weight_versions": [{"version": "3", "start": 0, "end": len(answer)}],
        }
        return 200, {"prompt_token_ids": ids, "mm_placeholders": {"image": places}, "choices": [choice]}

    command = [sys.executable, "-m", "training.proxy", "--checkpoint", str(READER), "--root", str(root)]
    with serving(fake(label="3", generated=staticmethod(generated), max_model_len=CONTEXT)) as server:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*command, "--server", server, "--port", "0", "--patience", "2"],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "the proxy listens at" in line)
            address = re.findall(r"http://127\.0\.0\.1:\d+", line)[0]
            yield Recording(address, CallStore(root), turns)
        finally:
            process.terminate()
            process.wait()
            process.stderr.close()


@pytest.fixture(scope="module")
async def sessions() -> AsyncIterator[str]:
    """The address of an environment server."""
    async with (
        EnvHost(max_sessions=2) as host,
        DevToolsSupply(host) as supply,
        served(host, fronts=[DevToolsFront(supply).routes]) as server,
        listening(server) as address,
    ):
        yield address


async def run_agent(framework: str, *arguments: str, **variables: str) -> Any:
    """The last line that an agent's program says, read as JSON."""
    python = str(framework_python(framework))
    program = str(Path(__file__).with_name(f"{framework}_agent.py"))
    process = await asyncio.create_subprocess_exec(
        python,
        program,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "", **variables},
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()[-3000:]
    return json.loads(out.decode().splitlines()[-1])


def joined_steps(recording: Recording, session: str, trajectory: dict[str, Any], folder: Path, extra: str) -> Any:
    """The stored trajectory of a session after the command ``training.proxy.join``."""
    write_json(folder / "episode.json", trajectory)
    arguments = [str(recording.store.run.root), session, str(folder / "episode.json"), "--extra", extra]
    assert join_command(arguments) == 0
    return recording.store.run.trajectory(session)


async def test_browser_use_plays_in_a_browser_of_the_server(
    recording: Recording, sessions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    framework_python("browser_use")
    session = "i000001-g0000-s00-a0"
    recording.turns.clear()
    async with httpx.AsyncClient(base_url=sessions, timeout=60) as server:
        asked = {"task": "miniwob/enter-text", "seed": 7, "session_id": "browser-use"}
        instruction = (await server.post("/sessions", json=asked)).json()["task"]["instruction"]
        (await server.post("/sessions/browser-use/reset", json={"epoch": 1})).raise_for_status()
        lent = (await server.post("/sessions/browser-use/devtools")).json()
        base_url = f"{recording.address}/sessions/{session}/v1"
        given = {**QUIET, "BROWSER_USE_CONFIG_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
        ran = await run_agent("browser_use", instruction or "Do the task.", lent["cdp_url"], base_url, **given)
        page = (await server.delete("/sessions/browser-use/devtools")).json()
        trajectory = (await server.get("/sessions/browser-use/trajectory")).json()
        await server.delete("/sessions/browser-use")
    assert ran == {"actions": ["input", "click", "done"], "errors": [None, None, None]}
    assert (page["done"], page["reward"], trajectory["steps"]) == (True, 1.0, [])

    write_json(tmp_path / "episode.json", trajectory)
    assert join_command([str(recording.store.run.root), session, str(tmp_path / "episode.json")]) == 2
    assert "if the agent acted over a DevTools address, use extra=all" in capsys.readouterr().err
    joined = joined_steps(recording, session, trajectory, tmp_path, "all")
    assert joined.reward.score == 1.0 and len(recording.turns) == len(joined.steps) == 3
    for step, turn in zip(joined.steps, recording.turns, strict=True):
        assert [*step.prompt_ids] == turn["prompt_ids"] and [*step.response_ids] == turn["response_ids"]
        assert [*step.logprobs] == turn["logprobs"] and step.policy_version == 3
        assert [recording.store.run.blob(name) for name in step.pictures] == turn["jpegs"]
    assert len(recording.turns[1]["jpegs"]) == 1


async def test_a_langgraph_agent_plays_by_tools(
    recording: Recording, sessions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    framework_python("langgraph")
    session = "i000001-g0001-s00-a0"
    recording.turns.clear()
    async with httpx.AsyncClient(base_url=sessions, timeout=60) as server:
        asked = {"task": "miniwob/enter-text", "seed": 7, "session_id": "langgraph"}
        (await server.post("/sessions", json=asked)).raise_for_status()
        base_url = f"{recording.address}/sessions/{session}/v1"
        ran = await run_agent("langgraph", f"{sessions}/sessions/langgraph", base_url)
        trajectory = (await server.get("/sessions/langgraph/trajectory")).json()
        await server.delete("/sessions/langgraph")
    assert ran == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert [step["response"] for step in trajectory["steps"]] == ['type [1] "Nathalie"', "click [2]"]

    joined = joined_steps(recording, session, trajectory, tmp_path, "drop")
    assert "2 steps of 3 calls (2 action, 1 extra, 0 retry, 0 cut_off)" in (printed := capsys.readouterr().out)
    assert "growing sequences: 0, 1, 2. Alone: none" in printed
    assert joined.reward.score == 1.0 and [step.action.type for step in joined.steps] == ["type", "click"]
    for step, turn in zip(joined.steps, recording.turns[:2], strict=True):
        assert [*step.prompt_ids] == turn["prompt_ids"] and [*step.response_ids] == turn["response_ids"]
        assert [*step.logprobs] == turn["logprobs"]


async def test_agents_at_once_are_not_mixed_and_a_mixture_is_seen(
    recording: Recording, sessions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two agents type different words; then both speak in one session, as if it were not kept
    apart."""
    framework_python("langgraph")

    async def play(number: int, session: str) -> Any:
        async with httpx.AsyncClient(base_url=sessions, timeout=60) as server:
            opened = (await server.post("/sessions", json={"task": "miniwob/enter-text", "seed": number})).json()
            name = opened["session_id"]
            await run_agent("langgraph", f"{sessions}/sessions/{name}", f"{recording.address}/sessions/{session}/v1")
            trajectory = (await server.get(f"/sessions/{name}/trajectory")).json()
            await server.delete(f"/sessions/{name}")
        return trajectory

    apart = ["i000002-g0000-s00-a0", "i000002-g0001-s00-a0"]
    own = await asyncio.gather(*(play(7 + number, session) for number, session in enumerate(apart)))
    words = [trajectory["steps"][0]["action"]["text"] for trajectory in own]
    assert words[0] != words[1]
    for number, session in enumerate(apart):
        calls = recording.store.calls(session)
        assert len(calls) == 3 and words[number] in str(calls) and words[1 - number] not in str(calls)
        write_json(tmp_path / "other.json", own[1 - number])
        arguments = [str(recording.store.run.root), session, str(tmp_path / "other.json"), "--extra", "drop"]
        assert join_command(arguments) == 2
        assert "no call" in capsys.readouterr().err
        assert joined_steps(recording, session, own[number], tmp_path, "drop").reward.score == 1.0

    mixed = "i000002-g0002-s00-a0"
    both = await asyncio.gather(*(play(7 + number, mixed) for number in range(2)))
    assert len(recording.store.calls(mixed)) == 6
    write_json(tmp_path / "mixed.json", both[0])
    assert join_command([str(recording.store.run.root), mixed, str(tmp_path / "mixed.json")]) == 2
    assert "decided no step" in capsys.readouterr().err


def test_agentlabs_generic_agent_plays_in_browsergyms_shape(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python, program = framework_python("browsergym"), ROOT / "tests/envs/adapters/generic_agent.py"
    session = "i000001-g0002-s00-a0"
    recording.turns.clear()
    reached = {"OPENAI_BASE_URL": f"{recording.address}/sessions/{session}/v1", "OPENAI_API_KEY": "none"}
    variables = {**os.environ, **reached, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    env = BrowserGymEnv("miniwob/enter-text")
    try:
        observation, _ = env.reset(seed=7)
        with subprocess.Popen([str(python), str(program), "policy"], text=True, env=variables, **pipes) as agent:
            assert agent.stdin is not None and agent.stdout is not None
            agent.stdout.readline()  # what its action set is
            terminated, actions = False, list[str]()
            try:
                while not terminated:
                    actions.append(ask(agent, observation)["action"])
                    observation, reward, terminated, truncated, info = env.step(actions[-1])
                    assert not truncated and observation["last_action_error"] == ""
            finally:
                agent.kill()
    finally:
        env.close()
        close_hosts()
    assert (actions, reward) == (["fill('1', 'Nathalie')", "click('2')"], 1.0)

    trajectory = info["trajectory"].model_dump(mode="json")
    joined = joined_steps(recording, session, trajectory, tmp_path, "refuse")
    assert "2 steps of 2 calls (2 action, 0 extra, 0 retry, 0 cut_off)" in capsys.readouterr().out
    assert joined.reward.score == 1.0 and [step.action.type for step in joined.steps] == ["type", "click"]
    for step, turn in zip(joined.steps, recording.turns, strict=True):
        assert [*step.prompt_ids] == turn["prompt_ids"] and [*step.response_ids] == turn["response_ids"]
        assert [*step.logprobs] == turn["logprobs"] and len(turn["jpegs"]) == 1
        assert [recording.store.run.blob(name) for name in step.pictures] == turn["jpegs"]
