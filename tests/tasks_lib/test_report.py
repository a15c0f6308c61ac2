"""The report, opened in a real browser over a made-up run's folder."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from envs.types import StopReason
from tasks_lib.report import build_report, learning_curve_png
from tasks_lib.report.charts import Series, duration, line_chart, nice_ticks, number, rolling_mean
from tasks_lib.report.data import RunData, read_run
from tasks_lib.report.episodes import MOST_EPISODES, choose, viewer_data
from tasks_lib.report.grading import MOST_CAUSES, MOST_WORDS, OTHERS, causes, grading
from tasks_lib.report.page import flatten, percent
from tasks_lib.report.summary import episode_counts, headline, kind_rows, orchestration_share, time_split
from training.groups import EpisodeSummary, GroupRecord
from training.store import RunStore

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


# ------------------------------------------------------------------------------------------------------ the page


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
    assert "No reward: Chromium closed the connection" in page.inner_text("#detail .after")
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


def test_causes_that_differ_in_an_address_or_a_number_are_one() -> None:
    data = RunData("r")
    for phase, cause in (
        ("i000000", "http://shop.test/a?b=1 answered 503"),
        ("i000001", "http://mail.test/ answered 503"),
        ("e000000", "https://x.test:81/ answered 503"),
        ("e000000", "<b>" + "long " * 99),
    ):
        group = _group(phase, cause[:12].replace("/", ""), 1, None)
        member = group.episodes[0].model_copy(update={"abstained": cause})
        data.groups.append(group.model_copy(update={"episodes": (member,)}))
    first, second = causes(data)
    assert (first.words, first.training, first.evaluation) == ("<address> answered 503", 2, 1)
    assert second.words.startswith("<b>long") and len(second.words) <= MOST_WORDS + 1
    letters = [f"cause {chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(MOST_CAUSES + 7)]
    data.groups = [_group("i000000", name, 1, None) for name in letters]
    for at, name in enumerate(letters):
        member = data.groups[at].episodes[0].model_copy(update={"abstained": name})
        data.groups[at] = data.groups[at].model_copy(update={"episodes": (member,)})
    rows = causes(data)
    assert len(rows) == MOST_CAUSES + 1 and (rows[-1].words, rows[-1].training) == (OTHERS, 7)
    assert causes(RunData("r")) == [] and grading(RunData("r")).rows == []


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


# ------------------------------------------------------------------------------- runs that are not whole


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
    run.store.blob_path(victim["steps"][0]["shot"]).write_bytes(b"torn")
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
    monkeypatch.setattr("tasks_lib.report.episodes.MOST_IMAGE_BYTES", 9_000)
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


# ------------------------------------------------------------------------------------------------ the image


@pytest.mark.parametrize("iterations", [0, 3, 30])
def test_learning_curve_png(make_run: MakeRun, iterations: int) -> None:
    run = make_run(iterations=iterations or 1, finished=False)
    if not iterations:
        run.store.metrics_path.unlink()
    data = learning_curve_png(run.root)
    assert (RunStore(run.root).report_path / "learning_curve.png").read_bytes() == data
    assert Image.open(io.BytesIO(data)).size == (1280, 640)


# ---------------------------------------------------------------------------------------------- pure parts


def test_time_split_adds_up_to_the_wall_clock(make_run: MakeRun) -> None:
    run = read_run(make_run(iterations=10, every=5).root)
    shares, total = time_split(run)
    assert run.result and total == pytest.approx(run.result.seconds["total"])
    assert sum(share.share for share in shares) == pytest.approx(1, abs=0.005)
    by_key = {share.key: share.seconds for share in shares}
    assert by_key["browser"] == pytest.approx(44) and by_key["set_up"] == pytest.approx(14.2)
    assert orchestration_share(shares) == pytest.approx(13 / total)


def test_time_split_scales_workers_that_overlap(make_run: MakeRun) -> None:
    run = read_run(make_run(iterations=2, every=5).root)
    for entry in run.iterations:
        entry.rollout_split = {"browser": 18.0, "generate": 6.0}
    by_key = {share.key: share.seconds for share in time_split(run)[0]}
    assert by_key["browser"] == pytest.approx(18) and by_key["generate"] == pytest.approx(6)
    assert "rollout" not in by_key


def test_resumed_clock_goes_on_and_the_last_line_wins(make_run: MakeRun) -> None:
    run = make_run(iterations=3, every=9, finished=False)
    with open(run.store.metrics_path, "ab") as file:
        file.write(b'{"kind":"iteration","iteration":2,"wall":5.0,"success":0.25}\n')
    data = read_run(run.root)
    assert [i.iteration for i in data.iterations] == [0, 1, 2]
    assert data.iterations[-1].success == 0.25
    assert data.iterations[-1].wall == pytest.approx(7 + 3 * 21.5 + 5)


def test_kinds_and_headline_without_result(make_run: MakeRun) -> None:
    run = read_run(make_run(finished=False).root)
    rows = kind_rows(run)
    assert rows[0].kind == "click-checkboxes" and rows[-1].kind == "choose-list"
    assert not next(row for row in rows if row.kind == "click-test").reads
    head = headline(run)
    assert head.running and head.after and head.after.mean == run.evaluations[-1].mean


def test_episode_accounts(make_run: MakeRun) -> None:
    run = read_run(make_run(iterations=4, finished=False).root)
    counts = episode_counts(run)
    assert counts.started == 4 * 256 and counts.abstained == 1 and counts.unexplained == 0
    run.iterations[0].episodes["consumed"] -= 2
    assert episode_counts(run).unexplained == 2


def _group(phase: str, kind: str, seed: int, *scores: float | None) -> GroupRecord:
    group_id = f"{phase}-{kind}-{seed}"
    members = tuple(
        EpisodeSummary(
            episode_id=f"{group_id}-{i}",
            seed=seed,
            sample=i,
            score=s,
            passed=bool(s),
            steps=1,
            response_tokens=4,
            stop_reason=StopReason.BROWSER_ERROR if s is None else StopReason.DONE,
            abstained="broken" if s is None else None,
        )
        for i, s in enumerate(scores)
    )
    return GroupRecord(group_id=group_id, task_id=kind, kind=kind, policy_version=0, episodes=members)


def test_choice_prefers_a_page_that_was_learned_and_is_bounded() -> None:
    first = [_group("e000000", "a", 1, 0.0), _group("e000000", "a", 2, 0.0), _group("e000000", "a", 3, 1.0)]
    last = [_group("e000009", "a", 1, 0.0), _group("e000009", "a", 2, 1.0), _group("e000009", "a", 3, 1.0)]
    chosen = [(c.reason, c.member.seed, c.member.score) for c in choose(first + last)]
    assert ("first evaluation", 2, 0.0) in chosen and ("last evaluation", 2, 1.0) in chosen
    many = [_group(phase, f"k{n}", 1, 0.0, 1.0, None) for phase in ("e000000", "e000005", "i000004") for n in range(30)]
    chosen_many = choose(many)
    assert len(chosen_many) == MOST_EPISODES
    assert sum(c.reason == "abstention" for c in chosen_many) == 5
    assert len({c.member.episode_id for c in chosen_many}) == MOST_EPISODES


def test_ticks_numbers_and_durations() -> None:
    assert nice_ticks(0, 9, 5) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(3, 3, 2)[0] <= 3 <= nice_ticks(3, 3, 2)[-1]
    assert [number(v) for v in (0, 1, 0.00122, 1234.5, 1e-5, None)] == ["0", "1", "0.00122", "1,234", "1e-5", "–"]
    assert [duration(v) for v in (7.31, 42, 540, 7500, None)] == ["7.3 s", "42 s", "9 min", "2 h 05 min", "–"]
    assert [percent(v) for v in (0, 0.0001, 0.074, 0.5)] == ["0.0 %", "< 0.1 %", "7.4 %", "50 %"]
    assert rolling_mean([(0, 0.0), (1, 3.0), (2, 6.0)], 3) == ((0, 1.5), (1, 3.0), (2, 4.5))


def test_line_chart_positions() -> None:
    line = Series("s", "plain", ((0, 0.0), (10, 1.0)), dots=True, band=((0, 0.0, 0.5), (10, 0.5, 1.0)))
    chart = line_chart("t", [line], x_label="x", y_range=(0, 1), notes={10: "b", 0: "a"})
    assert chart.series[0].dots == ((0, 100), (100, 0))
    assert chart.series[0].path == "M0.0 1000.0L1000.0 0.0"
    assert chart.notes == ((0, "a"), (100, "b"))
    assert line_chart("t", [Series("s", "plain", ())], x_label="x").series[0].path == ""


def test_flatten() -> None:
    assert list(flatten({"a": {"b": 1, "c": [1, 2]}, "d": None, "e": True, "f": {}})) == [
        ("a.b", "1"), ("a.c", "1, 2"), ("d", "null"), ("e", "true"), ("f", "{}"),
    ]  # fmt: skip
