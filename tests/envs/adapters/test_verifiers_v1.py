"""``vf-eval`` of verifiers 0.4 plays the tasks, with a model that follows scripts."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from envs import StepRenderer
from tests.chat_endpoint import endpoint

from .own_environment import ROOT, framework_python, framework_variables
from .reference import CANARY, TERMINATE, digest, reference, without_pictures
from .test_verifiers import answering, says

pytestmark = pytest.mark.frameworks

TASK = "miniwob/enter-text"
WRITE, LOOK = "click [1]", '{"action": "refresh"}'


def kills(body: dict[str, Any]) -> tuple[int, Any]:
    """The same model; before it answers, this test's browsers are killed."""
    for process in psutil.Process().children(recursive=True):
        if "chrom" in process.name():
            process.kill()
    return says(body)


def writer_and_reader() -> Any:
    """A model of two rollouts: one writes the canary's stores and looks; then the other one looks,
    while the first is still open."""
    begins, written, seen = iter((WRITE, LOOK)), Event(), Event()

    def model(body: dict[str, Any]) -> tuple[int, Any]:
        said = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
        if not said:
            text = next(begins)
            assert text == WRITE or written.wait(120)
            return answering(text)
        if said == [WRITE]:
            return answering(LOOK)
        (written if said[0] == WRITE else seen).set()
        assert seen.wait(120)
        return answering(TERMINATE)

    return model


def evaluate(folder: Path, model: Any, task: Any = TASK) -> list[dict[str, Any]]:
    """The traces of the documentation's command, with this model."""
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (snippet,) = re.findall(r"^vf-eval rollwright_web.*?(?=\n```)", page, re.M | re.S)
    program, *options = shlex.split(snippet.replace("\\\n", ""))
    with endpoint(model) as (address, _):
        options[options.index("-m") + 1], options[options.index("--client.base-url") + 1] = TASK, address
        options[options.index("--env.taskset.tasks") + 1] = json.dumps([task])
        command = [str(framework_python("verifiers_v1").with_name(program)), *options]
        done = subprocess.run(
            [*command, "--client.api-key-var", "KEY", "--no-rich", "-o", str(folder)],
            cwd=folder,
            env={**framework_variables(), "KEY": "none"},
            capture_output=True,
            text=True,
            timeout=400,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (results,) = folder.rglob("traces.jsonl")
    return [trace for line in results.read_text().splitlines() for trace in json.loads(line)["traces"]]


def test_rollouts_are_the_reference(tmp_path: Path) -> None:
    expected, renderer = reference(TASK), StepRenderer()
    first, second = evaluate(tmp_path, says)
    for trace in (first, second):
        assert trace["ok"] and trace["rewards"]["page_reward"]["score"] == expected.reward == 1.0
        assert trace["metrics"] == {"abstained": 0.0, "steps": float(len(expected.texts))}
        # Pages that are shown as text alone have no pictures in the record.
        played, wanted = trace["info"]["trajectory"], expected.trajectory.model_dump(mode="json")
        assert digest(without_pictures(played)) == digest(without_pictures(wanted))
        said = [node["message"] for node in trace["nodes"]]
        assert [message["content"] for message in said if message["role"] == "user"] == [
            renderer.user_message(step)["content"] for step in expected.steps[:-1]
        ]


def test_an_abstention_is_an_error_without_a_reward(tmp_path: Path) -> None:
    for trace in evaluate(tmp_path, kills):
        assert not trace["ok"] and trace["errors"][0]["type"] == "HarnessError"
        assert not any(trace["rewards"].values()) and "page_reward" not in trace["info"]
        assert trace["info"]["trajectory"]["reward"]["score"] is None


def test_rollouts_share_nothing(tmp_path: Path) -> None:
    traces = evaluate(tmp_path, writer_and_reader(), CANARY.model_dump(mode="json", exclude_defaults=True))
    pages = [
        [node["message"]["content"] for node in trace["nodes"] if node["message"]["role"] == "user"] for trace in traces
    ]
    reader, writer = sorted(pages, key=len)
    assert all("found: nothing" in page for page in (writer[0], *reader)) and len(reader) == 2
    assert "cookie,local,session,name" in writer[2].replace("k=", ""), "an episode must see its own marks"
