"""Rewards that were graded again, in the report: sums by hand, what decided, what is half done or
damaged, and the page itself."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from envs.rewards import read_rubric, score
from envs.rewards.judge import Judgement
from envs.types import Cost, PartRole, RewardBundle, RewardPart, rubric_hash
from tasks_lib.folder.regraded import Regraded, RegradingStart, write_end, write_start
from tasks_lib.report import build_report
from tasks_lib.report.data import read_run
from tasks_lib.report.episodes import MAX_REGRADED, choose_episodes, viewer_data
from tasks_lib.report.page import facets, render
from tasks_lib.report.regraded import RegradingData, classify_change, describe_change, read_regradings
from training.ledger.store import RunStore, write_json

HACK = "<img src=x onerror='window.hacked = 9'>"
JUDGE = {"base_url": "http://judge:8000/v1", "models": {"default": "big", "keyframe": "small"}, "style": "webgym"}


def part(value: float | None, name: str = "page", **more: Any) -> RewardPart:
    return RewardPart(name=name, value=value, weight=1.0, **{"evidence": f"{name} as seen", **more})


PASSED, FAILED, NONE = (
    score([part(1.0)]),
    score([part(0.0, evidence=f"saw {HACK}")]),
    score([], abstained="judge at http://j/1 is down"),
)
HALF = score([part(1.0), part(0.0, "fast", role=PartRole.SHAPING)])
"""Passes, with a reward of a half."""


def put(store: RunStore, name: str, rewards: dict[str, RewardBundle]) -> None:
    for episode_id, reward in rewards.items():
        played = store.trajectory(episode_id)
        result = Regraded(episode_id=episode_id, task_id=played.task_id, reward=reward, before=played.reward)
        write_json(store.regraded_path(name, episode_id), result)


def start(store: RunStore, name: str, at: float, *, episodes: int = 0, ended: bool = True, **settings: Any) -> None:
    """A start of a regrading."""
    given = {"judge": None, "rewards": {}, "tasks": None, **settings}
    write_start(store, name, RegradingStart(at=at, which="all", episodes=episodes, settings=given))
    if ended:
        write_end(store, name, at + 60)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> Path:
    """A run's folder that nobody changes."""
    root: Path = synthetic.SyntheticRun(tmp_path_factory.mktemp("runs") / "run-1", iterations=2, every=2).root
    return root


@pytest.fixture
def store(written: Path, tmp_path: Path) -> RunStore:
    return RunStore(shutil.copytree(written, tmp_path / "run-1"))


def again(store: RunStore) -> list[RegradingData]:
    run = read_run(store.root)
    found = read_regradings(run, store)
    assert run.problems == []
    return found


def episodes_of(store: RunStore) -> dict[str, Any]:
    """What the page's viewer has, by id."""
    found = re.search(r'id="episode-data">(.*?)</script>', build_report(store.root).read_text(), re.DOTALL)
    assert found
    return {episode["id"]: episode for episode in json.loads(found[1])["episodes"]}


# ------------------------------------------------------------------------------------------------
# sums


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (PASSED, FAILED, "passes no more"),
        (FAILED, PASSED, "passes now"),
        (NONE, FAILED, "reward now"),
        (PASSED, NONE, "no reward now"),
        (PASSED, HALF, "other score"),
        (score([part(1.0), part(None, "judge")]), score([part(1.0), part(1.0, "judge")]), "other parts"),
        (PASSED, score([part(1.0, evidence="in other words"), part(None, "judge")]), "as before"),
        (NONE, score([], abstained="another cause"), "as before"),
    ],
)
def test_what_became_of_a_grade(before: RewardBundle, after: RewardBundle, told: str) -> None:
    assert classify_change(before, after) == told


