"""Agents of a batch: requests and answers in OpenAI's forms, callables, rates and names."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from envs import EnvHost, Observation, StepRenderer, StepResult
from envs.actions import parse
from envs.chat import CallFailed, ModelAnswer, ToolCall, Usage, read_completion, read_response
from envs.registry import find_task
from envs.types import Click, ConfigError, Element, Invalid, StopReason, WebTask
from flows.batch import batch
from tasks_lib.batch.agents import AgentClient, AgentFailed, CallableAgent, find_callable
from tasks_lib.batch.batch import BatchRun
from tasks_lib.batch.config import AgentEndpointConfig, BatchConfig
from tasks_lib.batch.conversation import Conversation, chat_request, responses_request
from tasks_lib.batch.playing import EpisodePlayer
from tasks_lib.batch.results import PlannedEpisode, Spending, read_result
from tasks_lib.commands.arguments import argument_parser
from tasks_lib.config import PROJECT, parse_assignments, resolve
from tasks_lib.config.parameters import parameters_of
from tests.chat_endpoint import completion, endpoint
from tests.envs.adapters.reference import CANARY

chat = pytest.importorskip("openai.types.chat")
responses = pytest.importorskip("openai.types.responses")

CALL = {"action": "click", "element": 1}
BUNDLED, TRAINED = "datasets/tasks/bundled.jsonl", "shop-open/200000/0"
DESIGNS = PROJECT / "datasets/design2code"
PAGE = b"\xff\xd8 a picture"


def page(number: int) -> StepResult:
    """A page with one button."""
    observation = Observation(
        url="http://shop.test/",
        title="t",
        viewport=(9, 9),
        instruction=f"Do {number}.",
        elements=(Element(index=1, tag="button", text=f"B{number}", box=(0, 0, 9, 9)),),
    )
    return StepResult(0.0, False, observation, PAGE)


def called(*ids: str) -> ModelAnswer:
    return ModelAnswer("", tuple(ToolCall(each, "browser", json.dumps(CALL)) for each in ids), False, None)


def conversation(tool: bool, rounds: int, answers: Iterable[ModelAnswer], vlm: bool = True) -> list[dict[str, Any]]:
    renderer = StepRenderer(screenshot=vlm, prompt="tools" if tool else "vanilla")
    talk = Conversation(renderer, rounds)
    number = 0
    for number, answer in enumerate(answers, 1):
        talk.add(page(number - 1), answer)
    return talk.messages(page(number))


def config(**values: Any) -> AgentEndpointConfig:
    return AgentEndpointConfig.model_validate({"address": "http://127.0.0.1:9/v1", "model": "m", **values})


def check(kind: Any, value: Any) -> None:
    """Validate by a type of OpenAI's."""
    TypeAdapter(kind).validate_python(value, strict=True)


def test_chat_requests_have_openais_form() -> None:
    answers = [called("a"), called("b", "c"), ModelAnswer("<think>hm</think>no call", (), False, None)]
    messages = conversation(True, 9, answers)
    body = chat_request(config(temperature=0.5), messages, StepRenderer().tools())
    check(list[chat.ChatCompletionMessageParam], body["messages"])
    check(list[chat.ChatCompletionToolParam], body["tools"])
    known = chat.completion_create_params.CompletionCreateParamsNonStreaming.__annotations__
    inherited = chat.completion_create_params.CompletionCreateParamsBase.__annotations__
    assert body.keys() <= {*known, *inherited}
    roles = [message["role"] for message in messages]
    assert roles == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
        "user",
    ]
    asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert asked == [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ["a", "b", "c"]
    assert messages[-2]["content"] == "no call" and messages[-1]["content"][-1]["text"].endswith("Task: Do 3.")
    assert body["messages"][1]["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,")


def test_requests_of_the_responses_api_have_its_form() -> None:
    messages = conversation(True, 9, [called("a"), called("")])
    body = responses_request(config(api="responses"), messages, StepRenderer().tools())
    check(list[responses.ResponseInputItemParam], body["input"])
    check(list[responses.FunctionToolParam], body["tools"])
    assert body.keys() <= {*responses.response_create_params.ResponseCreateParamsBase.__annotations__}
    assert body["instructions"].startswith("You use a web browser") and body["store"] is False
    kinds = [item.get("type", item.get("role")) for item in body["input"]]
    assert kinds == ["user", "function_call", "function_call_output"] * 2 + ["user"]
    ids = [item["call_id"] for item in body["input"] if "call_id" in item]
    assert ids == ["a", "a", "call_1_0", "call_1_0"], "a call without an id gets one, in its result too"


def test_older_rounds_become_lines() -> None:
    answers = [ModelAnswer(f"click [{number}]", (), False, None) for number in range(5)]
    system, first, *rest = conversation(False, 3, answers, vlm=False)
    assert system["role"] == "system" and [each["role"] for each in rest] == ["assistant", "user", "assistant", "user"]
    assert "Done: click [0]; click [1]; click [2]" in first["content"] and "Task: Do 3." in first["content"]
    assert all("Done:" not in each["content"] for each in rest)
    (alone,) = conversation(False, 1, answers, vlm=False)[1:]
    assert "Done: click [2]; click [3]; click [4]" in alone["content"]


FUNCTION = {"type": "function", "id": "call_1", "function": {"name": "browser", "arguments": json.dumps(CALL)}}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {"role": "assistant", "content": None, "refusal": None, "tool_calls": [FUNCTION]},
        }
    ],
    "usage": {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "model": "m",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Click.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "browser",
            "arguments": json.dumps(CALL),
            "status": "completed",
        },
    ],
    "parallel_tool_calls": False,
    "tool_choice": "required",
    "tools": [],
    "usage": {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 10,
    },
}


