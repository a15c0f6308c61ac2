"""Signals of steps and episodes as values: what is unknown is never zero."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from envs.signals import aggregate
from envs.signals.aggregate import next_paint
from envs.signals.build import SignalReadings, build
from envs.types.signals import MAX_SHIFTS, EpisodeSignals, PageSignals, Trouble

SAID: dict[str, Any] = {
    "fp": 10.0,
    "fcp": 12.0,
    "lcp": {"element": "h1", "size": 500.0, "ms": 40.0},
    "shift": 0.1,
    "inputShift": 0.02,
    "shifts": [{"value": 0.1, "after_input": False, "sources": ["p"]}],
    "tasks": [80.0, 60.0],
    "interactions": [24.0, 96.0],
}
METRICS = {
    "LayoutDuration": 0.003,
    "RecalcStyleDuration": 0.002,
    "ScriptDuration": 0.5,
    "TaskDuration": 0.6,
    "JSHeapUsedSize": 1000.0,
    "Nodes": 30.0,
}


def reading(**changes: Any) -> SignalReadings:
    given: dict[str, Any] = {
        "document": 1,
        "status": 200,
        "main": SAID,
        "frames": [],
        "why_not": "",
        "metrics": METRICS,
        "before": {},
        "layers": 3,
        "counts": {},
        "troubles": [],
        "virtual": False,
    }
    return SignalReadings(**{**given, **changes})


def test_a_step_of_the_real_clock() -> None:
    signals = build(reading())
    assert (signals.first_paint_ms, signals.first_contentful_paint_ms) == (10.0, 12.0)
    assert signals.largest_paint is not None and signals.largest_paint.ms == 40.0
    assert (signals.layout_shift, signals.input_shift, signals.interaction_ms) == (0.1, 0.02, 96.0)
    assert signals.long_task_ms == (80.0, 60.0)
    assert (signals.script_ms, signals.task_ms) == (500.0, 600.0)
    assert set(signals.absent) == {"gpu_bytes"}


def test_a_virtual_clock_leaves_out_what_it_cannot_time() -> None:
    signals = build(reading(virtual=True))
    assert signals.first_paint_ms is signals.interaction_ms is signals.long_task_ms is None
    assert signals.largest_paint is not None and signals.largest_paint.ms is None
    assert signals.largest_paint.element == "h1"
    assert (signals.layout_shift, signals.script_ms) == (0.1, 500.0)
    virtual = {name for name, why in signals.absent.items() if "virtual" in why}
    assert virtual == {"first_paint_ms", "first_contentful_paint_ms", "interaction_ms", "long_task_ms"}


def test_what_was_not_answered_is_absent_with_its_reason() -> None:
    signals = build(reading(main=None, why_not="gone", metrics={}, layers=None, status=None))
    assert signals.layout_shift is signals.layers is signals.nodes is signals.script_ms is signals.status is None
    assert "gone" in signals.absent["layout_shift"] and "Nodes" in signals.absent["nodes"]
    calm = build(reading(main={**SAID, "fp": None, "lcp": None, "interactions": [], "tasks": []}))
    assert calm.long_task_ms == () and calm.interaction_ms is None
    assert "painted" in calm.absent["first_paint_ms"] and "16 ms" in calm.absent["interaction_ms"]


def test_work_is_the_difference_to_the_last_reading() -> None:
    assert build(reading(before={**METRICS, "ScriptDuration": 0.4})).script_ms == pytest.approx(100)
    assert build(reading(before={**METRICS, "ScriptDuration": 0.9})).script_ms == pytest.approx(500), "a new process"


def test_frames_add_their_shifts_and_interactions() -> None:
    frame = {**SAID, "shift": 0.3, "interactions": [200.0], "shifts": SAID["shifts"] * MAX_SHIFTS}
    signals = build(reading(frames=[frame]))
    assert signals.layout_shift == pytest.approx(0.4)
    assert signals.interaction_ms == 200.0
    assert len(signals.shifts) == MAX_SHIFTS
    assert signals.long_task_ms == (80.0, 60.0), "the main frame hears of its frames' tasks"


def test_a_value_without_a_reason_is_refused() -> None:
    signals = build(reading())
    with pytest.raises(ValidationError, match="gpu_bytes"):
        PageSignals(**{**signals.model_dump(), "absent": {}})
    with pytest.raises(ValidationError, match="nodes"):
        PageSignals(**{**signals.model_dump(), "absent": {**signals.absent, "nodes": "none"}})


def test_an_episode_sums_what_is_known() -> None:
    first = build(reading(counts={Trouble.HTTP_ERROR: 2}))
    second = build(reading(document=2, virtual=True, layers=9, counts={Trouble.HTTP_ERROR: 1, Trouble.EXCEPTION: 1}))
    episode = aggregate([first, second])
    assert (episode.steps, episode.documents) == (2, 2)
    assert episode.layout_shift == pytest.approx(0.2) and episode.worst_layout_shift == 0.1
    assert (episode.long_tasks, episode.blocking_ms, episode.interaction_ms) == (2, 40.0, 96.0)
    assert (episode.largest_paint_ms, episode.first_contentful_paint_ms, episode.most_layers) == (40.0, 12.0, 9)
    assert episode.script_ms == 1000.0
    assert episode.counts == {Trouble.HTTP_ERROR: 3, Trouble.EXCEPTION: 1}
    assert episode.known["long_task_ms"] == 1 and episode.known["script_ms"] == 2 and episode.known["gpu_bytes"] == 0
    assert set(episode.absent) == {"gpu_bytes"}
    assert EpisodeSignals.model_validate_json(episode.model_dump_json()) == episode


def test_an_episode_without_known_steps_has_reasons() -> None:
    empty = aggregate([])
    assert empty.layout_shift is None and empty.absent["layout_shift"] == "the episode has no steps"
    virtual = aggregate([build(reading(virtual=True))])
    assert virtual.long_tasks is None and "virtual" in virtual.absent["long_tasks"]
    assert virtual.largest_paint_ms is None and virtual.absent["largest_paint_ms"]


def test_inp_ignores_one_interaction_in_fifty() -> None:
    assert next_paint([8.0, 300.0]) == 300.0
    assert next_paint([*[8.0] * 49, 300.0]) == 8.0
    assert next_paint([*[8.0] * 98, 200.0, 300.0]) == 8.0
    assert next_paint([*[8.0] * 97, 100.0, 200.0, 300.0]) == 100.0
