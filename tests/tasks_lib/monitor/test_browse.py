"""The browser of runs: what its addresses answer, and its pages in Chromium."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page
from starlette.testclient import TestClient

from tasks_lib.folder.lock import run_lock
from tasks_lib.monitor.browse import browser_of
from tasks_lib.monitor.serving import PageServer
from training.ledger.store import RunStore, read_json, write_json

MakeRun = Callable[..., Any]
Watch = Callable[[Page], list[str]]


def client(root: Path) -> TestClient:
    """A client of the runs under a root."""
    application = PageServer().application(browser_of(root).routes())
    return TestClient(application, base_url="http://127.0.0.1:8711")


@pytest.fixture
def root(make_run: MakeRun) -> Path:
    """Two runs, of which one goes on."""
    make_run("one", iterations=6)
    make_run("two", iterations=3, finished=False)
    path = make_run("three", iterations=3, seed=9, finished=False).root
    document = read_json(path / "config.json")
    document["config"]["train"]["learning_rate"] = 1e-5
    write_json(path / "config.json", document)
    return Path(path.parent)


def all_episodes(store: RunStore) -> dict[str, dict[str, Any]]:
    """Summaries of all committed episodes by id, read from the records themselves."""
    records = [read_json(store.group_path(group)) for group in store.group_ids()]
    return {episode["episode_id"]: episode for record in records for episode in record["episodes"]}


def test_runs_are_listed_with_their_state(root: Path) -> None:
    (root / "no-run").mkdir()
    with run_lock(root / "two"):
        rows = {row["run"]: row for row in client(root).get("/api/runs").json()}
    assert {name: row["state"] for name, row in rows.items()} == {"one": "ended", "two": "running", "three": "stopped"}
    last = read_json(RunStore(root / "one").evaluation_path(6))
    assert rows["one"]["after"]["mean"] == last["mean"] and rows["one"]["after"]["n"] == last["n"]
    assert rows["one"]["iteration"] == 6


def test_keys_that_differ_are_shown_and_no_others(root: Path) -> None:
    shown = client(root).get("/api/compare?run=two&run=three").json()
    assert shown["keys"] == [["train.learning_rate", "0.0003", "1e-05"]]
    versions = [row[0] for row in shown["curves"]["two"]["evaluations"]]
    assert versions == [0, 3]
    assert client(root).get("/api/compare?run=two&run=nowhere").status_code == 404


def test_every_episode_is_in_one_place_of_the_list(root: Path) -> None:
    reader, stored = client(root), all_episodes(RunStore(root / "one"))
    pages = [reader.get(f"/api/runs/one/episodes?offset={at}&limit=50").json() for at in range(0, len(stored), 50)]
    listed = [row["episode"] for page in pages for row in page["rows"]]
    assert len(listed) == len(set(listed)) == pages[0]["total"] and set(listed) == stored.keys()


@pytest.mark.parametrize(
    ("query", "accepts"),
    [
        ("outcome=abstained", lambda episode: episode["score"] is None),
        ("outcome=success", lambda episode: episode["passed"] and episode["score"] is not None),
        ("min_steps=2", lambda episode: episode["steps"] >= 2),
        ("phase=e000003", lambda episode: episode["episode_id"].startswith("e000003")),
        ("phase=training&stop=horizon", lambda e: e["episode_id"][0] == "i" and e["stop_reason"] == "horizon"),
        ("min_score=0.5&max_score=0.95", lambda e: e["score"] is not None and 0.5 <= e["score"] <= 0.95),
    ],
)
def test_filters_let_the_right_episodes_pass(root: Path, query: str, accepts: Callable[[Any], bool]) -> None:
    stored = all_episodes(RunStore(root / "one"))
    rows = client(root).get(f"/api/runs/one/episodes?limit=500&{query}").json()["rows"]
    wanted = {name for name, episode in stored.items() if accepts(episode)}
    assert {row["episode"] for row in rows} == wanted and 0 < len(wanted) < len(stored)


def test_words_are_found_in_instructions_and_responses(root: Path) -> None:
    store, reader = RunStore(root / "one"), client(root)

    def holds(episode: str, words: str) -> bool:
        steps = store.trajectory(episode).steps
        texts = [step.response for step in steps] + [step.observation.instruction for step in steps[:1]]
        return any(words in text.lower() for text in texts)

    for words in ("sure, i will", "choose-list asks"):
        found = reader.get("/api/runs/one/episodes", params={"text": words, "limit": 500}).json()
        assert {row["episode"] for row in found["rows"]} == {name for name in all_episodes(store) if holds(name, words)}
        assert found["searched"] == found["total"] and found["rows"]
    first = reader.get("/api/runs/one/episodes", params={"text": "sure, i will", "limit": 1}).json()
    rest = reader.get("/api/runs/one/episodes", params={"text": "sure, i will", "offset": first["searched"]}).json()
    assert first["rows"][0] not in rest["rows"] and rest["rows"]


def test_a_group_that_is_committed_later_is_listed(root: Path, make_run: MakeRun) -> None:
    reader, store = client(root), RunStore(root / "two")
    path = store.group_path(store.group_ids()[-1])
    moved = path.rename(root / path.name)
    before = reader.get("/api/runs/two/episodes").json()["total"]
    moved.rename(path)
    assert reader.get("/api/runs/two/episodes").json()["total"] == before + len(read_json(path)["episodes"])


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/api/runs/nowhere", 404, "nowhere"),
        ("/api/runs/..", 404, ""),
        ("/api/runs/%2e%2e%2fetc", 404, ""),
        ("/api/runs/one/episodes/nowhere", 404, "nowhere"),
        ("/api/runs/one/blobs/..%2f..%2fconfig.json", 404, ""),
        (f"/api/runs/one/blobs/{'0' * 64}", 500, "blob"),
        ("/api/runs/one/episodes?offset=-1", 400, "offset"),
        ("/api/runs/one/episodes?min_score=much", 400, "min_score"),
        (f"/api/compare?{'&'.join(['run=one'] * 13)}", 400, "at most 12"),
    ],
)
def test_a_bad_request_is_answered_with_one_sentence(root: Path, path: str, status: int, says: str) -> None:
    answer = client(root).get(path)
    assert answer.status_code == status and says in answer.text


def test_an_episode_is_exported_as_a_page_and_as_a_gif(
    root: Path, chromium: Browser, tmp_path: Path, watch: Watch
) -> None:
    reader, store = client(root), RunStore(root / "one")
    episode = next(name for name, each in all_episodes(store).items() if each["steps"] == 2)
    with Image.open(BytesIO(reader.get(f"/api/runs/one/episodes/{episode}/export.gif").content)) as gif:
        assert (gif.format, gif.n_frames) == ("GIF", 2)
    page = chromium.new_page()
    complaints = watch(page)
    (tmp_path / "episode.html").write_bytes(reader.get(f"/api/runs/one/episodes/{episode}/export.html").content)
    page.goto((tmp_path / "episode.html").as_uri())
    assert page.locator(".step").count() == 2 and page.locator(".step img").count() == 2
    assert complaints == []
    page.close()


# ----------------------------------------------------------------------------
# in Chromium


@pytest.fixture
def address(root: Path, serve: Callable[..., str]) -> str:
    """Address of a server of the runs."""
    return serve(browser_of(root).routes())


def test_a_person_goes_from_the_runs_to_a_step(
    address: str, root: Path, chromium: Browser, synthetic: Any, watch: Watch
) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    complaints = watch(page)
    page.goto(f"{address}/runs?run=two&run=three")
    page.wait_for_selector("#keys td")
    assert page.inner_text("#keys tbody") == "train.learning_rate\t0.0003\t1e-05"
    page.wait_for_selector(".curves canvas")
    page.click("text=one")
    page.wait_for_selector(".episodes-list a")
    assert len(page.query_selector_all(".episodes-list li")) < 60, "only the rows in view exist"
    page.evaluate("document.querySelector('.episodes-list').scrollTop = 1e6")
    oldest = min(all_episodes(RunStore(root / "one")), key=lambda name: (name[1:7], name))
    page.wait_for_selector(f"a[href$='{oldest}']")
    page.focus(".episodes-list")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".detail .step img")
    shown = page.inner_text("h1")
    assert page.url == f"{address}/runs/one/episodes/{shown}", "the address is a permanent link"
    trajectory = RunStore(root / "one").trajectory(shown)
    assert page.locator(".detail .step pre.response").first.inner_text() == trajectory.steps[0].response
    page.evaluate("document.querySelector('.step img').decode()")  # waits until it is loaded
    assert page.evaluate("document.querySelector('.step img').naturalWidth") > 0
    assert complaints == []
    page.close()


def test_two_episodes_stand_beside_each_other(address: str, root: Path, chromium: Browser) -> None:
    store = RunStore(root / "one")
    group = next(read_json(store.group_path(name)) for name in store.group_ids("e000000"))
    one, other = (episode["episode_id"] for episode in group["episodes"][:2])
    steps = [[(step.response, step.screenshot) for step in store.trajectory(name).steps] for name in (one, other)]
    first = next((at for at, (a, b) in enumerate(zip(*steps, strict=False)) if a != b), min(map(len, steps)))
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}/runs/one/episodes/{one}?with={other}")
    page.wait_for_selector(".pair .detail")
    assert page.locator(".pair .detail").count() == 2
    said = page.inner_text(".notice")
    assert f"step {first + 1}" in said or f"for {first} steps" in said or steps[0] == steps[1]
    page.close()
