"""What the report computes: curves, the split of time, tables and the choice of episodes."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from envs.settle import SettleReason
from envs.types import StopReason
from tasks_lib.report import build_report, learning_curve_png
from tasks_lib.report.artifacts import artifact_key
from tasks_lib.report.charts import Series, format_duration, line_chart, nice_ticks, number, rolling_mean
from tasks_lib.report.data import RunData, read_run
from tasks_lib.report.episodes import MAX_EPISODES, choose_episodes
from tasks_lib.report.grading import MAX_CAUSES, MAX_WORDS, OTHERS, cause_rows, grading
from tasks_lib.report.page import flatten, percent
from tasks_lib.report.summary import (
    SETTLED,
    episode_counts,
    headline,
    health_charts,
    kind_rows,
    orchestration_share,
    settled_steps,
    staleness_rows,
    time_split,
)
from training.ledger.store import RunStore
from training.records.groups import EpisodeSummary, GroupRecord, StepShape

MakeRun = Callable[..., Any]


@pytest.mark.parametrize("iterations", [0, 3, 30])
def test_learning_curve_png(make_run: MakeRun, iterations: int) -> None:
    run = make_run(iterations=iterations or 1, finished=False)
    if not iterations:
        run.store.metrics_path.unlink()
    data = learning_curve_png(run.root)
    assert (RunStore(run.root).report_path / "learning_curve.png").read_bytes() == data
    assert Image.open(io.BytesIO(data)).size == (1280, 640)


def test_a_curve_of_lines_in_memory_reads_no_measurement(make_run: MakeRun) -> None:
    """So that a picture costs as much at the end of a long run as at its beginning."""
    run = make_run(iterations=12, every=3, finished=False)
    whole, data = learning_curve_png(run.root), read_run(run.root)
    for name in ("groups", "evaluations", "policies"):
        shutil.rmtree(run.root / name, ignore_errors=True)
    run.store.metrics_path.unlink()
    assert learning_curve_png(run.root) != whole, "the file has the lines"
    assert learning_curve_png(run.root, [*data.iterations, *data.evaluations]) == whole


# ----------------------------------------------------------------------------------------------
# pure parts


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
    split = {"rollout_split": {"browser": 18.0, "generate": 6.0}}
    run.iterations = [line.model_copy(update=split) for line in run.iterations]
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


def test_health_and_machine_use_are_drawn_where_a_run_has_them(
    make_run: MakeRun,
) -> None:
    made = make_run(iterations=1, finished=False)
    old = {chart.title for chart, _, _ in health_charts(read_run(made.root))}
    new = {
        "ess": 0.91, "behaviour_weight": 1.02, "dual_clip": 0.01, "behaviour_clamped": 0.0,
        "kl_by_images": {"1": 0.004, "2": 0.25, "8_or_more": 0.5},
    }  # fmt: skip
    lines = [
        {"kind": "iteration", "iteration": 1, "train": {"ess": 0.95}},
        {
            "kind": "iteration", "iteration": 2, "train": new,
            "idle": {"browsers": 0.25, "engines": 0.5, "trainer": 0.75}, "queues": {"engine": 0.125, "trainer": 12.5},
            "asynchronous": {"staleness": {"0": 30, "1": 10}},
        },
        {"kind": "iteration", "iteration": 3, "train": {}, "asynchronous": {"staleness": {"1": 20, "3": 40}}},
    ]  # fmt: skip
    with open(made.store.metrics_path, "ab") as file:
        file.write(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    run = read_run(made.root)
    assert not run.problems
    last = {chart.title: value for chart, _, value in health_charts(run)}
    assert {title: value for title, value in last.items() if title not in old} == {
        "Effective sample size": "0.91", "Behaviour weight": "1.02", "Dual clip": "0.01", "Clamped tokens": "0",
        "KL, 1 image": "0.004", "KL, 2 images": "0.25", "KL, 8 or more images": "0.5",
        "Idle browsers": "0.25", "Idle engines": "0.5", "Idle trainer": "0.75",
        "Wait for the engine": "0.125", "Wait for the trainer": "12.5",
        "Staleness": "2.33", "Trainer waits": "0", "Idle workers": "0", "Groups under way": "0",
    }  # fmt: skip
    assert staleness_rows(run) == [(0, 30, 0.3), (1, 30, 0.3), (3, 40, 0.4)]
    text = build_report(made.root).read_text()
    assert "Staleness of trained rows" in text and "KL, 8 or more images" in text
    older = make_run("older", iterations=1, finished=False)
    assert staleness_rows(read_run(older.root)) == []
    assert "Staleness of trained rows" not in build_report(older.root).read_text()


def test_episode_accounts(make_run: MakeRun) -> None:
    run = read_run(make_run(iterations=4, finished=False).root)
    counts = episode_counts(run)
    assert counts.started == 4 * 256 and counts.states["abstained"] == 1 and counts.unexplained == 0
    run.iterations[0].episodes["consumed"] -= 2
    assert episode_counts(run).unexplained == 2


def test_episodes_are_shown_by_state(make_run: MakeRun) -> None:
    made = make_run(iterations=1, finished=False)
    states = {"started": 12, "consumed": 4, "zero_variance": 3, "failed_filter": 0, "stale": 0, "damaged": 1}
    states |= {"abstained": 3, "abandoned": 1, "in_flight": 0}
    line = {"kind": "iteration", "iteration": 1, "episodes": states, "abstentions": {"block": 2, "grading": 1}}
    with open(made.store.metrics_path, "ab") as file:
        file.write(orjson.dumps(line) + b"\n")
    counts = episode_counts(read_run(made.root))
    rows = {name: value for name, value, _ in counts.rows}
    assert counts.unexplained == 0 and rows["failed filter"] == 64
    assert (rows["zero variance"], rows["damaged"], rows["abstained"], rows["abandoned"]) == (3, 1, 3, 1)
    assert (rows["abstained: block"], rows["abstained: grading"]) == (2, 1) and "stale" not in rows


def test_why_waits_for_pages_ended_is_shown_as_the_groups_counted_it(make_run: MakeRun) -> None:
    """Counted from the files; an older run did not record it, and a newer one may know another
    reason."""
    made = make_run(iterations=1, finished=False)
    assert settled_steps(read_run(made.root)) == []
    assert "Why the wait for a page ended" not in build_report(made.root).read_text()
    paths = sorted((made.root / "groups").glob("*/*.json"))
    for place, path in enumerate(paths):
        group = orjson.loads(path.read_bytes())
        for episode in group["episodes"]:
            episode["settled"] = {"rested": 3, "deadline": 1} if place % 2 else {"rested": 2, "unheard_of": place}
        path.write_bytes(orjson.dumps(group))
    counted = {"training": Counter[str](), "evaluation": Counter[str]()}
    for path in paths:
        phase = "evaluation" if path.parent.name.startswith("e") else "training"
        for episode in orjson.loads(path.read_bytes())["episodes"]:
            counted[phase].update(episode["settled"])
    rows = settled_steps(read_run(made.root))
    for phase, counts in counted.items():
        assert counts.total() and {each.reason: getattr(each, phase) for each in rows} == {
            reason: counts[reason] for reason in ("rested", "deadline", "unheard_of")
        }
        for each in rows:
            assert getattr(each, f"{phase}_share") == pytest.approx(counts[each.reason] / counts.total())
    assert {each.reason: bool(each.why) for each in rows} == {"rested": True, "deadline": True, "unheard_of": False}
    text = build_report(made.root).read_text()
    assert "Why the wait for a page ended" in text and "<code>unheard_of</code>" in text and SETTLED["deadline"] in text
    assert set(SETTLED) == set(SettleReason)


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
            shapes=(StepShape(1, 1, 0),),
            sha256="",
        )
        for i, s in enumerate(scores)
    )
    return GroupRecord(token="", group_id=group_id, task_id=kind, kind=kind, policy_version=0, episodes=members)


def test_choice_prefers_a_page_that_was_learned_and_is_bounded() -> None:
    first = [_group("e000000", "a", 1, 0.0), _group("e000000", "a", 2, 0.0), _group("e000000", "a", 3, 1.0)]
    last = [_group("e000009", "a", 1, 0.0), _group("e000009", "a", 2, 1.0), _group("e000009", "a", 3, 1.0)]
    chosen = [(c.reason, c.member.seed, c.member.score) for c in choose_episodes(first + last)]
    assert ("first evaluation", 2, 0.0) in chosen and ("last evaluation", 2, 1.0) in chosen
    many = [_group(phase, f"k{n}", 1, 0.0, 1.0, None) for phase in ("e000000", "e000005", "i000004") for n in range(30)]
    chosen_many = choose_episodes(many)
    assert len(chosen_many) == MAX_EPISODES
    assert sum(c.reason == "abstention" for c in chosen_many) == 5
    assert len({c.member.episode_id for c in chosen_many}) == MAX_EPISODES


def test_ticks_numbers_and_durations() -> None:
    assert nice_ticks(0, 9, 5) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(3, 3, 2)[0] <= 3 <= nice_ticks(3, 3, 2)[-1]
    assert [number(v) for v in (0, 1, 0.00122, 1234.5, 1e-5, None)] == ["0", "1", "0.00122", "1,234", "1e-5", "–"]
    assert [format_duration(v) for v in (7.31, 42, 540, 7500, None)] == ["7.3 s", "42 s", "9 min", "2 h 05 min", "–"]
    assert [percent(v) for v in (0, 0.0001, 0.074, 0.5)] == ["0.0 %", "< 0.1 %", "7.4 %", "50 %"]
    assert rolling_mean([(0, 0.0), (1, 3.0), (2, 6.0)], 3) == ((0, 1.5), (1, 3.0), (2, 4.5))


def test_line_chart_positions() -> None:
    line = Series("s", "plain", ((0, 0.0), (10, 1.0)), dots=True, band=((0, 0.0, 0.5), (10, 0.5, 1.0)))
    chart = line_chart("t", [line], x_label="x", y_range=(0, 1), notes={10: "b", 0: "a"})
    assert chart.series[0].dots == ((0, 100), (100, 0))
    assert chart.series[0].path == "M0.0 1000.0L1000.0 0.0"
    assert chart.notes == ((0, "a"), (100, "b"))
    assert line_chart("t", [Series("s", "plain", ())], x_label="x").series[0].path == ""


@given(low=st.floats(-1e30, 1e30), apart=st.sampled_from([0.0, 5e-324, 1e-16, 1e-12, 1e-9, 1e-3, 1.0]))
@example(low=0.0123456789, apart=1e-16)
def test_any_two_values_can_be_drawn_however_near_they_are(low: float, apart: float) -> None:
    """Two iterations whose values differ in the last digit once ended a run without its report."""
    high = low + max(apart * abs(low), 0.0) if low else apart
    points = ((0.0, low), (1.0, high))
    chart = line_chart("t", [Series("t", "plain", points, dots=True)], x_label="iteration", y_steps=2)
    assert all(0 <= y <= 100 for _, y in chart.series[0].dots)


def test_flatten() -> None:
    assert list(flatten({"a": {"b": 1, "c": [1, 2]}, "d": None, "e": True, "f": {}})) == [
        ("a.b", "1"), ("a.c", "1, 2"), ("d", "null"), ("e", "true"), ("f", "{}"),
    ]  # fmt: skip


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
    first, second = cause_rows(data)
    assert (first.words, first.training, first.evaluation) == ("<address> answered 503", 2, 1)
    assert second.words.startswith("<b>long") and len(second.words) <= MAX_WORDS + 1
    letters = [f"cause {chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(MAX_CAUSES + 7)]
    data.groups = [_group("i000000", name, 1, None) for name in letters]
    for at, name in enumerate(letters):
        member = data.groups[at].episodes[0].model_copy(update={"abstained": name})
        data.groups[at] = data.groups[at].model_copy(update={"episodes": (member,)})
    rows = cause_rows(data)
    assert len(rows) == MAX_CAUSES + 1 and (rows[-1].words, rows[-1].training) == (OTHERS, 7)
    assert cause_rows(RunData("r")) == [] and grading(RunData("r")).rows == []


@pytest.mark.parametrize(
    ("run_id", "key"),
    [("quickstart-seed0", "quickstart-seed0-iteration"), ("My_Run.2", "my-run-2-iteration"), ("_x", "x-iteration")],
)
def test_artifact_keys_hold_what_prefect_allows(run_id: str, key: str) -> None:
    assert artifact_key(run_id, "iteration") == key