def test_answers_of_both_apis_are_read_alike() -> None:
    """The documents are answers by OpenAI's own types."""
    chat.ChatCompletion.model_validate(COMPLETION, strict=True)
    responses.Response.model_validate(RESPONSE, strict=True)
    one, other = read_completion(json.dumps(COMPLETION).encode()), read_response(json.dumps(RESPONSE).encode())
    assert one.calls == other.calls == (ToolCall("call_1", "browser", json.dumps(CALL)),)
    assert one.usage == other.usage == Usage(prompt=7, cached=2, answer=3)
    assert (one.text, other.text) == ("", "Click.")
    assert parse(one.response()).action == parse(other.response()).action == Click(element=1)


def test_cut_off_refused_and_broken_answers() -> None:
    cut = {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert read_response(json.dumps(cut).encode()).cut_off and not read_response(json.dumps(RESPONSE).encode()).cut_off
    refusal = [{"type": "message", "content": [{"type": "refusal", "refusal": "I cannot."}]}]
    assert read_response(json.dumps({**RESPONSE, "output": refusal}).encode()).text == "I cannot."
    broken = ModelAnswer("", (ToolCall("a", "browser", '{"action": "cli'),), False, None)
    assert isinstance(parse(broken.response()).action, Invalid)
    for data in (b"<html>", b"[]", b'{"output": 3}'):
        with pytest.raises(CallFailed, match="no response"):
            read_response(data)
    failed = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    for read in (read_completion, read_response):
        with pytest.raises(CallFailed) as failure:
            read(json.dumps(failed).encode())
        assert failure.value.too_long and not failure.value.again
    assert read_completion(json.dumps(completion("x")).encode()).usage is None


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_model_plays_by_function_calls(api: str, tmp_path: Path) -> None:
    """The whole flow; the endpoint knows no `tool_choice`, and counts no tokens."""

    def says(body: dict[str, Any]) -> tuple[int, Any]:
        if "tool_choice" in body:
            return 400, {"error": {"message": "Unsupported parameter: 'tool_choice' is not supported by this model."}}
        return 200, {**(COMPLETION if api == "chat" else RESPONSE), "usage": None}

    values = {"root": str(tmp_path), "run_id": "one", "agent": "tool", "vlm": True, "task_ids": ["miniwob/click-test"]}
    with endpoint(says) as (address, served):
        given = {"address": address, "model": "m", "api": api, "retries": 0}
        summary = batch.fn(**parameters_of(resolve(BatchConfig, {**values, "endpoint": given})))
    assert set(served.paths) == {"/v1/chat/completions" if api == "chat" else "/v1/responses"}
    assert summary["valid_only"]["passed"] == 1 and len(served.asked) == summary["requests"] == 2
    assert summary["dollars"] is None and summary["unmetered"] == 1
    last = (served.asked[-1]["messages"] if api == "chat" else served.asked[-1]["input"])[-1]["content"]
    assert [part["type"].removeprefix("input_") for part in last] in (["image_url", "text"], ["image", "text"])


async def test_requests_keep_their_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of the client, which pass at once; the requests themselves take a part of them."""
    waits: list[float] = []

    async def pass_at_once(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("envs.chat.endpoint.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pass_at_once}))
    with endpoint(lambda _: (200, completion("click [1]"))) as (address, served):
        slow = config(address=address, requests_per_minute=0.06)
        async with AgentClient(slow, tmp_path / "spent.sqlite") as client:
            for _ in range(4):
                await client.ask([], [], Spending())
    assert len(served.asked) == 4 and waits[0] == 0
    assert all(900 < later - sooner <= 1000 for sooner, later in pairwise(waits))


async def test_a_turn_has_a_deadline(tmp_path: Path) -> None:
    with endpoint(lambda _: (200, completion("click [1]"))) as (address, served):
        late = config(address=address, deadline=0.05, requests_per_minute=0.001)
        async with AgentClient(late, tmp_path / "spent.sqlite") as client:
            client._next = asyncio.get_running_loop().time() + 60_000
            with pytest.raises(AgentFailed, match=r"no answer within 0\.05 s \(endpoint\.deadline\)") as failed:
                await client.ask([], [], Spending())
    assert failed.value.again and served.asked == []


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("my_test_agents")
    monkeypatch.setitem(sys.modules, "my_test_agents", module)
    return module


def test_callables_play_with_and_without_await(mine: ModuleType, tmp_path: Path) -> None:
    async def awaits(observation: Observation) -> Click:
        return Click(element=observation.elements[0].index)

    class Notes:
        def __init__(self) -> None:
            self.turns = 0

        def __call__(self, observation: Observation, screenshot: bytes, patience: int = 3) -> dict[str, Any]:
            assert screenshot.startswith(b"\xff\xd8") and patience == 3
            self.turns += 1
            return {"type": "click", "element": self.turns}

    mine.awaits, mine.Notes, mine.text = awaits, Notes, lambda observation: "click [1]"  # type: ignore[attr-defined]
    mine.fails = lambda observation: 1 / 0  # type: ignore[attr-defined]
    mine.number = lambda observation: 3  # type: ignore[attr-defined]
    values = {"root": str(tmp_path), "task_ids": ["miniwob/click-test"]}
    for name in ("awaits", "Notes", "text"):
        given = {**values, "run_id": name, "function": f"my_test_agents:{name}"}
        summary = batch.fn(**parameters_of(resolve(BatchConfig, given)))
        assert summary["valid_only"]["passed"] == 1 and summary["requests"] == 0 and summary["dollars"] is None
    for name, error in (("fails", "raised ZeroDivisionError: division by zero"), ("number", "3 is no action")):
        given = {**values, "run_id": name, "function": f"my_test_agents:{name}"}
        with pytest.raises(Exception, match="no episode has a reward"):
            batch.fn(**parameters_of(resolve(BatchConfig, given)))
        result = read_result(tmp_path / name / "tasks/task_miniwob--click-test_seed0")
        assert result is not None and result.error is not None and error in result.error and result.attempts == 1


def test_functions_without_await_play_at_once(mine: ModuleType, tmp_path: Path) -> None:
    """Eight of them wait for one another; asyncio's own threads are six on two cores."""
    together = threading.Barrier(8, timeout=60)

    def act(observation: Observation) -> str:
        together.wait()
        return "click [1]"

    mine.act = act  # type: ignore[attr-defined]
    values = {"function": "my_test_agents:act", "task_ids": ["miniwob/click-test"], "seeds_per_task": 8}
    given = {**values, "root": str(tmp_path), "run_id": "one", "max_concurrent": 8}
    assert batch.fn(**parameters_of(resolve(BatchConfig, given)))["valid_only"]["passed"] == 8


async def test_a_browser_that_fails_is_an_abstention_and_is_tried_again(tmp_path: Path) -> None:
    """Chromium is killed by its pid in the first attempt."""
    killed: list[int] = []

    def act(observation: Observation) -> str:
        if not killed:
            killed.extend(host.pool.browser_pids())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        return "click [1]"

    task = find_task("miniwob/click-test")
    given = resolve(BatchConfig, {"function": "x:y", "root": str(tmp_path), "retry_count": 1})
    async with EnvHost(max_sessions=1) as host:
        player = EpisodePlayer(given, host, lambda _: CallableAgent("x:y", act), None, tmp_path)
        result = await player.play(PlannedEpisode(task, 0))
    assert killed and result.success and result.attempts == 2 and len(result.failures) == 1
    assert result.stop is StopReason.DONE


def test_last_pages_are_compared_with_their_references(mine: ModuleType, tmp_path: Path) -> None:
    pages = iter([(DESIGNS / "1.html").read_text(), "<p>Nothing of it"])

    def builds(observation: Observation) -> dict[str, Any]:
        design = observation.instruction.startswith("Write one HTML page")
        return {"type": "submit", "html": next(pages)} if design else {"type": "terminate"}

    mine.builds = builds  # type: ignore[attr-defined]
    designs = [find_task(f"design2code/{number}") for number in (1, 2)]
    compared = [
        CANARY.model_copy(update={"task_id": f"canary/{name}", "reference": f"/{name}.html"})
        for name in ("index", "gone")
    ]
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f"{task.model_dump_json()}\n" for task in (*designs, *compared)))
    given = {"root": str(tmp_path), "run_id": "one", "tasks": {"file": str(file)}, "split": "train"}
    given |= {"function": "my_test_agents:builds", "max_concurrent": 1, "retry_count": 0}
    batch.fn(**parameters_of(resolve(BatchConfig, given)))
    played = [
        read_result(tmp_path / "one" / "tasks" / planned.name)
        for planned in BatchRun(resolve(BatchConfig, given)).episodes
    ]
    right, wrong, same, gone = (result for result in played if result is not None)
    assert right.score == pytest.approx(1.0, abs=0.01) and wrong.score is not None and wrong.score < 0.5
    assert same.score == 1.0
    assert gone.score is None and "gone.html is not there" in str(gone.error)


