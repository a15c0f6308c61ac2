"""A batch over a fake endpoint: what is played, what is asked again and what is not, what is stored
and counted."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envs.types import ConfigError, EngineError, PolicyError, Trajectory
from flows.batch import batch
from tasks_lib.batch.config import BatchConfig
from tasks_lib.batch.results import EpisodeResult
from tasks_lib.batch.summary import summarize
from tasks_lib.config import resolve
from tasks_lib.config.parameters import parameters_of
from tasks_lib.folder.metrics import wilson_interval
from tests.chat_endpoint import completion, endpoint

KEY, SECRET = "ROLLWRIGHT_TEST_AGENT_KEY", "sk-not-to-be-seen"
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "prompt_tokens_details": {"cached_tokens": 40},
}
TOO_LONG = {
    "error": {
        "message": "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
KINDS = ("click-test", "click-test-2", "enter-text", "focus-text", "click-link", "click-tab")
IDS = [f"miniwob/{kind}" for kind in KINDS]
DONE, FAILED, LONG, BUSY = "done", "failed", "long", "busy"


def text_of(body: dict[str, Any]) -> str:
    """The last user message's text."""
    content = [message for message in body["messages"] if message["role"] == "user"][-1]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def click(number: int) -> str:
    call = json.dumps({"name": "browser", "arguments": {"action": "click", "element": number}})
    return f"<think>Easy.</think>\nAction: Click it.\n<tool_call>\n{call}\n</tool_call>"


def says(content: str, **message: Any) -> tuple[int, Any]:
    return 200, {**completion(content, **message), "usage": USAGE}


