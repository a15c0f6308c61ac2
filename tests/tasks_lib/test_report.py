"""The report, opened in a real browser over a made-up run's folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tasks_lib.report import build_report
from tasks_lib.report.data import read_run
from tasks_lib.report.episodes import viewer_data
from tasks_lib.report.grading import grading
from tests.builders import stored_blob
from training.ledger.store import read_json, write_json

MakeRun = Callable[..., Any]


class Look:
    """Opens pages and keeps what they say and ask for."""

    def __init__(self, browser: Browser, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def open(self, path: Path, fragment: str = "") -> Page:
        page = self.context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri() + fragment)
        return page

    def foreign_requests(self) -> list[str]:
        """Everything but the page itself and images inside it."""
        return [url for url in self.requests if not re.match(r"data:|file:.*/report/index\.html", url)]


@pytest.fixture
def look(chromium: Browser) -> Iterator[Look]:
    looking = Look(chromium, viewport={"width": 1280, "height": 900})
    yield looking
    looking.context.close()


# ----------------------------------------------------------------------------
# the page


def test_the_split_that_was_measured_is_named(make_run: MakeRun, look: Look) -> None:
    root = make_run().root
    document = read_json(root / "config.json")
    document["config"].setdefault("evaluation", {})["split"] = "validation"
    write_json(root / "config.json", document)
    page = look.open(build_report(root))
    assert page.inner_text(".result").startswith("Validation success 0.39")
    assert page.inner_text("#h-kinds") == "Validation success by task kind"
    assert "validation success with 95 % interval" in page.inner_text("#learning .legend")
    assert "held-out" not in page.inner_text("main").lower() and not look.complaints


def test_page_shows_the_result_and_the_curve(make_run: MakeRun, look: Look) -> None:
    page = look.open(build_report(make_run().root))
    assert re.search(r"Held-out success 0\.39 .*→ 0\.79 .*over 7 task kinds, n = 140", page.inner_text(".result"))
    assert "finished" in page.inner_text("header .facts")
    assert page.locator("#learning .chart.tall >> nth=0").is_visible()
    assert page.locator("#learning [data-curve-panel=updates] circle.dot.held-out").count() == 3
    assert page.locator("#learning [data-curve-panel=updates] path.band").get_attribute("d")
    page.click("[data-curve=minutes]")
    assert page.locator("[data-curve-panel=minutes]").is_visible()
    assert page.locator("[data-curve-panel=updates]").is_hidden()
    assert "within its 10 % target" in page.inner_text("#time")
    assert "all accounted for" in page.inner_text("#accounts")
    assert page.locator("#kinds tbody tr").count() == 7
    assert page.locator("#kinds tbody .mark").count() == 6
    assert not look.complaints and not look.foreign_requests()


def test_chart_is_read_with_the_keyboard(make_run: MakeRun, look: Look) -> None:
    page = look.open(build_report(make_run().root))
    page.focus("#learning .chart.tall >> nth=0")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#tip").startswith("policy v6")
    page.keyboard.press("ArrowLeft")
    assert "training" in page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_viewer_opens_a_trajectory(make_run: MakeRun, look: Look) -> None:
    page = look.open(build_report(make_run().root))
    page.select_option("[data-facet=kind]", "enter-text")
    page.select_option("[data-facet=outcome]", "success")
    page.select_option("[data-facet=where]", "evaluation of v6")
    page.click("#list button")
    assert page.locator("#detail .step").count() == 2
    assert page.locator("#detail .step img").first.evaluate("i => i.complete && i.naturalWidth") == 160
    assert page.inner_text("#detail .response >> nth=0") == '{"type":"type","element":1,"text":"lottie<b>"}'
    assert page.inner_text("#detail .typed") == "lottie<b>"
    ring, frame = (page.locator(f"#detail .step >> nth=0 >> {name}").bounding_box() for name in (".ring", ".frame"))
    assert ring and frame
    assert ring["x"] + ring["width"] / 2 - frame["x"] == pytest.approx(frame["width"] * 55 / 160, abs=1.5)
    assert ring["y"] + ring["height"] / 2 - frame["y"] == pytest.approx(frame["height"] * 71 / 210, abs=1.5)
    assert page.locator("#detail .step >> nth=0 >> .chosen").count() == 1
    assert page.locator("#detail .tokens li").count() == 18
    assert "the page reported raw reward 1" in page.inner_text("#detail .reward")
    assert "not available" in page.inner_text("#detail .reward")
    assert "stopped: done" in page.inner_text("#detail header")
    assert not look.complaints and not look.foreign_requests()


def test_viewer_shows_what_a_reward_is_made_of(make_run: MakeRun, look: Look, synthetic: Any) -> None:
    page = look.open(build_report(make_run().root))
    page.select_option("[data-facet=kind]", synthetic.JUDGED)
    page.select_option("[data-facet=outcome]", "failure")
    page.click("#list button")
    after = page.inner_text("#detail .after")
    for words in ("score -0.050", "not passed", "binary 0: a part does not hold", "rubric ababababab"):
        assert words in after, words
    assert page.locator("#detail .failed li").all_inner_texts() == ["gate/grounded does not hold"]
    rows = [row.split("\t") for row in page.locator("#detail .reward tbody tr").all_inner_texts()]
    assert rows == [
        ["page/at", "scored (required)", "1.00", "1.00", "at /home", "–"],
        ["seen/name", "scored", "0.00", "3.00", "the judge saw <img src=x onerror='window.hacked = 3'>", "1.50 s, 1,200 tokens, $0.00200"],
        ["gate/grounded", "gate", "0.00", "–", "as shown", "–"],
        ["performance", "shaping", "0.90", "0.50", "layout 3 ms", "–"],
        ["length", "penalty", "-0.50", "0.10", "2 steps of 4", "–"],
    ]  # fmt: skip
    assert "cost 1.50 s, 1,200 tokens, $0.00200" in after and page.evaluate("window.hacked") is None
    page.select_option("[data-facet=outcome]", "success")
    page.click("#list button")
    after = page.inner_text("#detail .after")
    assert "score 0.939" in after and "passed" in after and "binary 1: all parts hold" in after
    page.select_option("[data-facet=kind]", "")
    page.select_option("[data-facet=outcome]", "abstained")
    page.click("#list button")
    after = page.inner_text("#detail .after")
    assert "No reward: Chromium closed the connection" in after and "unknown" in after and "not passed" not in after
    assert not look.complaints


def test_costs_and_causes_of_a_run_are_in_tables(make_run: MakeRun, look: Look) -> None:
    run = make_run(iterations=2, every=2)
    data = read_run(run.root)
    training, evaluation = grading(data).rows
    assert (training.episodes, training.graded, training.abstained, training.asked) == (57, 56, 1, 8)
    assert (evaluation.episodes, evaluation.asked, evaluation.cost.tokens) == (42, 6, 7200)
    assert (training.cost.seconds, training.cost.tokens) == (12.0, 9600)
    assert training.cost.dollars == pytest.approx(0.016)
    assert grading(data).seconds == {"ask": 4.0, "program": 0.5}
    assert (grading(data).waiting, grading(data).timed_out) == (1.0, 2)
    page = look.open(build_report(run.root))
    table = page.inner_text("#grading")
    assert "9,600\t7,200" in table and "somebody was asked about\t8\t6" in table
    assert "Chromium closed the connection\tbrowser_error\t1\t0" in page.inner_text("#causes")
    assert not look.complaints


def test_filters_list_keys_and_link(make_run: MakeRun, look: Look) -> None:
    path = build_report(make_run().root)
    page = look.open(path)
    every = page.locator("#list button").count()
    page.select_option("[data-facet=outcome]", "abstained")
    assert page.locator("#list button").count() == 1
    assert page.inner_text("#count") == f"1 of {every}"
    assert "Abstained: Chromium closed the connection" in page.inner_text("#detail")
    page.select_option("[data-facet=outcome]", "failure")
    page.focus("#list li:nth-child(1) button")
    page.keyboard.press("ArrowDown")
    chosen = page.get_attribute("#list li:nth-child(2) button", "data-id")
    assert page.get_attribute("#list button[aria-current=true]", "data-id") == chosen
    linked = look.open(path, page.evaluate("location.hash"))
    assert linked.get_attribute("#list button[aria-current=true]", "data-id") == chosen
    assert not look.complaints


def test_hostile_text_is_inert(make_run: MakeRun, look: Look, synthetic: Any) -> None:
    run = make_run(name="run-<b>x")
    path = build_report(run.root)
    assert "<script>window.hacked" not in path.read_text()
    page = look.open(path)
    page.select_option("[data-facet=kind]", "click-button")
    page.click("#list button")
    assert page.inner_text("#detail h3") == synthetic.HOSTILE
    assert page.evaluate("window.hacked") is None
    assert page.inner_text("h1") == "run-<b>x"
    assert page.locator("#detail script, #detail img[src=x], h1 b").count() == 0
    assert not look.complaints and not look.foreign_requests()


def test_policy_stops_a_script_that_got_in(make_run: MakeRun, look: Look) -> None:
    path = build_report(make_run().root)
    path.write_text(path.read_text().replace("</main>", "<script>window.hacked = 1</script></main>"))
    page = look.open(path)
    assert page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in text for text in look.complaints)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_phone(make_run: MakeRun, chromium: Browser, scheme: str) -> None:
    look = Look(chromium, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = look.open(build_report(make_run().root))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(251, 251, 249)") == (scheme == "light")
    look.context.close()


# ------------------------------------------------------------------------------- runs that are not
# whole


def test_unfinished_run(make_run: MakeRun, look: Look) -> None:
    page = look.open(build_report(make_run(iterations=2, every=3, finished=False).root))
    assert "still running" in page.inner_text("header .facts")
    assert "before training, no later evaluation yet" in page.inner_text(".result")
    assert page.locator("#list button").count() > 0
    assert not look.complaints


def test_empty_folder(tmp_path: Path, look: Look) -> None:
    page = look.open(build_report(tmp_path / "new-run"))
    assert "No held-out evaluation yet" in page.inner_text(".result")
    assert "still running" in page.inner_text("header .facts")
    assert "No episode stored yet" in page.inner_text("#episodes")
    assert not look.complaints


def test_torn_metrics_line_is_shown(make_run: MakeRun, look: Look) -> None:
    run = make_run(finished=False)
    with open(run.store.metrics_path, "ab") as file:
        file.write(b'{"kind":"iteration","iteration":6,"succ')
    page = look.open(build_report(run.root))
    assert re.search(r"metrics\.jsonl line 10 is torn", page.inner_text(".problems"))
    assert page.locator("[data-curve-panel=updates] circle.dot.held-out").count() == 3
    assert not look.complaints


def test_the_judge_bill_comes_from_the_metrics_not_the_ledger(make_run: MakeRun) -> None:
    run = make_run()
    before = build_report(run.root).read_bytes()
    (run.root / "judge_spent.sqlite").write_text("[")
    assert build_report(run.root).read_bytes() == before


def test_an_evaluation_survives_its_torn_line(make_run: MakeRun) -> None:
    run = make_run()
    lines = run.store.metrics_path.read_bytes().splitlines(keepends=True)
    run.store.metrics_path.write_bytes(b"".join([lines[0][:40] + b"\n", *lines[1:]]))
    data = read_run(run.root)
    assert [e.version for e in data.evaluations] == [0, 3, 6]
    assert data.evaluations[0].wall is None and len(data.problems) == 1


def test_missing_blob_trajectory_and_bad_values_are_named(make_run: MakeRun, look: Look) -> None:
    run = make_run()
    shown = viewer_data(read_run(run.root), run.store)["episodes"]
    victim = next(e for e in shown if e["kind"] == "choose-list")
    stored_blob(run.store, victim["steps"][0]["shot"]).write_bytes(b"torn")
    gone = next(e["id"] for e in shown if e["kind"] == "click-test" and e["steps"])
    run.store.trajectory_path(gone).unlink()
    with open(run.store.metrics_path, "ab") as file:
        file.write(b'{"kind":"evaluation","version":"x"}\n[1]\n')
    page = look.open(build_report(run.root), f"#episode={victim['id']}")
    problems = page.inner_text(".problems")
    assert "does not hold what its name says" in problems and f"trajectory {gone} does not exist" in problems
    assert "metrics.jsonl line 10 is no evaluation: version" in problems
    assert "missing or torn" in page.inner_text("#detail .frame >> nth=0")
    assert not look.complaints


def test_image_bytes_are_bounded(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.report.episodes.MAX_IMAGE_BYTES", 9_000)
    run = make_run()
    viewer = viewer_data(read_run(run.root), run.store)
    assert 0 < sum(len(uri) for uri in viewer["images"].values()) < 9_000 + 100 * len(viewer["images"])
    left_out = [s for e in viewer["episodes"] for s in e["steps"] if s["missing"]]
    assert left_out and all(s["shot"] not in viewer["images"] for s in left_out)


def test_each_screenshot_is_embedded_once(make_run: MakeRun) -> None:
    run = make_run()
    viewer = viewer_data(read_run(run.root), run.store)
    text = build_report(run.root).read_text()
    assert len(viewer["images"]) < sum(len(e["steps"]) for e in viewer["episodes"])
    assert text.count("data:image/jpeg;base64,") == len(viewer["images"])


# ------------------------------------------------------------------------------------------------
# the image