def test_a_function_that_is_none_is_refused(mine: ModuleType) -> None:
    mine.acts, mine.LIMIT = len, 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="did you mean acts"):
        find_callable("my_test_agents:act")
    with pytest.raises(ConfigError, match="LIMIT is 3; expected a function of an observation"):
        find_callable("my_test_agents:LIMIT")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "endpoint: give endpoint.address and endpoint.model, or a function"),
        ({"function": "a:b", "endpoint": {"address": "http://h/v1", "model": "m"}}, "one of the two"),
        ({"function": "a:b", "task_ids": ["miniwob/click-tset"]}, "did you mean miniwob/click-test"),
        (
            {"function": "a:b", "task_ids": [TRAINED], "tasks": {"file": BUNDLED}},
            r"1 of the tasks have no page seeds of held_",
        ),
        ({"function": "a:b", "sites": ["shop"]}, "sites: 'shop' is not in datasets/tasks/miniwob.jsonl"),
        ({"function": "a:b", "task_ids": ["x"], "sites": ["y"]}, "sites: task_ids names the tasks already"),
        ({"endpoint": {"address": "http://u:p@h/v1", "model": "m"}}, "that endpoint.api_key names"),
        (
            {"endpoint": {"address": "http://h/v1", "model": "m", "api_key": "A", "api_key_file": "b"}},
            "give one of the two",
        ),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BatchRun(resolve(BatchConfig, values))


