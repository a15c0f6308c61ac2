"""WebArena-Verified's own evaluators grade episodes on a stand-in for its GitLab."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envs import ConfigError, LiveOptions, WebTask, make_pool, open_env
from envs.rewards.webarena_verified import PYTHON, VerifiedReward, read_answer
from envs.tasks.imports import import_tasks

NEEDED = pytest.mark.skipif(not PYTHON.exists(), reason="run scripts/setup_frameworks webarena-verified")

HOME = '<title>Home</title><a href="/dashboard/todos">To-do list</a> <a href="/explore">Explore</a>'


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = HOME.encode() if self.path == "/" else b"<title>Page</title><h1>Page</h1>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def gitlab() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def tasks() -> dict[str, WebTask]:
    """The package's 812 tasks by id."""
    code = "import webarena_verified; print(webarena_verified.__path__[0])"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    file = Path(done.stdout.strip().splitlines()[-1]) / "assets" / "dataset" / "webarena-verified.json"
    return {item.task.task_id: item.task for item in import_tasks("webarena-verified", file)}


def answer(task_type: str, data: Any = None, status: str = "SUCCESS") -> str:
    return json.dumps({"task_type": task_type, "status": status, "retrieved_data": data, "error_details": None})


@NEEDED
@pytest.mark.frameworks
def test_all_tasks_of_the_package_are_imported(tasks: dict[str, WebTask]) -> None:
    assert len(tasks) == 812
    assert {task.site for task in tasks.values()} >= {"gitlab", "shopping", "shopping_admin", "map", "reddit"}


@NEEDED
@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("number", "link", "reply", "expected"),
    [
        (44, 1, answer("NAVIGATE"), 1.0),
        (44, 2, answer("NAVIGATE"), 0.0),  # another page was opened
        (44, 1, answer("RETRIEVE"), 0.0),  # the answer says something else was done
        (44, 1, "I opened it.", 0.0),
        (0, 1, answer("RETRIEVE", ["quest lumaflex band"]), 1.0),  # normalised by the package
        (0, 1, answer("RETRIEVE", ["Sprite ball"]), 0.0),
    ],
)
async def test_the_evaluators_read_the_answer_and_the_requests(
    tasks: dict[str, WebTask], gitlab: str, number: int, link: int, reply: str, expected: float
) -> None:
    addresses = {"gitlab": gitlab, "shopping_admin": gitlab}
    grade = VerifiedReward(addresses)
    task = tasks[f"webarena-verified/{number}"]
    live = LiveOptions(addresses=addresses)
    async with (
        make_pool(max_sessions=1, record_network=True) as pool,
        open_env(task, reward=grade, pool=pool, live=live) as env,
    ):
        await env.reset()
        await env.step(f"click [{link}]")
        step = await env.step({"type": "answer", "text": reply})
    assert step.reward == expected, grade.result
    assert grade.result["task_id"] == number and grade.result["webarena_verified_version"] == "1.2.3"


async def test_what_is_missing_is_named(tmp_path: Path, gitlab: str) -> None:
    with pytest.raises(ConfigError, match="run scripts/setup_frameworks webarena-verified"):
        VerifiedReward({}, tmp_path / "no-python")
    grade = VerifiedReward({}, Path("/bin/true"))
    live = LiveOptions(addresses={"gitlab": gitlab})
    async with open_env("live/gitlab/", instruction="Look.", reward=grade, live=live) as env:
        await env.reset()
        with pytest.raises(ConfigError, match=r"make_pool\(record_network=True\)"):
            await env.step({"type": "answer", "text": "x"})


@pytest.mark.parametrize(
    ("text", "read"),
    [('Done: {"status": "SUCCESS"}.', {"status": "SUCCESS"}), ("no object", "no object"), ("{broken", "{broken")],
)
def test_an_answer_may_stand_in_a_sentence(text: str, read: object) -> None:
    assert read_answer(text) == read
