"""A teacher behind a chat-completions endpoint plays demonstrations, which are cloned as an
oracle's are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envs.actions import parse
from envs.chat import CallFailed
from envs.types import ConfigError, EngineError, PolicyError, Split
from tasks_lib.config import TeacherConfig, WarmStartConfig, resolve, resolve_path
from tasks_lib.folder.task_sets import select_kinds
from tasks_lib.preflight.flows import check_warm_start
from tasks_lib.rollouts.evaluation import evaluation_groups
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.warm_start.stages import select_demonstrable
from tasks_lib.worker.rollout_worker import RolloutWorker
from tasks_lib.worker.teacher import TeacherClient, read_answer
from tests.chat_endpoint import completion, endpoint
from training.config import AlgorithmConfig
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.policy.renderer import Renderer
from training.records.batches import build_batch
from training.trainer.rows import read_rows

KEY, SECRET = "ROLLWRIGHT_TEST_TEACHER_KEY", "sk-not-to-be-seen"
READER = Path("datasets/policies/reader")


def click_what_is_named(body: dict[str, Any]) -> tuple[int, Any]:
    """Does click-test-2 from the text of the last message, as a model that was told the form of
    answers would."""
    text = body["messages"][-1]["content"][-1]["text"]
    wanted = re.search(r"Task: Click button (\w+)", text)
    assert wanted is not None, text
    number = re.search(rf'\[(\d+)\] button "{wanted[1]}"', text)
    assert number is not None, text
    call = json.dumps({"name": "browser", "arguments": {"action": "click", "element": int(number[1])}})
    return 200, completion(f"<think>It is there.</think>\nAction: Click it.\n<tool_call>\n{call}\n</tool_call>")


@pytest.mark.parametrize("prompt", ["plain", "vanilla"])
def test_a_teachers_successes_become_rows_of_the_student(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    with endpoint(click_what_is_named) as (address, served):
        values = {"run_id": "taught", "policy": {"prompt": prompt, "template": "qwen2_vl"}}
        values["teacher"] = {"address": address, "model": "big", "api_key": KEY}
        config: WarmStartConfig = resolve(WarmStartConfig, values)
        store = RunStore(tmp_path)
        store.publish_policy(0, resolve_path(str(READER)), {})
        tasks = select_kinds(resolve_path(config.tasks.file), ["click-test-2"])
        groups = evaluation_groups(tasks, phase="i000000", episodes=2, split=Split.DEMO)
        rollouts = Rollouts(store, config.policy, config.rollout, seed=0, teacher=config.teacher)
        worker = RolloutWorker(None)
        worker.setup(None)
        try:
            worker.roll_out(rollouts.request(groups, 0, "teacher"))
        finally:
            worker.teardown(None)
    episodes = [read_group(store, group.group_id).episodes for group in groups]
    assert [one.passed for group in episodes for one in group] == [True, True]
    rows = read_rows(store, build_batch(1, episodes, AlgorithmConfig(name="filtered_bc")))
    assert len(rows) == len(served.asked) == 2
    renderer = Renderer(READER, "qwen2_vl")
    said = [renderer.decode(row.response_ids) for row in rows]
    for text in said:
        assert re.fullmatch(r"click \[\d+\]", text) if prompt == "plain" else text.startswith("<think>It is there.")
    assert all(row.response_ids[-1] == renderer.tokenizer.eos_token_id for row in rows)
    for body in served.asked:  # what the policy sees, its screenshot first
        *_, (first, last) = (message["content"] for message in body["messages"])
        assert first["image_url"]["url"].startswith("data:image/jpeg;base64,")
        prompts = [renderer.tokenizer.decode(row.prompt_ids) for row in rows]
        assert any(last["text"] in each for each in prompts)
        assert "<tool_call>" in body["messages"][0]["content"]
        assert all((body["messages"][0]["content"] in each) == (prompt == "vanilla") for each in prompts)
    assert set(served.keys) == {f"Bearer {SECRET}"}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in each for each in written)


async def ask(folder: Path, address: str, **changes: Any) -> str:
    config = TeacherConfig.model_validate({"address": address, "model": "m", "retries": 2, **changes})
    async with TeacherClient(config, folder / "spent.sqlite") as client:
        return await client.ask([{"role": "user", "content": "Task: x"}])


async def test_what_passes_is_asked_again_and_what_does_not_is_not(tmp_path: Path) -> None:
    answers = [(429, "slow down"), (503, "busy"), (200, completion("click [1]"))]
    with endpoint(lambda _: answers.pop(0)) as (address, served):
        assert await ask(tmp_path, address) == "click [1]"
        assert len(served.asked) == 3 and not answers
        answers += [(400, "too many tokens"), (200, completion("click [1]"))]
        with pytest.raises(EngineError, match=r"teacher: HTTP 400.*too many tokens"):
            await ask(tmp_path, address)
        assert len(answers) == 1
        answers[:] = [(503, "busy")] * 9
        with pytest.raises(EngineError, match="HTTP 503"):
            await ask(tmp_path, address)
        assert len(answers) == 6  # two retries


async def test_a_wrong_key_ends_it_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    with (
        endpoint(lambda _: (401, f"no such key: {SECRET}")) as (address, served),
        pytest.raises(PolicyError, match=r"401: .*no such key: \[key\].*check teacher\.address") as refused,
    ):
        await ask(tmp_path, address, api_key=KEY)
    assert len(served.asked) == 1 and SECRET not in str(refused.value) + caplog.text
    monkeypatch.delenv(KEY)
    with pytest.raises(ConfigError, match=f"teacher.api_key: the variable {KEY} is not set"):
        await ask(tmp_path, address, api_key=KEY)


async def test_no_more_requests_are_sent_than_the_budget_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.chat.endpoint.pause", lambda *_: 0.001)
    with endpoint(lambda _: (500, "broken")) as (address, served):
        for _ in range(3):  # of a run that is started again and again
            with pytest.raises(EngineError):
                await ask(tmp_path, address, budget_requests=4)
        assert len(served.asked) == 4
        with pytest.raises(EngineError, match=r"teacher: the budget of 4 requests is used up \(budget_requests\)"):
            await ask(tmp_path, address, budget_requests=4)
        with pytest.raises(EngineError, match="HTTP 500"):
            await ask(tmp_path, address, budget_requests=9)


async def test_an_absent_endpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="teacher: ConnectError"):
        await ask(tmp_path, "http://127.0.0.1:9/v1", retries=0)


def tool_call(arguments: object) -> bytes:
    calls = [{"type": "function", "function": {"name": "browser", "arguments": arguments}}]
    return json.dumps(completion(None, tool_calls=calls)).encode()


@pytest.mark.parametrize("arguments", [{"action": "click", "element": 3}, '{"action": "click", "element": 3}'])
def test_calls_are_written_as_the_policy_writes_them(arguments: object) -> None:
    assert parse(read_answer(tool_call(arguments))).action == parse("click [3]").action


async def test_a_parameter_that_the_endpoint_refuses_is_left_out(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        refused = next((name for name in ("temperature", "max_tokens") if name in body), None)
        message = f"Unsupported parameter: {refused!r} is not supported with this model."
        return (400, {"error": {"message": message}}) if refused else (200, completion("click [1]"))

    with endpoint(answer) as (address, served):
        assert await ask(tmp_path, address, retries=0) == "click [1]"
        assert len(served.asked) == 3 and "max_completion_tokens" in served.asked[-1]


@pytest.mark.parametrize("arguments", [None, "", "null", "{}", {}])
def test_a_call_with_null_arguments_is_one_without(arguments: object) -> None:
    """``null`` in a turn that is cloned would teach to write it."""
    assert read_answer(tool_call(arguments)) == '<tool_call>\n{"name": "browser", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("data", "says", "again"),
    [
        (b"<html>", "no chat completion", True),
        (b'{"choices": []}', "no chat completion", True),
        (tool_call("{broken"), "no chat completion", True),
        (json.dumps(completion(" ")).encode(), "empty", True),
        (b'{"error": {"message": "Provider returned error", "code": 502}}', "Provider returned error", True),
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model", False),
        (json.dumps(completion("<think>hm", "length")).encode(), "raise teacher.max_tokens", False),
    ],
)
def test_broken_answers(data: bytes, says: str, again: bool) -> None:
    with pytest.raises(CallFailed, match=says) as failed:
        read_answer(data)
    assert failed.value.again == again


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("10.0.0.5:8000/v1", "no http"),
        ("ftp://host/v1", "no http"),
        ("https://user:pass@host/v1", "a key goes into the variable that teacher.api_key names"),
        ("https://host/v1?key=abc", "a key goes into the variable"),
        ("http://host:port/v1", "Port"),
    ],
)
def test_addresses_that_are_none_are_refused(address: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        TeacherConfig(address=address, model="m")


def test_a_teacher_needs_no_oracle_and_its_key_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    values = {"root": str(tmp_path), "run_id": "w", "base": str(READER), "cloning_updates": 1}
    values |= {"demonstrations": 2, "gate_episodes": 2, "tasks": {"kinds": ["click-test-2"]}}
    taught = {**values, "teacher": {"address": "http://127.0.0.1:9/v1", "model": "m", "api_key": KEY}}
    with pytest.raises(ConfigError, match=f"teacher.api_key: the variable {KEY} is not set"):
        check_warm_start(resolve(WarmStartConfig, taught))
    with pytest.raises(ConfigError, match="teacher: the demonstrations are those of episodes"):
        resolve(WarmStartConfig, {**taught, "episodes": ["runs/a"]})
    every = resolve(WarmStartConfig, {**taught, "tasks": {"kinds": []}})
    by_oracle = resolve(WarmStartConfig, {**values, "tasks": {"kinds": []}})
    assert len(select_demonstrable(every)) > len(select_demonstrable(by_oracle))