def test_sums_before_and_now(store: RunStore) -> None:
    # v0: click-test passes in all three samples, choose-list (the last kind) only in the first, by
    # the made-up run's rule.
    lost, kept, shaped = (f"e000000-g0000-s{n}" for n in range(3))
    still, won, shut = (f"e000000-g0006-s{n}" for n in range(3))
    abstained = "i000001-g0090-s0"
    put(
        store,
        "again",
        {lost: FAILED, kept: PASSED, shaped: HALF, still: PASSED, won: PASSED, shut: NONE, abstained: HALF},
    )
    start(store, "again", 100.0, episodes=7)
    (found,) = again(store)
    assert [each.episode_id for each in found.episodes] == sorted([lost, kept, shaped, still, won, shut, abstained])
    before, after = found.before, found.after
    assert (before.passed, before.rewards, before.abstained) == (4, 6, 1)
    assert before.mean == pytest.approx((1 + 1 + 1 + 1 + 0 + 0) / 6)
    assert (after.passed, after.rewards, after.abstained) == (5, 6, 1)
    assert after.mean == pytest.approx((0 + 1 + 0.5 + 1 + 1 + 0.5) / 6)
    expected = [("passes no more", 1), ("passes now", 1), ("reward now", 1), ("no reward now", 1), ("other score", 1)]
    assert found.changes == [*expected, ("as before", 2)]
    rows = [(row.kind, row.episodes, row.changed, row.before.passed, row.after.passed) for row in found.kinds]
    assert rows == [("click-test", 4, 3, 3, 3), ("choose-list", 3, 2, 1, 2)]
    assert found.causes == [("judge at <address> is down", 1)]
    assert [each.episode_id for each in found.changed] == [lost, won, abstained, shut, shaped]
    assert {each.where for each in found.episodes} == {"evaluation of v0", "iteration 1"}


def test_each_change_has_its_turn_among_the_first(store: RunStore) -> None:
    put(store, "again", {f"e000002-g000{group}-s{sample}": FAILED for group in (0, 1) for sample in range(3)})
    put(store, "again", {"e000002-g0006-s1": PASSED, "i000001-g0090-s0": HALF})
    (found,) = again(store)
    assert [each.change for each in found.changed[:4]] == [
        "passes no more",
        "passes now",
        "reward now",
        "passes no more",
    ]
    assert [each.change for each, _ in found.rows] == ["passes no more"] * 6 + ["passes now", "reward now"], (
        "in a table, sorted"
    )


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (score([part(0.0)]), score([part(1.0)]), ["page 0.00 → 1.00: page as seen"]),
        (NONE, score([part(1.0)]), ["page no part → 1.00: page as seen"]),
        (
            score([part(1.0), part(None, "judge")]),
            score([part(1.0), part(0.0, "judge")]),
            ["judge not available → 0.00: judge as seen"],
        ),
        (score([part(1.0), part(0.5, "old")]), score([part(1.0), part(None, "new")]), ["old 0.50 → no part"]),
        (PASSED, score([part(1.0)], abstained="shut"), ["no reward: shut"]),
        (
            score([part(1.0)]),
            score([RewardPart(name="page", value=1.0, weight=2.0, evidence="")]),
            ["page weighs 2, not 1"],
        ),
        (
            score([part(0.0, f"p{n}") for n in range(6)]),
            score([part(1.0, f"p{n}") for n in range(6)]),
            [*(f"p{n} 0.00 → 1.00: p{n} as seen" for n in range(4)), "and 2 more parts"],
        ),
        (PASSED, PASSED.model_copy(update={"passed": False}), ["another rubric's threshold"]),
    ],
)
def test_what_decided_a_later_grade(before: RewardBundle, after: RewardBundle, told: list[str]) -> None:
    assert describe_change(Regraded(episode_id="e", task_id="t", before=before, reward=after)) == told


def test_who_graded_and_what_was_set_otherwise(store: RunStore) -> None:
    put(store, "again", {"e000000-g0000-s0": FAILED})
    config = {"rollout": {"judge": {**JUDGE, "style": "webvoyager"}}, "rewards": {"length": 0.0, "task": 1.0}}
    start(store, "again", 100.0, judge=JUDGE, rewards={"length": 0.1, "task": 1.0, "newer": 3}, ended=False)
    (found,) = again(store)
    assert found.judge == "big, small (webgym) at http://judge:8000/v1"
    assert found.other_settings(config) == [("judge.style", "webgym", "webvoyager"), ("rewards.length", "0.1", "0.0")]
    assert found.other_settings({}) == [] and not found.mixed
    start(store, "again", 200.0, judge=None, rewards={"length": 0.1})
    (found,) = again(store)
    assert found.mixed and found.judge == "" and found.started_at == 200.0 and not found.unfinished


# ------------------------------------------------------------------------------------------------
# the viewer's values


def test_a_run_without_regradings_is_as_before(store: RunStore) -> None:
    run = read_run(store.root)
    viewer = viewer_data(run, store)
    page = render(run, viewer, now=0.0)
    assert 'id="regraded"' not in page and 'href="#regraded"' not in page and "the last regrading" not in page
    assert all(not {"later", "again"} & episode.keys() for episode in viewer["episodes"])
    assert facets(viewer["episodes"]).keys() == {"kind", "outcome", "where"}
    (store.root / "regraded" / "nothing").mkdir(parents=True)  # of a regrading that found nothing to grade
    write_json(store.root / "regraded" / "nothing" / "summary.json", {"episodes": 0})
    regradings = read_regradings(run, store)
    assert render(run, viewer_data(run, store, regradings), regradings, now=0.0) == page