def test_tasks_of_other_splits_are_left_out() -> None:
    """Each task of the bundled sites is of one split, with one page seed."""
    given = {"function": "a:b", "tasks": {"file": BUNDLED}, "seeds_per_task": 3}
    rows = [json.loads(line) for line in (PROJECT / BUNDLED).read_text().splitlines()]
    for split in ("held_out", "train"):
        planned = BatchRun(resolve(BatchConfig, {**given, "split": split})).episodes
        wanted = [(row["task_id"], row["seeds"][split]["start"]) for row in rows if split in row["seeds"]]
        assert [(episode.task.task_id, episode.seed) for episode in planned] == wanted and 0 < len(wanted) < len(rows)


def test_plain_options_are_keys() -> None:
    line = "--tasks a.jsonl --task-ids x,y z --agent tool --vlm --max-concurrent 8 --max-concurrent-launch 2"
    line += " --retry-count 0 --only-failed --set function=a:b"
    options = argument_parser(BatchConfig, "").parse_args(line.split())
    found = resolve(BatchConfig, parse_assignments(options.assignments, BatchConfig))
    assert (found.tasks.file, found.task_ids, found.agent, found.vlm) == ("a.jsonl", ["x", "y", "z"], "tool", True)
    assert (found.max_concurrent, found.max_concurrent_launch, found.retry_count, found.only_failed) == (8, 2, 0, True)
    sites = argument_parser(BatchConfig, "").parse_args(["--sites", "shop", "tracker"])
    assert parse_assignments(sites.assignments, BatchConfig) == {"sites": ["shop", "tracker"]}


def test_folders_of_different_tasks_differ() -> None:
    ids = ["a/b", "a--b", "a-/b", "a/-b", "a b", "a_b", "A/b", "a/b/", "ü/b", "x" * 101, "x" * 102, ".."]
    base = {"site": "s", "kind": "k", "path": "/", "difficulty": 1, "horizon": 1, "seeds": {}}
    names = {PlannedEpisode(WebTask(task_id=each, **base), seed).name for each in ids for seed in (1, 11)}  # type: ignore[arg-type]
    assert len(names) == 2 * len(ids) and "task_a--b_seed1" in names
    assert all("/" not in name and len(name) < 200 for name in names)
