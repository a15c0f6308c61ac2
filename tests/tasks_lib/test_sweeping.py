"""A sweep's folder: what became of its arms, what may change, how it ends; its summary and its
page. Arms are played by a stand-in for the flow."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from prefect.exceptions import TerminationSignal

from envs.types import ConfigError, PolicyError, StorageError, TrainingError
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.folder.lock import run_lock
from tasks_lib.preflight.flows import check_sweep
from tasks_lib.processes.interrupts import find_interrupt
from tasks_lib.report.data import Success
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.page import build_sweep_report
from tasks_lib.sweeps.summary import ArmRecord, ArmState, SweepSummary, lines, summarise, table_rows
from tasks_lib.sweeps.sweeping import open_sweep, run_as_subflows
from tests.tasks_lib.swept import Train, interval
from training.ledger.store import read_json

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
FINISHED, FAILED, WAITING = ArmState.FINISHED, ArmState.FAILED, ArmState.WAITING


def config(root: Path, **changes: Any) -> SweepConfig:
    values = {"run_id": "s", "root": str(root), "base": {"iterations": 3}, "grid": {"seed": [0, 1, 2]}, **changes}
    found: SweepConfig = resolve(SweepConfig, values)
    return found


def sweep(root: Path, train: Callable[[TrainConfig], None], **changes: Any) -> SweepSummary:
    """Run it here, to its end."""
    with open_sweep(config(root, **changes)) as run:
        run_as_subflows(run, train, lambda _: None)
        run.check()
        return run.summary


def written(root: Path) -> SweepSummary:
    return SweepSummary.model_validate(read_json(root / "s" / "sweep.json"))


def states(root: Path) -> dict[str, ArmState]:
    return {arm.run_id: arm.state for arm in written(root).arms}


# ----------------------------------------------------------------------------
# its folder


def test_arms_are_played_once_and_then_only_read(tmp_path: Path) -> None:
    train = Train()
    summary = sweep(tmp_path, train)
    assert train.played == ["s-seed0", "s-seed1", "s-seed2"]
    assert summary == written(tmp_path)
    arm = summary.record("s-seed2")
    assert (arm.state, arm.values, arm.split, arm.minutes) == (FINISHED, {"seed": 2}, "held_out", 1.5)
    assert arm.success_before == Success(**interval(4, 20)) and arm.success_after == Success(**interval(12, 20))
    assert arm.report and (tmp_path / "s" / arm.report).read_text() == "a run's page"
    assert summary.best == {"held_out": "s-seed2"}
    (setting,) = summary.settings
    assert (setting.n, setting.mean, setting.min, setting.max) == (3, pytest.approx(0.55), 0.5, 0.6)

    assert sweep(tmp_path, train) == summary
    assert len(train.played) == 3, "read, not run again"


def test_an_arm_that_fails_stops_no_other_and_is_tried_again_alone(tmp_path: Path) -> None:
    train = Train(s_seed1=PolicyError("no\n  checkpoint"))
    with pytest.raises(TrainingError, match=r"^1 of 3 arms failed; .*\n  s-seed1: PolicyError: no checkpoint$"):
        sweep(tmp_path, train)
    assert states(tmp_path) == {"s-seed0": FINISHED, "s-seed1": FAILED, "s-seed2": FINISHED}
    assert written(tmp_path).record("s-seed1").error == "PolicyError: no checkpoint"
    assert "PolicyError: no checkpoint" in (tmp_path / "s" / "report" / "index.html").read_text()

    train.trouble.clear()
    assert sweep(tmp_path, train).record("s-seed1").error is None
    assert train.played == ["s-seed0", "s-seed1", "s-seed2", "s-seed1"]


def _while_tidying_up() -> Exception:
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError("the cluster is gone already")
    except OSError as error:
        return error


@pytest.mark.parametrize(
    "end",
    [KeyboardInterrupt(), SystemExit(1), TerminationSignal(signal.SIGTERM), _while_tidying_up()],
    ids=lambda end: type(end).__name__,
)
def test_an_interrupt_ends_the_sweep_at_once_and_is_no_failed_arm(tmp_path: Path, end: BaseException) -> None:
    train = Train(s_seed1=end)
    with pytest.raises(BaseException) as found:
        sweep(tmp_path, train)
    assert not isinstance(found.value, Exception)
    assert train.played == ["s-seed0", "s-seed1"]
    assert states(tmp_path) == {"s-seed0": FINISHED, "s-seed1": ArmState.INTERRUPTED, "s-seed2": WAITING}
    sweep(tmp_path, Train())
    assert set(states(tmp_path).values()) == {FINISHED}


def test_an_error_of_its_own_is_no_interrupt(tmp_path: Path) -> None:
    error = ValueError("a")
    error.__cause__ = KeyError("b")
    error.__cause__.__context__ = error
    assert find_interrupt(error) is None
    late = TimeoutError("the browser")  # as asyncio.timeout makes it
    late.__cause__ = asyncio.CancelledError()
    with pytest.raises(TrainingError, match="s-seed1: TimeoutError: the browser"):
        sweep(tmp_path, Train(s_seed1=late))


def test_arms_may_be_added_and_made_longer_and_keep_their_values(tmp_path: Path) -> None:
    train = Train()
    sweep(tmp_path, train)
    sweep(tmp_path, train, grid={"seed": [3, 0, 1, 2]})
    assert train.played[3:] == ["s-seed3"]
    grid = {"seed": [0, 1, 2, 3, 4]}
    with pytest.raises(ConfigError) as found:
        sweep(
            tmp_path,
            train,
            grid=grid,
            base={"iterations": 3, "trainer": {"epochs": 3}, "evaluation": {"split": "validation"}},
        )
    said = str(found.value)
    assert said.startswith("sweep s has begun s-seed0, s-seed1, s-seed2, s-seed3 with other values (see ")
    assert "give what is to differ in grid or arms" in said
    assert said.endswith("\n  evaluation.split: held_out then, validation now\n  trainer.epochs: 1 then, 3 now")
    assert len(train.played) == 4
    sweep(tmp_path, train, grid=grid, base={"iterations": 5, "cluster": {"workers": 2}})
    assert sorted(train.played[4:]) == ["s-seed0", "s-seed1", "s-seed2", "s-seed3", "s-seed4"]


def test_arms_are_dropped_and_go_on_when_they_are_named_again(tmp_path: Path) -> None:
    train = Train(s_seed1=PolicyError("no checkpoint"))
    with pytest.raises(TrainingError, match="1 of 3 arms failed"):
        sweep(tmp_path, train)
    result = (tmp_path / "s-seed2" / "result.json").read_bytes()
    summary = sweep(tmp_path, train, grid={"seed": [0, 4]})
    assert train.played[3:] == ["s-seed4"], "the failed one is not tried again, the finished one is only read"
    dropped = ArmState.DROPPED
    assert states(tmp_path) == {"s-seed0": FINISHED, "s-seed4": FINISHED, "s-seed1": dropped, "s-seed2": dropped}
    assert summary.record("s-seed2").success_after == Success(**interval(12, 20)), "what it came to is kept"
    assert summary.record("s-seed1").error == "PolicyError: no checkpoint"
    (setting,) = summary.settings
    assert (setting.n, setting.mean, setting.max) == (2, pytest.approx(0.6), 0.7)
    assert summary.best == {"held_out": "s-seed4"}
    assert (tmp_path / "s-seed2" / "result.json").read_bytes() == result
    page = (tmp_path / "s" / "report" / "index.html").read_text()
    assert "2 finished" in page and "2 dropped" in page and "<span>2 arms</span>" in page
    assert page.count('class="dot arm') == 2 * 2 + 2 + 1, "two versions of two arms, their keys, that of the legend"

    only = sweep(tmp_path, train, grid={"seed": [0]})
    assert only.best == {"held_out": "s-seed0"} and len(only.arms) == 4
    train.trouble.clear()
    again = sweep(tmp_path, train)
    assert train.played[4:] == ["s-seed1"] and set(states(tmp_path).values()) == {FINISHED, dropped}
    assert [arm.run_id for arm in again.arms] == ["s-seed0", "s-seed1", "s-seed2", "s-seed4"]
    base = {"iterations": 3, "evaluation": {"split": "validation"}}
    with pytest.raises(
        ConfigError, match=r"has begun s-seed4 with other values(.|\n)*evaluation\.split: held_out then"
    ):
        sweep(tmp_path, train, grid={"seed": [4]}, base=base)


def test_an_arm_that_fails_for_good_is_given_another_value(tmp_path: Path) -> None:
    train = Train(**{"s_std_epsilon0.5": PolicyError("no")})
    with pytest.raises(TrainingError, match="1 of 2 arms failed"):
        sweep(tmp_path, train, grid={"algorithm.std_epsilon": [0.1, 0.5]})
    summary = sweep(tmp_path, train, grid={"algorithm.std_epsilon": [0.1, 0.25]})
    assert train.played[2:] == ["s-std_epsilon0.25"]
    assert [str(arm.state) for arm in summary.arms] == ["finished", "finished", "dropped"]


def test_arms_that_never_began_leave_no_trace_and_may_get_other_values(tmp_path: Path) -> None:
    train = Train(s_seed1=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, train)
    with pytest.raises(ConfigError, match=r"has begun s-seed1 with other values"):
        sweep(tmp_path, train, grid={"seed": [1, 2]}, base={"trainer": {"epochs": 3}})
    sweep(tmp_path, train, grid={"seed": [2]}, base={"iterations": 3, "trainer": {"epochs": 3}})
    assert states(tmp_path) == {"s-seed2": FINISHED, "s-seed0": ArmState.DROPPED, "s-seed1": ArmState.DROPPED}
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, train, grid={"seed": [1, 5]})
    sweep(tmp_path, train, grid={"seed": [0]})
    assert "s-seed5" not in states(tmp_path)
    assert list(read_json(tmp_path / "s" / "config.json")["arms"]) == ["s-seed0", "s-seed1", "s-seed2"]


def test_an_arm_goes_on_however_its_values_are_written(tmp_path: Path) -> None:
    train = Train()
    sweep(tmp_path, train, grid={}, arms=[{"rollout.concurrency": 4}, {"policy.temperature": 1}])
    assert train.played == ["s-concurrency4", "s-temperature1"]
    arms = [{"rewards.concurrency": 4}, {"policy.temperature": 1.0}, {"rollout.concurrency": 4}]
    summary = sweep(tmp_path, train, grid={}, arms=arms)
    assert [arm.run_id for arm in summary.arms][1:] == ["s-temperature1", "s-concurrency4"]
    assert len(train.played) == 3 and train.played[2].startswith("s-concurrency4-")
    (told, *_) = check_sweep(config(tmp_path, grid={}, arms=arms[1:]))
    assert re.match(r"arm s-concurrency4-\w+ \(rewards\.concurrency=4\) is dropped: its run stays as it is", told)
    other = {"iterations": 3, "trainer": {"epochs": 2}}
    with pytest.raises(
        ConfigError, match=r"has begun s-concurrency4 with other values(.|\n)*\n  rollout\.concurrency: 4 then"
    ):
        sweep(tmp_path, train, grid={}, arms=[{"rewards.concurrency": 4}], base=other)
    assert len(train.played) == 3, "the folder of the other arm is not used"


def test_the_budget_of_the_judge_may_change(tmp_path: Path) -> None:
    train = Train(s_seed1=PolicyError("no"))
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}, "budget_requests": 9}
    with pytest.raises(TrainingError, match="1 of 3 arms failed"):
        sweep(tmp_path, train, base={"iterations": 3, "rollout": {"judge": judge}})
    train.trouble.clear()
    sweep(tmp_path, train, base={"iterations": 3, "rollout": {"judge": {**judge, "budget_requests": 90}}})
    assert train.played[3:] == ["s-seed1"]


def test_a_run_with_other_values_is_refused_before_anything_starts(tmp_path: Path) -> None:
    train = Train()
    train(resolve(TrainConfig, {"run_id": "s-seed2", "root": str(tmp_path), "iterations": 3, "seed": 7}))
    with pytest.raises(ConfigError, match=r"run s-seed2 was started with other values of: seed"):
        sweep(tmp_path, train)
    assert train.played == ["s-seed2"] and not (tmp_path / "s" / "config.json").exists()


def test_the_folder_of_a_single_run_is_no_sweeps(tmp_path: Path) -> None:
    train = Train()
    train(resolve(TrainConfig, {"run_id": "s", "root": str(tmp_path)}))
    with pytest.raises(ConfigError, match=r"is the folder of a training run, not of a sweep; use another run_id"):
        sweep(tmp_path, train)


def test_two_processes_do_not_run_one_sweep(tmp_path: Path) -> None:
    with run_lock(tmp_path / "s"), pytest.raises(StorageError, match="another process is working on"):
        sweep(tmp_path, Train())


def test_an_arm_that_left_no_result_where_we_look_is_a_failed_one(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"s-seed0: it ended well, but .*s-seed0/result\.json has no result of 3 updates"
    ):
        sweep(tmp_path, lambda _: None)


# ----------------------------------------------------------------------------
# its summary


def record(
    run_id: str, mean: float | None, state: ArmState = FINISHED, split: str = "held_out", **values: Any
) -> ArmRecord:
    after = Success(mean=mean or 0.0, low=0.0, high=1.0, n=0 if mean is None else 20)
    return ArmRecord(run_id=run_id, values=values, split=split, state=state, success_before=after, success_after=after)


def test_means_over_seeds_are_of_the_arms_that_were_measured() -> None:
    summary = summarise(
        "s",
        "",
        [
            record("a", 0.2, **{"x.y": 1, "seed": 0}),
            record("b", 0.6, **{"x.y": 1, "seed": 1}),
            record("c", 0.9, **{"x.y": 2, "seed": 0}),
            record("d", None, **{"x.y": 2, "seed": 1}),
            record("e", 1.0, FAILED, **{"x.y": 2, "seed": 2}),
        ],
    )
    assert summary.keys == ("x.y", "seed")
    assert [(s.values, s.n, s.mean, s.min, s.max) for s in summary.settings] == [
        ({"x.y": 2}, 1, 0.9, 0.9, 0.9),
        ({"x.y": 1}, 2, pytest.approx(0.4), 0.2, 0.6),
    ]
    assert summary.best == {"held_out": "c"}, "neither a failed arm nor one without a reward"
    said = lines(summary)
    assert said[3] == "d  unknown, no episode has a reward -> unknown, no episode has a reward"
    assert said[4] == "e  failed"
    assert said[5] == "x.y=1: 0.400 over 2 seeds, 0.200 to 0.600 (held_out)"
    assert said[6] == "best on held_out: c, 0.90 [0.00, 1.00]; within its interval: a, b"
    assert "tuned on the held-out pages" in said[7]


def test_what_was_measured_on_different_pages_is_not_compared() -> None:
    arms = [record("a", 0.9, split="validation", lr=1), record("b", 0.4, lr=2), record("c", 0.4, lr=3)]
    summary = summarise("s", "", arms)
    assert summary.best == {"validation": "a", "held_out": "b"} and summary.settings == ()
    assert "tie on held_out: b, c, 0.40 [0.00, 1.00]" in lines(summary), "no arm of several is called the best"
    sure = record("d", 0.9, lr=4)
    assert sure.success_after is not None
    apart = sure.model_copy(update={"success_after": sure.success_after.model_copy(update={"low": 0.5})})
    assert lines(summarise("s", "", [*arms, apart]))[-2] == "best on held_out: d, 0.90 [0.50, 1.00]"
    dropped = [record("e", 0.4, ArmState.DROPPED, lr=5)]
    assert "tie on held_out: b, c, 0.40 [0.00, 1.00]" in lines(summarise("s", "", [*arms, *dropped]))
    assert not any("tuned" in line for line in lines(summarise("s", "", arms[:1])))
    assert not summarise("s", "", [record("a", 0.5, seed=0), record("b", 0.6, seed=1)]).tuned
    gone = [record("a", 0.5, lr=1), record("b", 0.4, ArmState.DROPPED, lr=2)]
    assert summarise("s", "", gone).tuned, "to drop a setting for what it came to is to choose"
    assert not summarise("s", "", [gone[0], gone[1].model_copy(update={"success_after": None})]).tuned


def test_the_best_is_told_for_the_tasks_that_were_measured() -> None:
    easy, hard = {"tasks.kinds": ["a"]}, {"tasks.kinds": ["b"]}
    arms = [record("a", 0.9, **easy), record("b", 0.2, **hard), record("c", 0.3, **hard)]
    summary = summarise("s", "", arms)
    assert summary.best == {'held_out, tasks.kinds=["a"]': "a", 'held_out, tasks.kinds=["b"]': "c"}
    assert (
        'best on held_out, tasks.kinds=["b"]: c, 0.30 [0.00, 1.00]; within its interval: b' in lines(summary)
        and summary.tuned
    )


def test_the_table_has_a_row_for_each_arm() -> None:
    summary = summarise("s", "", [record("a", 0.5, lr=1), record("b", 0.5, WAITING, kinds=["x"])])
    first, second = table_rows(summary)
    assert first == {
        "arm": "a", "kinds": "", "lr": "1", "state": "finished", "before": "0.50 [0.00, 1.00]", "after": "0.50 [0.00, 1.00]",
        "minutes": "", "error": "",
    }  # fmt: skip
    assert second["kinds"] == "['x']" and second["state"] == "waiting"


# ----------------------------------------------------------------------------
# its page


def test_the_page_shows_arms_and_escapes_their_values(tmp_path: Path, chromium: Browser) -> None:
    grid = {"seed": [0, 1], "tasks.file": ["datasets/tasks/miniwob.jsonl", HOSTILE]}
    train = Train()

    def failing(arm: TrainConfig) -> None:
        if arm.tasks.file == HOSTILE and arm.seed:
            raise PolicyError(f"what is {HOSTILE}?")
        train(arm)

    with pytest.raises(TrainingError, match="1 of 4 arms failed"):
        sweep(tmp_path, failing, grid=grid)
    page, complaints, requests = chromium.new_page(), list[str](), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    path = tmp_path / "s" / "report" / "index.html"
    page.goto(path.as_uri())
    header = page.inner_text("header")
    assert page.inner_text("h1") == "s" and f"Best on held_out, tasks.file={HOSTILE}: s-file" in header
    assert "Best on held_out, tasks.file=datasets/tasks/miniwob.jsonl: s-file" in header
    assert "tuned on the held-out pages" in page.inner_text("header")
    assert page.inner_text("header .facts").split("\n") == ["3 finished", "1 failed", "4 arms"]
    rows = page.locator("#arms tbody tr").all_inner_texts()
    assert len(rows) == 5 and f"PolicyError: what is {HOSTILE}?" in rows[-1]
    cells = rows[0].split("\t")
    assert cells[1:] == [
        "datasets/tasks/miniwob.jsonl",
        "0",
        "finished",
        "0.20 [0.08, 0.42]",
        "0.50 [0.30, 0.70]",
        "20",
        "1.5",
    ]
    over = page.locator("#settings tbody tr").all_inner_texts()
    assert over[0].split("\t") == [
        "tasks.file=datasets/tasks/miniwob.jsonl",
        "held_out",
        "2",
        "0.525",
        "0.500",
        "0.550",
    ]
    assert over[1].split("\t") == [f"tasks.file={HOSTILE}", "held_out", "1", "0.500", "0.500", "0.500"]
    assert page.locator("#curves .chart circle.dot").count() == 6, "two versions of three arms"
    assert page.locator("#curves .legend li").count() == 2, "seeds of a setting look alike"
    page.focus("#curves .chart")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#tip").startswith(
        "policy v3\n0.55 [0.34, 0.74] tasks.file=datasets/tasks/miniwob.jsonl, seed=1"
    )
    assert page.evaluate("window.hacked") is None and not complaints
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    page.click("#arms tbody tr:first-child a")
    page.wait_for_url("**/s-*-seed0/report/index.html")
    assert page.inner_text("body") == "a run's page"
    page.close()


def test_the_page_shows_pending_and_unreadable_arms(tmp_path: Path) -> None:
    with open_sweep(config(tmp_path)) as run:
        page = run.report.read_text()
        assert "No arm is finished yet" in page and "Nothing measured yet" in page and "3 waiting" in page
    (tmp_path / "s-seed1").mkdir()
    (tmp_path / "s-seed1" / "metrics.jsonl").write_text('{"kind": "evalu')
    assert "s-seed1: metrics.jsonl line 1 is torn" in build_sweep_report(tmp_path / "s").read_text()
    (tmp_path / "s" / "sweep.json").write_text("{}")
    with pytest.raises(StorageError, match=r"sweep\.json is no summary of a sweep"):
        build_sweep_report(tmp_path / "s")


@pytest.mark.parametrize("damage", ["{}", '{"run_id": "s', "[]"])
def test_the_advice_for_a_damaged_sweep_record_loses_no_dropped_arm(tmp_path: Path, damage: str) -> None:
    """Followed, the next start has all arms again, also a dropped one whose measurement was a
    choice (`SweepSummary.tuned`)."""
    grid = {"seed": [0, 1], "algorithm.std_epsilon": [0.1, 0.5]}
    sweep(tmp_path, Train(), grid=grid)
    now = {"grid": {"seed": [0, 1], "algorithm.std_epsilon": [0.1]}}
    before = sweep(tmp_path, Train(), **now)
    assert before.tuned and [str(arm.state) for arm in before.arms].count("dropped") == 2
    path = tmp_path / "s" / "sweep.json"
    path.write_text(damage)
    for read in (lambda: sweep(tmp_path, Train(), **now), lambda: build_sweep_report(tmp_path / "s")):
        with pytest.raises(StorageError, match=r"sweep\.json .*move it to sweep\.json\.damaged and start the same"):
            read()
    path.rename(path.with_name("sweep.json.damaged"))
    train = Train()
    again = sweep(tmp_path, train, **now)
    assert train.played == [] and again.tuned
    assert {arm.run_id: arm for arm in again.arms} == {arm.run_id: arm for arm in before.arms}


def test_arms_keep_their_values_from_the_copied_configuration(tmp_path: Path) -> None:
    sweep(tmp_path, Train())
    for folder in ("s", "s-seed1"):
        (tmp_path / folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"has begun s-seed0, s-seed1, s-seed2 with other values"):
        sweep(tmp_path, Train(), base={"iterations": 3, "algorithm": {"std_epsilon": 0.3}})
    assert [arm.run_id for arm in sweep(tmp_path, Train(), grid={"seed": [0, 2]}).arms] == [
        "s-seed0",
        "s-seed2",
        "s-seed1",
    ]
