"""The live monitor: what its events say of a run's files, and its page in Chromium."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.sync_api import Browser, Page
from starlette.testclient import TestClient

from tasks_lib.folder.lock import run_lock
from tasks_lib.monitor import live_source, run_figures
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource
from tasks_lib.monitor.run_figures import History, RunFigures
from tasks_lib.monitor.serving import PageServer
from tasks_lib.worker.live import Doing, SlotState, WorkerState
from training.ledger.store import RunStore, atomic_write_bytes
from training.trainer.control.heartbeat import Heartbeat

MakeRun = Callable[..., Any]


@pytest.fixture
def store(make_run: MakeRun) -> RunStore:
    """The folder of a run that goes on, without workers."""
    run: RunStore = make_run("live-run", finished=False).store
    return run


def slot(doing: Doing = Doing.TURN, step: int = 1, kind: str = "click-test", **more: Any) -> SlotState:
    """A slot that plays an episode."""
    values = {"episode_id": "i000006-g0000-s00-a0", "horizon": 5, "seconds": 0.5, "version": 6} | more
    return SlotState(kind=kind, step=step, doing=doing, **values)


def write(store: RunStore, worker: str, *slots: SlotState, age: float = 0.0) -> bytes:
    """Write the live file of a worker, as it was so many seconds ago; its content."""
    state = WorkerState(
        worker=worker,
        time=time.time() - age,
        phase="i000006",
        episodes=8,
        finished={},
        slots=slots,
        browsers={"browsers": [{"state": "READY"}]},
        sites={"oscar": {"playing": 3, "memory": 1 << 20}},
    )
    content, path = state.model_dump_json().encode(), store.live_path(worker)
    atomic_write_bytes(path, content)
    os.utime(path, (time.time() - age, time.time() - age))
    return content


def changed(source: FolderSource) -> dict[str, Any]:
    """The source's changes, as values by worker."""
    return {worker: orjson.loads(state) for worker, state in source.changes()}


def test_only_what_changed_is_told(store: RunStore) -> None:
    source = FolderSource(store)
    one, two = write(store, "host-1", slot()), write(store, "host-2", slot(step=2))
    assert changed(source) == {"host-1": orjson.loads(one), "host-2": orjson.loads(two)}
    assert changed(source) == {}
    newer = write(store, "host-2", slot(Doing.EXECUTE, step=2), age=-1)
    assert changed(source) == {"host-2": orjson.loads(newer)}


