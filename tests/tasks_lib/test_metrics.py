"""Numbers of a run."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_lib.folder.metrics import (
    MetricsLog,
    count_causes,
    describe_success,
    success,
    success_by_kind,
    wilson_interval,
)
from tasks_lib.worker.activity import ActivityClock


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [(0, 10, 0.0, 0.278), (8, 10, 0.490, 0.943), (10, 10, 0.722, 1.0), (120, 240, 0.437, 0.563), (0, 0, 0.0, 1.0)],
)
def test_wilson_intervals_against_published_values(successes, total, low, high):
    assert wilson_interval(successes, total) == (pytest.approx(low, abs=6e-4), pytest.approx(high, abs=6e-4))


@given(st.integers(1, 500), st.data())
def test_the_interval_holds_the_mean_and_narrows(total, data):
    successes = data.draw(st.integers(0, total))
    low, high = wilson_interval(successes, total)
    assert 0 <= low <= successes / total + 1e-9 and successes / total - 1e-9 <= high <= 1
    wide_low, wide_high = wilson_interval(successes * 4, total * 4)
    assert wide_high - wide_low < high - low


def test_abstentions_are_no_failures(synthetic_group):
    record = synthetic_group("i000000-g0000", [1, 0, None, 1])
    found = success(record.episodes)
    assert (found["mean"], found["n"]) == (pytest.approx(2 / 3), 3)
    other = synthetic_group("i000000-g0001", [0], kind="enter-text")
    assert {kind: entry["mean"] for kind, entry in success_by_kind([record, other]).items()} == {
        "click-test": pytest.approx(2 / 3),
        "enter-text": 0.0,
    }


def test_nothing_graded_is_no_success_of_nought(synthetic_group):
    nothing = synthetic_group("e0-g0", [None, None]).episodes
    assert describe_success(success(nothing)) == "unknown, no episode has a reward"
    assert count_causes(nothing) == {"the browser died": 2}
    some = synthetic_group("e0-g1", [1.0, 1.0, 1.0, 0.0, None]).episodes
    assert describe_success(success(some), 2) == "0.75 [0.30, 0.95]"
    assert count_causes(some) == {"the browser died": 1}


def test_a_torn_last_line_is_cut_off_and_lines_go_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, tmp_path / "tensorboard")
    log.append({"kind": "iteration", "iteration": 0, "train": {"loss": 0.5}}, 0)
    log.close()
    with open(path, "ab") as file:
        file.write(b'{"kind": "iteration", "iter')
    log = MetricsLog(path, tmp_path / "tensorboard")
    log.append({"kind": "iteration", "iteration": 1}, 1)
    log.close()
    assert [orjson.loads(line)["iteration"] for line in path.read_bytes().splitlines()] == [0, 1]
    assert [line["iteration"] for line in log.lines("iteration")] == [0, 1]
    assert log.lines("evaluation") == []


def test_numbers_reach_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    log.append(
        {"kind": "evaluation", "mean": 0.25, "by_kind": {"click-test": {"n": 4}}, "name": "x", "greedy": True}, 3
    )
    log.append(
        {
            "kind": "iteration",
            "train": {"ess": 0.9, "kl_by_images": {"1": 0.01, "8_or_more": 0.02}},
            "idle": {"engines": 0.5},
            "queues": {},
            "asynchronous": {"staleness": {"0": 3, "1": 9}, "timeline": [("groups", 1.0, 2.0)]},
        },
        3,
    )
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["tensors"]) == [
        "evaluation/by_kind/click-test/n",
        "evaluation/mean",
        "iteration/asynchronous/staleness/0",
        "iteration/asynchronous/staleness/1",
        "iteration/idle/engines",
        "iteration/train/ess",
        "iteration/train/kl_by_images/1",
        "iteration/train/kl_by_images/8_or_more",
    ]


MEASURE_A_CHILD = """
import subprocess, sys
from tasks_lib.folder.metrics import family_rss_mb

before = family_rss_mb()
code = "block = bytearray(64 * 2**20); print('ready', flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(family_rss_mb() - before)
child.kill()
child.wait()
"""


def test_memory_of_a_child_counts():
    """In a process of its own: the children that other tests left here grow and shrink
    meanwhile."""
    done = subprocess.run([sys.executable, "-c", MEASURE_A_CHILD], capture_output=True, text=True, check=True)
    assert 60 < float(done.stdout) < 120


def test_the_activity_clock_charges_the_first_in_line_and_adds_up(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tasks_lib.worker.activity.time.perf_counter", lambda: now[0])
    clock = ActivityClock(("generate", "browser"))
    now[0] = 1.0
    with clock("browser"):
        now[0] = 3.0
        with clock("generate"), clock("browser"):
            now[0] = 7.0
        now[0] = 8.0
    now[0] = 10.0
    assert clock.seconds() == {"generate": 4.0, "browser": 3.0, "idle": 3.0}
    assert (clock.occupied("browser"), clock.occupied("generate"), clock.occupied("store")) == (7 + 4, 4, 0)
