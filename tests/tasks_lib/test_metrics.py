"""Numbers of a run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.types import StorageError
from tasks_lib.config import PROJECT
from tasks_lib.folder import metrics_lines
from tasks_lib.folder.metrics import (
    MetricsLog,
    count_causes,
    describe_success,
    success,
    success_by_kind,
    wilson_interval,
)
from tasks_lib.folder.metrics_lines import (
    EvaluationMetrics,
    IdleShares,
    IterationMetrics,
    Overlap,
    QueueWaits,
    parse_line,
    read_lines,
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
    log.append(IterationMetrics(iteration=0, wall=7.5, train={"loss": 0.5}), 0)
    log.close()
    with open(path, "ab") as file:
        file.write(b'{"kind": "iteration", "iter')
    log = MetricsLog(path, tmp_path / "tensorboard")
    assert log.wall == 7.5
    log.append(IterationMetrics(iteration=1), 1)
    log.close()
    assert [orjson.loads(line)["iteration"] for line in path.read_bytes().splitlines()] == [0, 1]
    assert [line.iteration for line in log.lines(IterationMetrics)] == [0, 1]
    assert log.lines(EvaluationMetrics) == []


def test_lines_are_read_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for iteration in range(2):
        log = MetricsLog(path, tmp_path / "tensorboard")
        log.append(IterationMetrics(iteration=iteration), iteration)
    path.unlink()
    assert [line.iteration for line in log.lines(IterationMetrics)] == [0, 1], "as no file is read for them"
    log.close()


def test_numbers_reach_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    evaluation = {"mean": 0.25, "by_kind": {"click-test": {"mean": 0.25, "n": 4}}, "split": "x", "greedy": True}
    log.append(EvaluationMetrics.model_validate({"version": 3, "low": 0.0, "high": 1.0, "n": 4, **evaluation}), 3)
    iteration = {
        "iteration": 3,
        "train": {"ess": 0.9, "kl_by_images": {"1": 0.01, "8_or_more": 0.02}},
        "idle": {"engines": 0.5},
        "queues": {},
        "asynchronous": {"staleness": {"0": 3, "1": 9}, "timeline": [("groups", 1.0, 2.0)]},
    }
    log.append(IterationMetrics.model_validate(iteration), 3)
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["tensors"]) == [
        "evaluation/by_kind/click-test/mean",
        "evaluation/by_kind/click-test/n",
        "evaluation/high",
        "evaluation/low",
        "evaluation/mean",
        "evaluation/n",
        "evaluation/version",
        "iteration/asynchronous/staleness/0",
        "iteration/asynchronous/staleness/1",
        "iteration/idle/engines",
        "iteration/iteration",
        "iteration/train/ess",
        "iteration/train/kl_by_images/1",
        "iteration/train/kl_by_images/8_or_more",
    ]


WRITTEN = [
    {
        "kind": "evaluation", "wall": 1.5, "version": 2, "policy": "92c7", "model": "m", "mean": 0.75, "low": 0.5, "high": 1.0, "n": 4,
        "by_kind": {"a": {"mean": 0.75, "low": 0.5, "high": 1.0, "n": 4}, "b": {"mean": None, "low": None, "high": None, "n": 0}},
        "abstained": 1, "split": "held_out", "greedy": True, "seconds": 1.25, "activity": {"idle": 0.5, "wall": 1.25},
        "batches": {"turns": 4, "seconds": 0.5}, "judge": {"requests": {"spent": 3, "left": None}},
    },
    {
        "kind": "iteration", "success": 0.5, "success_by_kind": {"a": {"mean": 0.5, "low": 0.0, "high": 1.0, "n": 2}},
        "steps_mean": 2.0, "response_tokens_mean": 4.5, "stop_reasons": {"done": 2}, "forms": {"json": 4}, "cut_turns": 0.0,
        "action_errors": {}, "settled": {"rested": 4}, "iteration": 1, "version": 2, "wall": 9.5,
        "seconds": {"rollout": 3.0, "total": 4}, "rollout_split": {"browser": 2.5},
        "browsers": [{"launches": 1, "state": "ready", "requests_refused": {}}],
        "pipelines": [{"encode": {"done": 4}, "reward": {"graded": 2, "seconds": {"task": 0.25}}}],
        "judge": {"tokens": {"spent": 30, "left": 70}}, "groups": {"total": 2, "zero_variance": 1}, "rows": 4,
        "train": {"loss": 0.5, "ess": None, "rows": 4, "kl_by_images": {"1": 0.25, "2": None}}, "train_split": {"load": 0.25},
        "idle": {"browsers": 0.5, "engines": 0.25, "trainer": 0.75},
        "queues": {"permit": 0.5, "encode": 0.25, "reward": 0.0, "engine": 1.5, "trainer": 2.5}, "batches": {"turns": 4},
        "servers_behind": 1,
        "asynchronous": {
            "staleness": {"0": 3, "2": 1}, "train": 1.5, "publish": 0.5, "trainer_idle": 0.5, "workers_idle": 0.25, "running": 2, "ready": 1,
            "limit": 4, "timeline": [["groups", 1795805054.23, 1795805056.5], ["update-v000002", 1795805057, 1795805058.5]],
        },
        "episodes": {"started": 4, "consumed": 4}, "abstentions": {"block": 1}, "recovered": True,
    },
    {"kind": "iteration", "iteration": 0, "seconds": {}, "idle": {"trainer": 0.5}, "recovered": True},
]  # fmt: skip


@pytest.mark.parametrize("line", WRITTEN, ids=["evaluation", "iteration", "recovered"])
@pytest.mark.filterwarnings("error")
def test_a_line_is_written_as_it_is_read(line):
    """Same keys in the same order, integers stay integers, and what was not measured has no key."""
    data = orjson.dumps(line)
    assert orjson.dumps(parse_line(data).content()) == data


def test_every_field_of_a_line_is_in_the_example_and_has_a_docstring():
    written = {"kind": "kind"} | {key: key for line in WRITTEN for key in line}
    tree = ast.parse(Path(metrics_lines.__file__).read_text())
    for model in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        fields = [index for index, node in enumerate(model.body) if isinstance(node, ast.AnnAssign)]
        for index in fields:
            name, after = model.body[index].target.id, model.body[index + 1]
            assert isinstance(after, ast.Expr) and isinstance(after.value.value, str), f"{model.name}.{name}"
            if model.name in ("EvaluationMetrics", "IterationMetrics"):
                assert name in written


def test_a_line_of_another_version_is_read_without_its_own_keys():
    line = parse_line(
        b'{"kind":"iteration","iteration":3,"later":1,"idle":{"engines":0.5,"disks":0.25},"seconds":{"a":null}}'
    )
    assert line.content() == {"kind": "iteration", "iteration": 3, "idle": {"engines": 0.5}, "seconds": {}}
    assert parse_line(b'{"kind":"checkpoint","size":3}') is None
    with pytest.raises(ValidationError, match="later"):
        IterationMetrics(iteration=3, later=1)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"kind":"iter', "is torn (unexpected end of data"),
        (b"[1]", "is no line of metrics: it has no kind"),
        (b'{"kind":"iteration"}', "is no iteration: iteration: Field required"),
        (b'{"kind":"iteration","iteration":"3"}', "is no iteration: iteration: Input should be a valid integer"),
        (b'{"kind":"iteration","iteration":3,"wall":true}', "is no iteration: wall: Input should be a valid number"),
        (b'{"kind":"iteration","iteration":3,"seconds":{"a":"1"}}', "is no iteration: seconds.a: Input should be a valid number"),
    ],
)  # fmt: skip
def test_a_damaged_line_says_where_and_is_taken_out_when_a_run_is_opened(data, why, tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    kept = b'{"kind":"checkpoint"}\n{"kind":"iteration","iteration":2,"wall":4.5}\n'
    path.write_bytes(data + b"\n" + kept)
    with pytest.raises(StorageError, match=re.escape(f"metrics.jsonl line 1 {why}")):
        read_lines(path, IterationMetrics)
    log = MetricsLog(path, tmp_path / "tensorboard")
    log.close()
    assert path.read_bytes() == kept and (tmp_path / "metrics.jsonl.damaged").read_bytes() == data + b"\n" + kept
    assert log.wall == 4.5 and [line.iteration for line in log.lines(IterationMetrics)] == [2]
    assert "1 damaged lines are taken out, the first is line 1" in caplog.text


def test_the_page_about_async_lists_every_idle_share_and_wait():
    page = (PROJECT / "docs" / "async.md").read_text()
    listed = set(re.findall(r"`((?:idle|queues)\.\w+)`", page))
    fields = {
        f"{name}.{key}" for name, model in (("idle", IdleShares), ("queues", QueueWaits)) for key in model.model_fields
    }
    assert listed == fields
    named = set(re.findall(r"`(\w+)`", re.search(r"`metrics\.jsonl` has `asynchronous`.*?\n\n", page, re.DOTALL)[0]))
    assert named - {"asynchronous"} <= Overlap.model_fields.keys()


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
