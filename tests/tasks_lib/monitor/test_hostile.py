"""Names, texts and addresses that attack the pages: they are text, of a size that can be read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page
from starlette.testclient import TestClient

from tasks_lib.monitor.browse import browser_of
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource
from tasks_lib.monitor.run_figures import RunFigures
from tasks_lib.monitor.serving import PageServer
from tasks_lib.worker.live import Doing, SlotState, WorkerState
from training.ledger.store import RunStore, atomic_write_bytes, read_json, write_json

MARKUP = "<img src=x onerror='window.hacked=1'><script>window.hacked=2</script>"
DRAWING = "<svg onload='window.hacked=3'><a xlink:href='javascript:window.hacked=4'><text>x</text></a></svg>"
ADDRESS = "javascript:window.hacked=5//"
TERMINAL = "\x1b[2J\x1b]8;;http://evil.example\x07safe\x1b]8;;\x07"
TURNED = "\u202egnihton si siht\u2066 \u200f"
HOSTILE = f"{MARKUP} {DRAWING} {TERMINAL} {TURNED}"
HUGE = HOSTILE + "x" * 5_000_000
RUN = "<img src=x onerror=window.hacked=6>"
HIDDEN = "\x1b\x07\u202e\u2066\u200f"
"""Characters that would hide or turn what stands there, none of which may be shown."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> RunStore:
    """A run of which every text attacks, beside a root that it does not belong to."""
    folder = tmp_path_factory.mktemp("hostile")
    store = RunStore(synthetic.SyntheticRun(folder / "runs" / RUN, iterations=1, every=1, finished=False).root)
    synthetic.SyntheticRun(folder / "outside", iterations=1, every=1)
    document = read_json(store.config_path)
    document["config"] |= {"preset": HOSTILE, HOSTILE: HOSTILE, "started_by": HOSTILE, "tags": [HOSTILE]}
    write_json(store.config_path, document)
    for name in store.group_ids():
        group = read_json(store.group_path(name)) | {"kind": HOSTILE, "task_id": HOSTILE}
        group["episodes"][0] |= {"abstained": HUGE, "score": None, "passed": False}
        write_json(store.group_path(name), group)
    path = store.trajectory_path(episode_of(store), "")
    document = read_json(path) | {"kind": HOSTILE, "task_id": HOSTILE, "error": HUGE, "answer": HUGE}
    document["page_facts"] = {HOSTILE: HUGE}
    for step in document["steps"]:
        step |= {"response": HUGE, "prompt": HUGE, "action": {"type": "type", "element": 1, "text": HUGE}}
        step["observation"] |= {"instruction": HUGE, "url": ADDRESS + HUGE, "error": HUGE}
        for element in step["observation"]["elements"]:
            element |= {"text": HUGE, "value": HOSTILE, "tag": "svg"}
    write_json(path, document)
    slots = [
        SlotState(
            episode_id=HOSTILE,
            task_id=HUGE,
            kind=HUGE,
            step=1,
            horizon=5,
            doing=Doing.TURN,
            seconds=1.0,
            screenshot="../config.json",
        )
    ]
    state = WorkerState(
        worker=HOSTILE, time=time.time(), phase=HOSTILE, episodes=1, finished={}, slots=tuple(slots), browsers={}
    )
    atomic_write_bytes(store.live_path("host-1"), state.model_dump_json().encode())
    return store


def episode_of(store: RunStore) -> str:
    """The episode whose texts attack."""
    return f"{store.group_ids()[0]}-s0"


@pytest.fixture
def address(store: RunStore, serve: Callable[..., str]) -> str:
    """Address of the run's monitor, and of the browser of runs."""
    monitor = LiveMonitor(FolderSource(store), RunFigures(store))
    return serve([*monitor.routes(), *browser_of(store.root.parent).routes()], monitor.polling, monitor.end)


def harm(page: Page) -> list[str]:
    """What of the attack has become more than text, or can still mislead."""
    text = page.inner_text("body") + page.title()
    bad = [f"{letter!r} is shown" for letter in HIDDEN if letter in text]
    if len(text) > 1_000_000:
        bad.append(f"{len(text)} characters are shown")
    markup = "img[onerror], svg[onload], svg a, svg text, a[href^='javascript'], body script"
    bad += [f"{selector} is there" for selector in markup.split(", ") if page.locator(selector).count()]
    return [*bad, *([f"window.hacked is {page.evaluate('window.hacked')}"] if page.evaluate("window.hacked") else [])]


def test_no_text_of_a_run_becomes_more_than_text(
    address: str, store: RunStore, chromium: Browser, watch: Callable[[Page], list[str]], tmp_path: Path
) -> None:
    run = "/runs/%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D6%3E"
    episode = f"{run}/episodes/{episode_of(store)}"
    pages = {
        "/runs": "td.name a",
        run: ".episodes-list a",
        episode: ".detail .step img",
        f"{episode}?with={episode_of(store)[:-1]}1": ".pair .detail:nth-child(2)",
        "/": "#cells button",
    }
    for path, ready in pages.items():
        page = chromium.new_page()
        complaints = watch(page)
        page.goto(f"{address}{path}")
        page.wait_for_selector(ready)
        assert MARKUP[:20] in page.inner_text("body"), path
        if path == "/":
            page.click(ready)
            page.wait_for_selector("#episode[open]")
        assert harm(page) == [] and not [each for each in complaints if "404" not in each], path
        page.close()
    exported = TestClient(PageServer().application(browser_of(store.root.parent).routes()), base_url="http://localhost")
    (tmp_path / "episode.html").write_bytes(exported.get(f"/api{episode}/export.html").content)
    page = chromium.new_page()
    complaints = watch(page)
    page.goto((tmp_path / "episode.html").as_uri())
    page.wait_for_selector(".step img")
    assert MARKUP[:20] in page.inner_text("body")
    page.evaluate("document.querySelectorAll('body script').forEach((script) => script.remove())")  # its own
    assert harm(page) == complaints == []
    page.close()


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/..%2foutside",
        "/api/runs/%2e%2e%2foutside/episodes",
        "/api/runs/..%5coutside",
        "/api/runs/{run}%2f..%2f..%2foutside",
        "/api/runs/{run}/episodes/..%2f..%2fconfig",
        "/api/runs/{run}/episodes/%2e%2e%2f%2e%2e%2fconfig/export.html",
        "/api/runs/{run}/blobs/..%2fconfig.json",
        "/report/..%2f..%2fpage.py",
        "/static/..%2f..%2fgate.py",
        "/screenshot?worker={worker}&slot=0",
    ],
)
def test_only_the_root_and_its_runs_are_readable(store: RunStore, path: str) -> None:
    monitor = LiveMonitor(FolderSource(store), RunFigures(store))
    monitor.source.changes()
    routes = [*monitor.routes(), *browser_of(store.root.parent).routes()]
    client = TestClient(PageServer().application(routes), base_url="http://localhost")
    assert [row["run"] for row in client.get("/api/runs").json()] == [RUN]
    answer = client.get(path.format(run=RUN, worker=quote(HOSTILE)))
    assert answer.status_code == 404 and "versions" not in answer.text