class Model:
    """Solves two kinds, the first after a 429, fails one, talks nonsense in one, has too long a
    context in one, and a server that always fails in one."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        text = text_of(body)
        task = text.rpartition("Task: ")[2]
        self.asked[task] += 1
        if task == "Click the button.":
            return (429, {"error": {"message": "slow down"}}) if self.asked[task] == 1 else says(click(1))
        if found := re.fullmatch(r"Click button (\w+)\.", task):
            number = re.search(rf'\[(\d+)\] button "{found[1]}"', text)
            assert number is not None
            return says(click(int(number[1])))
        if task.startswith("Click on the link"):
            return 400, TOO_LONG
        if task.startswith("Click on Tab"):
            return 503, {"error": {"message": "overloaded"}}
        return says("I would rather not.") if task.startswith("Focus") else says(click(1))

    def times(self, begin: str) -> int:
        return sum(count for task, count in self.asked.items() if task.startswith(begin))


def configured(root: Path, address: str, **values: Any) -> BatchConfig:
    config: BatchConfig = resolve(
        BatchConfig,
        {
            "root": str(root),
            "run_id": "one",
            "task_ids": IDS,
            "retry_count": 1,
            **values,
            "endpoint": {
                "address": address,
                "model": "m",
                "api_key": KEY,
                "retries": 1,
                "prompt_price": 2.0,
                "cached_price": 0.5,
                "answer_price": 8.0,
                **values.get("endpoint", {}),
            },
        },
    )
    return config


def run(config: BatchConfig) -> dict[str, Any]:
    """As `python -m flows.batch` does without a Prefect server."""
    summary: dict[str, Any] = batch.fn(**parameters_of(config))
    return summary


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(KEY, SECRET)
        patched.setattr("envs.chat.endpoint.pause", lambda *_: 0.001)
        yield


class Played:
    """The batch of all six kinds, played once."""

    def __init__(self, root: Path) -> None:
        self.model = Model()
        with endpoint(self.model) as (address, served):
            self.summary = run(configured(root, address))
            self.served = served
        self.root, self.folder = root, root / "one"

    def folder_of(self, kind: str) -> Path:
        return self.folder / "tasks" / f"task_miniwob--{kind}_seed0"

    def result(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder_of(kind) / "result.json").read_text())
        return found

    def trace(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder_of(kind) / "trace.json").read_text())
        return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("batch"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("click-test", {"success": True, "score": 1.0, "stop": "done", "error": None, "attempts": 1, "requests": 2}),
        ("click-test-2", {"success": True, "score": 1.0, "stop": "done", "error": None, "requests": 1}),
        ("enter-text", {"success": False, "stop": "horizon", "error": None, "steps": 2, "invalid_actions": 0}),
        ("focus-text", {"success": False, "stop": "horizon", "steps": 1, "invalid_actions": 1, "refused_actions": 0}),
        ("click-link", {"success": False, "score": None, "stop": "context_overflow", "attempts": 1, "requests": 1}),
        ("click-tab", {"success": False, "score": None, "stop": "engine_error", "attempts": 2, "requests": 4}),
    ],
)
def test_the_result_of_each_task(played: Played, kind: str, expected: dict[str, Any]) -> None:
    result = played.result(kind)
    assert {name: result[name] for name in expected} == expected
    assert (result["error"] is None) == (result["score"] is not None)
    answered = result["requests"] - {"click-test": 1, "click-link": 1, "click-tab": 4}.get(kind, 0)
    assert result["tokens"] == {"prompt": 100 * answered, "cached": 40 * answered, "answer": 10 * answered}
    assert result["cost"] == pytest.approx(answered * (60 * 2.0 + 40 * 0.5 + 10 * 8.0) / 1e6)


def test_what_a_retry_cannot_mend_is_asked_once(played: Played) -> None:
    """Counted at the server: the prompt that is too long once; the broken server in two attempts
    of two requests each; after a 429 once more."""
    assert played.model.times("Click on the link") == 1
    assert "maximum context length" in played.result("click-link")["error"]
    assert played.model.times("Click on Tab") == 4
    assert played.result("click-tab")["failures"] == ['endpoint: HTTP 503: {"error": {"message": "overloaded"}}']
    assert played.model.times("Click the button") == 2


ERRORS: dict[str, tuple[int, int, str]] = {
    "messages.1.content: a string is expected": (400, 1, "engine_error"),
    "max_tokens: Input should be less than or equal to 16": (422, 1, "engine_error"),
    "This model's maximum context length is 128 tokens": (422, 1, "context_overflow"),
    "The prompt is too long": (413, 1, "context_overflow"),
    "slow down": (429, 4, "engine_error"),
    "out of order": (500, 4, "engine_error"),
}
"""Status, requests and end of an episode by the endpoint's error: two attempts of two requests
each, or one request in all."""


def test_only_errors_that_pass_are_asked_again(tmp_path: Path) -> None:
    left, given, asked = iter(ERRORS), dict[str, str](), Counter[str]()

    def says(body: dict[str, Any]) -> tuple[int, Any]:
        task = text_of(body).rpartition("Task: ")[2]
        error = given[task] if task in given else given.setdefault(task, next(left))
        asked[error] += 1
        return ERRORS[error][0], {"error": {"message": error}}

    with endpoint(says) as (address, _), pytest.raises(EngineError, match="no episode has a reward"):
        run(configured(tmp_path, address, max_concurrent=1))
    results = [json.loads(path.read_text()) for path in (tmp_path / "one").rglob("result.json")]
    assert asked == {error: requests for error, (_, requests, _) in ERRORS.items()}
    for error, (_, requests, stop) in ERRORS.items():
        (result,) = [each for each in results if error in each["error"]]
        assert (result["score"], result["stop"], result["requests"]) == (None, stop, requests)
        assert result["attempts"] == (2 if requests > 1 else 1)


def test_the_bar_counts_on_a_terminal_and_not_in_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(run_id: str, read: int, write: int) -> str:
        with ThreadPoolExecutor(1) as reader, endpoint(Model()) as (address, _):
            with os.fdopen(write, "w") as stream, monkeypatch.context() as patched:
                patched.setattr(sys, "stderr", stream)
                text = reader.submit(read_to_end, read)
                run(configured(tmp_path, address, run_id=run_id, task_ids=IDS[:3]))
            return text.result()

    monkeypatch.setenv("TERM", "xterm")
    drawn, written = shown("terminal", *pty.openpty()), shown("pipe", *os.pipe())
    counts = [int(count) for count in re.findall(r"episodes .*?(\d)/3", drawn)]
    assert counts[0] == 0 and counts[-1] == 3 and counts == sorted(counts)
    for text in (drawn, written):
        assert "miniwob/click-test seed 0: success, 1 steps, done" in text
    assert "\x1b" in drawn and "\x1b" not in written and "/3" not in written


def read_to_end(descriptor: int) -> str:
    """What is written to a pipe, or to a terminal, until its writer is gone."""
    read = bytearray()
    with suppress(OSError):  # EIO at the end of a terminal
        while block := os.read(descriptor, 65_536):
            read += block
    os.close(descriptor)
    return read.decode()


def test_the_summary_counts_what_the_results_say(played: Played) -> None:
    """Counted anew from the files, by hand where there is a rule."""
    results = [json.loads(path.read_text()) for path in played.folder.rglob("result.json")]
    summary = json.loads((played.folder / "summary.json").read_text())
    assert summary == played.summary and len(results) == 6

    def success(passed: int, n: int) -> dict[str, Any]:
        low, high = wilson_interval(passed, n)
        return {"mean": passed / n, "low": low, "high": high, "n": n, "passed": passed}

    assert summary["valid_only"] == success(2, 4) and summary["all_attempts"] == success(2, 6)
    assert summary["invalid"] == {"count": 2, "of": 6, "rate": 2 / 6}
    assert summary["blocked"] == {"count": 0, "of": 6, "rate": 0.0}
    records = [EpisodeResult.model_validate(each) for each in results]
    walled = [records[0].model_copy(update={"blocked": True, "error": "a captcha", "score": None}), *records[1:]]
    rates = summarize(walled, len(walled), None)
    assert rates["blocked"] == {"count": 1, "of": 6, "rate": 1 / 6} == rates["by_site"]["miniwob"]["blocked"]
    steps = sum(each["steps"] for each in results)
    assert summary["invalid_actions"] == {"count": 1, "of": steps, "rate": 1 / steps}
    assert {name: group["all_attempts"]["n"] for name, group in summary["by_difficulty"].items()} == {
        name: sum((each["difficulty"] == 1) == (name == "1") for each in results) for name in ("1", "2-3")
    }
    assert summary["by_site"]["miniwob"]["valid_only"] == success(2, 4)
    for name in ("prompt", "cached", "answer"):
        assert summary["tokens"][name] == sum(each["tokens"][name] for each in results)
    assert summary["dollars"] == pytest.approx(sum(each["cost"] for each in results)) and summary["dollars"] > 0
    assert summary["requests"] == len(played.served.asked) == sum(each["requests"] for each in results)
    paid = sum(sum(result["tokens"][name] for result in results) for name in ("prompt", "answer"))
    assert summary["spent"] == {"requests": len(played.served.asked), "tokens": paid}
    assert summary["stops"] == dict(Counter(each["stop"] for each in results))
    assert (summary["planned"], summary["finished"], summary["missing"]) == (6, 6, 0)


def test_the_trace_holds_what_was_seen_said_and_graded(played: Played) -> None:
    trace = played.trace("click-test-2")
    (turn,) = trace["turns"]
    assert turn["page"].endswith("Task: Click button ONE.") and turn["response"].startswith("<think>")
    assert (played.folder_of("click-test-2") / turn["screenshot"]).read_bytes().startswith(b"\xff\xd8")
    trajectory = Trajectory.model_validate(trace["trajectory"])
    assert trajectory.reward.passed and trajectory.steps[0].response == turn["response"] and trace["steps"] == []
    cut = played.trace("click-link")
    assert cut["trajectory"] is None and len(cut["turns"]) == 1 and cut["turns"][0]["response"] == ""


def test_the_pages_show_it_with_everything_escaped(played: Played) -> None:
    page = (played.folder_of("click-test-2") / "index.html").read_text()
    assert "success" in page and "&lt;think&gt;" in page and "<think>" not in page
    assert "src='screenshots/000.jpg'" in page and "://" not in re.sub(r"http://127\.0\.0\.1:\d+", "", page)
    index = (played.folder / "index.html").read_text()
    assert all(f"tasks/task_miniwob--{kind}_seed0/index.html" in index for kind in KINDS)


def test_the_key_is_sent_and_written_nowhere(played: Played) -> None:
    assert set(played.served.keys) == {f"Bearer {SECRET}"}
    assert not [path for path in played.folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def again(played: Played, root: Path, model: Callable[[dict[str, Any]], tuple[int, Any]], **values: Any) -> Any:
    """Start a copy of the batch again, on another endpoint; gives what was asked."""
    shutil.copytree(played.folder, root / "one")
    with endpoint(model) as (address, served):
        run(configured(root, address, **values))
    return served


def test_a_finished_batch_is_only_read(played: Played, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (played.folder / "tasks").rglob("*") if path.is_file()}
    served = again(played, tmp_path, Model())
    assert served.asked == []
    after = {path: path.read_bytes() for path in (tmp_path / "one/tasks").rglob("*") if path.is_file()}
    assert {path.name for path in before} == {path.name for path in after} and len(before) == len(after)
    assert json.loads((tmp_path / "one/summary.json").read_text()) == played.summary


def test_only_failed_plays_again_what_is_missing_damaged_or_has_an_error(played: Played, tmp_path: Path) -> None:
    source = tmp_path / "damaged"
    shutil.copytree(played.folder, source / "one")
    shutil.rmtree(source / "one/tasks/task_miniwob--click-test_seed0")
    (source / "one/tasks/task_miniwob--click-test-2_seed0/result.json").write_text('{"success": tr')
    copy = Played.__new__(Played)
    copy.folder = source / "one"
    model = Model()
    model.asked["Click the button."] = 1  # no 429 any more
    plain = again(copy, tmp_path / "plain", model)
    assert sorted(text_of(body).rpartition("Task: ")[2] for body in plain.asked) == [
        "Click button ONE.",
        "Click the button.",
    ]
    again(copy, tmp_path / "failed", lambda body: says(click(1)), only_failed=True, endpoint={"retries": 0})
    results = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "failed").rglob("result.json")}
    assert len(results) == 6 and all(each["error"] is None for each in results.values())
    assert results["task_miniwob--enter-text_seed0"] == played.result("enter-text"), "a failure is no error"


def test_other_values_are_refused_and_those_of_patience_are_not(played: Played, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"started with other values[\s\S]*vlm: false then, true now"):
        again(played, tmp_path / "a", Model(), vlm=True)
    with pytest.raises(ConfigError, match=r"endpoint\.model: m then, other now"):
        again(played, tmp_path / "b", Model(), endpoint={"model": "other"})
    again(played, tmp_path / "c", Model(), max_concurrent=1, retry_count=0, endpoint={"timeout": 1, "answer_price": 9})


def test_a_wrong_key_ends_the_batch_at_once(tmp_path: Path) -> None:
    with endpoint(lambda _: (401, {"error": {"message": f"bad key {SECRET}"}})) as (address, served):
        with pytest.raises(PolicyError, match=r"refuses us \(401.*bad key \[key\].*check endpoint\.address") as error:
            run(configured(tmp_path, address, max_concurrent=1))
        assert len(served.asked) == 1 and SECRET not in str(error.value)
        assert not list((tmp_path / "one").rglob("result.json"))
    with endpoint(Model()) as (address, _):  # nothing has come of the first start: its values may be mended
        given = {"model": "other"}
        assert run(configured(tmp_path, address, task_ids=IDS[1:3], endpoint=given))["finished"] == 2
    (tmp_path / "key").write_text(f"{SECRET}\n")
    with endpoint(Model()) as (address, served):
        given = {"api_key": "", "api_key_file": str(tmp_path / "key"), "budget_requests": 3}
        with pytest.raises(EngineError, match=r"budget of 3 requests is used up"):
            run(configured(tmp_path, address, max_concurrent=1, run_id="two", endpoint=given))
        assert served.keys == [f"Bearer {SECRET}"] * 3
    finished = len(list((tmp_path / "two").rglob("result.json")))
    with endpoint(Model()) as (address, _):
        given["budget_requests"] = None
        summary = run(configured(tmp_path, address, run_id="two", endpoint=given))
    assert summary["missing"] == 0 and 0 < finished < summary["finished"] == 6