def test_later_grades_lie_under_the_first_newest_first(store: RunStore) -> None:
    one, other = "e000000-g0000-s0", "e000000-g0006-s1"
    put(store, "longer", {one: FAILED, other: PASSED})
    start(store, "longer", 1_000.0)
    put(store, "again", {one: score([part(0.5), part(1.0, "judge")])})
    start(store, "again", 2_000_000.0)
    shown = episodes_of(store)
    newest, oldest = shown[one]["later"]
    assert [newest["name"], oldest["name"], oldest["when"]] == ["again", "longer", "1970-01-01 00:16 UTC"]
    assert shown[one]["outcome"] == "success" and (oldest["outcome"], oldest["change"]) == ("failure", "passes no more")
    assert [(p["name"], p["first"], p["value"]) for p in newest["parts"]] == [
        ("page", [1.0], 0.5),
        ("judge", [None], 1.0),
    ]
    assert shown[one]["again"] == newest["change"]
    assert [each["name"] for each in shown[other]["later"]] == ["longer"] and shown[other]["again"] == "passes now"
    assert {each["again"] for each in shown.values()} > {"not graded again", "passes now"}
    page = (store.report_path / "index.html").read_text()
    assert page.index("<code>again</code>") < page.index("<code>longer</code>")
    assert facets(list(shown.values()))["again"] == ["passes no more", "passes now", "not graded again"]