def test_a_killed_worker_goes_and_one_that_rests_stays(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FolderSource(store)
    write(store, "host-killed", slot())
    write(store, "host-rests", SlotState(episode_id="", kind="", step=0, horizon=0, doing=Doing.IDLE, seconds=9.0))
    assert changed(source).keys() == {"host-killed", "host-rests"}
    monkeypatch.setattr(live_source, "GONE_SECONDS", 0.0)
    assert changed(source) == {"host-killed": {"worker": "host-killed", "gone": True}}
    assert changed(source) == {} and [state.worker for state in source.states()] == ["host-rests"]
    write(store, "host-killed", slot(step=3), age=-1)
    assert changed(source)["host-killed"]["slots"][0]["step"] == 3, "a file that changes again is of a live worker"


def test_files_of_an_earlier_process_are_no_workers(store: RunStore) -> None:
    write(store, "host-1", slot(), age=3600)
    write(store, "host-2", slot())
    source = FolderSource(store)
    assert changed(source).keys() == {"host-2"}
    assert [state.worker for state in source.states()] == ["host-2"]


def test_a_slow_viewer_gets_the_newest_states_only(store: RunStore) -> None:
    with watched(store) as (client, monitor):
        write(store, "host-1", slot(step=1))
        wait_until(lambda: b"host-1" in monitor.message(0))
        seen = orjson.loads(workers_in(monitor.message(0)))[0]["slots"][0]["step"]
        for step in (2, 3, 4):
            write(store, "host-1", slot(step=step), age=-step)
            wait_until(lambda step=step: f'"step":{step}'.encode() in monitor.message(0))
        late = orjson.loads(workers_in(monitor.message(0)))
        assert seen == 1 and [each["slots"][0]["step"] for each in late] == [4]
        assert monitor.message(0) is monitor.message(0), "viewers with the same changes share the bytes"
        wait_until(lambda: client.get("/curve?name=cells.turn").json()["values"][-1:] == [1])
        assert client.get("/episode?worker=host-1&slot=0").json()["step"] == 4
        assert client.get("/episode?worker=host-1&slot=7").status_code == 404
        assert client.get("/screenshot?worker=host-1&slot=%2e%2e").status_code == 404


def watched(store: RunStore) -> Any:
    """A client of a monitor that polls, and the monitor."""
    from contextlib import contextmanager

    @contextmanager
    def open_client() -> Any:
        monitor = LiveMonitor(FolderSource(store), RunFigures(store))
        application = PageServer().application(monitor.routes(), monitor.polling)
        with TestClient(application, base_url="http://127.0.0.1:8710") as client:
            yield client, monitor

    return open_client()


def workers_in(message: bytes) -> bytes:
    """The data of the event about workers."""
    return next(line for line in message.split(b"\n") if line.startswith(b"data: ["))[len(b"data: ") :]


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a state, however slow the machine is."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_figures_are_those_of_the_files(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = RunFigures(store)
    states = [WorkerState.model_validate_json(write(store, "host-1", slot(), slot(Doing.QUEUE), slot(version=5)))]
    with run_lock(store.root):
        shown = figures.measure(states)
        assert (shown["state"], shown["problem"]) == ("running", None)
        monkeypatch.setattr(run_figures, "STALLED_SECONDS", 0.0)
        shown = figures.measure(states)
        assert shown["state"] == "stalled" and "changed" in shown["problem"]
    assert figures.measure(states)["state"] == "stopped"
    assert shown["cells"] == {"queue": 1, "turn": 2} and shown["versions"] == {"5": 1, "6": 2}
    assert (shown["engine"]["queued"], shown["engine"]["running"]) == (1, 2)
    assert shown["sites"] == {"oscar playing": 3 * len(states), "oscar memory": len(states) << 20}
    assert shown["browsers"] == {"READY": 1} and shown["iteration"] == 6
    usage = os.statvfs(store.root)
    assert shown["disk"]["total"] == usage.f_blocks * usage.f_frsize


def test_rates_count_steps_and_episodes_of_the_states(monkeypatch: pytest.MonkeyPatch, store: RunStore) -> None:
    now = [100.0]
    monkeypatch.setattr(run_figures.time, "monotonic", lambda: now[0])
    figures, rates = RunFigures(store), {}
    for second in range(11):
        now[0] += 1.0
        episode, step = divmod(second, 5)  # a step a second, an episode each five
        here = [slot(step=step, episode_id=f"i000006-g000{episode}-s00-a0")]
        state = WorkerState(
            worker="w", time=now[0], phase="i000006", episodes=4, finished={"done": episode}, slots=here, browsers={}
        )
        rates = figures.measure([state])["rates"]
    assert rates["episodes"] == pytest.approx(0.2) and rates["steps"] == pytest.approx(0.8)


def test_the_trainer_shows_the_share_of_its_update(store: RunStore) -> None:
    figures = RunFigures(store)
    assert figures.measure([])["trainer"] == {"phase": None, "share": None}
    store.trainer_path.mkdir(parents=True, exist_ok=True)
    Heartbeat(store.trainer_path).beat("train", 0.25)
    measured, history = figures.measure([]), History()
    assert measured["trainer"] == {"phase": "trains", "share": 0.25}
    history.add(measured, 5.0)
    assert history.curve("trainer.share") == {"times": [5.0], "values": [0.25]}


def test_the_history_forgets_what_is_old() -> None:
    history = History()
    for second in range(3000):
        history.add({"cells": {"turn": second}, "title": "run", "state": None, "flag": True}, float(second))
    curve = history.curve("cells.turn")
    assert curve["values"][-1] == 2999 and len(curve["values"]) == run_figures.HISTORY_SECONDS + 1
    assert history.curve("title") == history.curve("nothing") == {"times": [], "values": []}


# ----------------------------------------------------------------------------
# in Chromium


def texts(page: Page) -> list[str]:
    """Texts of all cells."""
    return [cell.inner_text() for cell in page.query_selector_all("#cells button")]


def test_each_environment_is_a_cell(
    store: RunStore, serve: Callable[..., str], chromium: Browser, watch: Any, synthetic: Any
) -> None:
    monitor = LiveMonitor(FolderSource(store), RunFigures(store))
    write(store, "host-2", slot(Doing.TURN, 3), slot(Doing.EXECUTE, 1, synthetic.HOSTILE))
    write(store, "host-10", slot(Doing.SETTLE, 2, slow=True))
    address = serve(monitor.routes(), monitor.polling, monitor.end)
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    complaints = watch(page)
    page.goto(address)
    page.wait_for_selector("#cells button")
    wait_until(lambda: len(texts(page)) == 3)
    assert texts(page) == ["T3", "E1", "S2"], "workers are in the order of their numbers"
    assert page.locator("button.slow").all_inner_texts() == ["S2"]
    write(store, "host-2", slot(Doing.QUEUE, 4), slot(Doing.EXECUTE, 1, synthetic.HOSTILE), age=-1)
    wait_until(lambda: texts(page)[0] == "Q4")
    page.select_option("#group-by", "kind")
    page.wait_for_selector("#cells h3")
    assert sorted(page.locator("#cells h3").all_inner_texts()) == sorted(["click-test", synthetic.HOSTILE])
    page.focus("#cells button[tabindex='0']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#episode[open]")
    wait_until(lambda: "of 5" in page.inner_text("#episode-facts"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    page.wait_for_selector("#episode:not([open])", state="attached")
    assert page.evaluate("document.activeElement.closest('#cells') !== null"), "the focus is on the cell again"
    page.click("[data-figure='cells.settle']")
    page.wait_for_selector("#plot canvas")
    assert page.evaluate("window.hacked") is None and complaints == []
    page.close()


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_its_window(
    store: RunStore, serve: Callable[..., str], chromium: Browser, width: int, tmp_path: Path
) -> None:
    monitor = LiveMonitor(FolderSource(store), RunFigures(store))
    write(store, "host-with-a-name-that-does-not-fit-in-one-line-of-a-phone-" * 2, *[slot(step=n) for n in range(40)])
    page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme="dark")
    page.goto(serve(monitor.routes(), monitor.polling, monitor.end))
    wait_until(lambda: len(texts(page)) == 40)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