def test_those_that_changed_are_in_the_viewer(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = read_run(store.root).groups
    usual = [entry.member.episode_id for entry in choose_episodes(groups)]
    first = [m.episode_id for g in groups if g.phase == "i000000" for m in g.episodes]
    assert not {*first} & {*usual}, "the viewer shows the last iteration"
    put(store, "again", {name: FAILED if store.trajectory(name).reward.passed else PASSED for name in first})
    shown = viewer_data(read_run(store.root), store, again(store))["episodes"]
    added = [episode for episode in shown if episode["reason"] == "graded again"]
    assert len(added) == MAX_REGRADED and len(shown) == len(usual) + MAX_REGRADED
    assert {episode["again"] for episode in added} == {"passes now", "passes no more"}
    monkeypatch.setattr("tasks_lib.report.episodes.MAX_EPISODES", len(usual) + 1)
    wanted = [*first[:3], usual[-1]]
    names = [entry.member.episode_id for entry in choose_episodes(groups, wanted)]
    assert names == [*usual[:-3], usual[-1], *first[:3]], "in the places of the last that nobody wants"


def test_a_later_grade_has_its_own_rubric_and_judgement(store: RunStore) -> None:
    name = "e000000-g0000-s0"
    played = store.trajectory(name)
    facts = [{"id": "pressed", "type": "judge", "description": "The button was pressed"}]
    rubric = read_rubric({"fact_groups": [{"name": "seen", "facts": facts}]})
    store.put_rubric(rubric)
    said = Judgement(state="failed", score=0.0, reason="it was not", checks=(), calls=())
    result = Regraded(
        episode_id=name,
        task_id=played.task_id,
        before=played.reward,
        reward=score([part(0.0, "seen/pressed")], rubric_hash=rubric_hash(rubric)),
        judgement=store.put_blob(said.model_dump_json().encode()),
    )
    write_json(store.regraded_path("again", name), result)
    (found,) = again(store)
    assert found.rubrics == 1
    (later,) = episodes_of(store)[name]["later"]
    (row,) = later["rubricFacts"]["rows"]
    assert (row[:2], row[4:6]) == (["seen", "pressed"], [0.0, False])
    assert (later["judgement"]["state"], later["judgement"]["reason"]) == ("failed", "it was not")


def test_later_evidence_is_bounded(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.report.episodes.MAX_LATER", 20)
    name = "e000000-g0000-s0"
    for number, words in enumerate(("a" * 15, "b" * 15)):
        put(store, f"n{number}", {name: score([part(0.0, evidence=words)])})
        start(store, f"n{number}", 100.0 + number)
    newest, oldest = episodes_of(store)[name]["later"]
    assert newest["parts"][0]["evidence"] == "b" * 15 and newest["missing"] is None
    assert oldest["parts"] == [] and "left out" in oldest["missing"] and oldest["score"] == 0.0


# ------------------------------------------------------------------------------------------------
# half done, damaged


def test_a_regrading_that_was_stopped_shows_what_is_there(store: RunStore) -> None:
    put(store, "again", {"e000000-g0000-s0": FAILED, "e000000-g0000-s1": PASSED})
    start(store, "again", 100.0, episodes=9, ended=False)
    (found,) = again(store)
    assert found.unfinished and found.planned == 9
    page = build_report(store.root).read_text()
    assert "2 of 9 episodes are graded: it goes on, or was stopped." in page and "2 episodes, 1 changed" in page
    assert episodes_of(store)["e000000-g0000-s0"]["later"][0]["outcome"] == "failure"
    start(store, "barely", 200.0, episodes=9, ended=False)  # killed before its first reward
    page = build_report(store.root).read_text()
    assert page.index("0 of 9 episodes are graded") < page.index("2 of 9 episodes are graded")


def test_one_from_before_starts_were_kept_is_shown(store: RunStore) -> None:
    put(store, "again", {"e000000-g0000-s0": FAILED})
    (found,) = again(store)
    assert not found.unfinished and found.planned == 1 and found.started_at > 0
    assert "What it was started with was not kept." in build_report(store.root).read_text()


def test_what_is_damaged_is_one_message_and_no_lost_report(store: RunStore) -> None:
    names = [f"e000000-g000{g}-s0" for g in range(4)]
    put(store, "again", {name: PASSED for name in names})
    start(store, "again", 100.0)
    for name in names[1:3]:
        store.regraded_path("again", name).write_bytes(b'{"episode_id": "')
    run = read_run(store.root)
    (found,) = read_regradings(run, store)
    assert [each.episode_id for each in found.episodes] == [names[0], names[3]]
    (problem,) = run.problems
    assert str(store.regraded_path("again", names[1])) in problem and f"move it to {names[1]}.json.damaged" in problem
    assert problem.endswith("So are 1 more of this regrading.")
    store.regrading_path("again").write_text("[]")
    page = build_report(store.root).read_text()
    assert "3 things in the folder could not be read" in page
    assert page.count("rubrics/" + "ab" * 32) == 1, "of all episodes that it graded"
    assert "is no log of a regrading" in page and "<code>again</code>" in page


# ------------------------------------------------------------------------------------------------
# the page


def test_the_page_shows_it_and_as_text(store: RunStore, chromium: Browser, tmp_path: Path) -> None:
    abstained, lost = "i000001-g0090-s0", "e000000-g0000-s0"
    bundle = score([part(1.0, evidence=f"the judge saw {HACK}", cost=Cost(seconds=2, tokens=900))])
    put(store, "by <b>another", {abstained: bundle, lost: FAILED, "e000000-g0000-s1": PASSED})
    start(store, "by <b>another", 100.0, episodes=3, judge=JUDGE)
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(build_report(store.root).as_uri())
    section = page.inner_text("#regraded")
    assert "by <b>another" in section and "judge big, small (webgym) at http://judge:8000/v1" in section
    assert "finished" in section and "900 tokens" in section
    rows = [row.split("\t") for row in page.locator("#regraded .sums tbody tr").all_inner_texts()]
    assert rows[:4] == [
        ["passed", "2", "2"],
        ["with a reward", "2", "3"],
        ["mean of these", "1.000", "0.667"],
        ["without (abstained)", "1", "0"],
    ]
    assert [row[0] for row in rows[4:]] == ["passes no more", "reward now", "as before"]
    assert page.locator("#regraded .by-kind tbody tr").all_inner_texts() == ["click-test\t3\t2\t1 → 0\t2"]
    first = page.locator("#regraded .regraded tbody tr").nth(0)
    assert f"page 1.00 → 0.00: saw {HACK}" in first.inner_text()
    first.locator("a").click()
    page.wait_for_selector(f"#list button[aria-current=true][data-id='{lost}']")  # the page hears of its new address
    assert "→ ✗ failure, graded again" in page.inner_text("#detail header")
    later = page.inner_text("#detail .later")
    assert "Graded again: by <b>another" in later and "not passed" in later
    (row,) = page.locator("#detail .later .reward tbody tr").all_inner_texts()
    assert row.split("\t") == ["page", "scored", "1.00", "0.00", "1.00", f"saw {HACK}", "–"]
    page.select_option("[data-facet=again]", "reward now")
    assert page.inner_text("#count").startswith("1 of")
    assert "○" in page.inner_text("#list") and "→ ✓" in page.inner_text("#list")
    assert "○ abstained" in page.inner_text("#detail .later") and "✓ success" in page.inner_text("#detail .later")
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("window.hacked") is None and page.locator("#regraded b b, #regraded img").count() == 0
    assert not complaints
    context.close()
