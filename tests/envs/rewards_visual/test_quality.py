"""The performance quality formula, by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards.chromiumrl import MARKS, Quality, episode_quality
from envs.rewards.chromiumrl.quality import score_signal
from envs.signals.aggregate import MEASURED, aggregate
from envs.types import JudgeError
from envs.types.signals import LargestPaint, PageSignals


def signals(**known: object) -> PageSignals:
    values = dict.fromkeys(MEASURED) | {"status": 200} | known
    absent = {name: f"no {name} here" for name, value in values.items() if value is None}
    return PageSignals.model_validate(
        {"document": 1, "shifts": (), "counts": {}, "troubles": (), "absent": absent} | values
    )


def quality_of(*steps: PageSignals) -> Quality:
    return episode_quality(aggregate(steps))


@pytest.mark.parametrize(
    ("name", "measured", "value"),
    [
        ("layout", 50, 0.75),
        ("layout", 200, 0),
        ("layout", 900, 0),
        ("layout_shift", 0.05, 0.8),
        ("layers", 5, 1),
        ("layers", 2, 1),
        ("layers", 17.5, 0.5),
        ("gpu", 55, 0.5),
        ("largest_paint", 1000, 1),
        ("largest_paint", 2500, 0.5),
        ("paint", 25, 0.75),
        ("style", 25, 0.5),
        ("touch", 200, 1),
        ("touch", 350, 0.5),
    ],
)
def test_a_signal_is_linear_between_its_marks(name: str, measured: float, value: float) -> None:
    assert score_signal(name, measured) == pytest.approx(value)


def test_the_mean_is_over_what_was_measured() -> None:
    quality = quality_of(signals(layout_ms=50, layout_shift=0.05, layers=30))
    assert quality.value == pytest.approx((0.15 * 0.75 + 0.15 * 0.8 + 0.10 * 0) / 0.40)
    assert set(quality.left_out) == {"gpu", "touch", "paint", "style", "largest_paint"}
    evidence = quality.part().evidence
    assert "gpu left out: no gpu_bytes here" in evidence and "layout 50 ms = 0.750 (weight 0.15)" in evidence


def test_nothing_measured_is_not_zero() -> None:
    part = quality_of(signals()).part(2.0)
    assert part.value is None and part.weight == 2.0 and "layout left out: no layout_ms here" in part.evidence


def test_memory_counts_in_mebibytes_and_a_paint_without_a_time_is_left_out() -> None:
    paint = LargestPaint(element="p", size=10, ms=None)
    quality = quality_of(signals(gpu_bytes=55 * 2**20, largest_paint=paint))
    assert quality.value == pytest.approx(0.5) and quality.left_out["largest_paint"] == "no step gives its time"


def test_weak_points_a_b_c_what_was_not_measured_is_no_perfect_zero() -> None:
    """ChromiumRL leaves LCP, GPU bytes and paint at 0, which its own formula takes for the best
    there is."""
    slow = dict(layout_ms=150, style_ms=45)
    zeroes = signals(
        **slow, gpu_bytes=0, first_contentful_paint_ms=0, largest_paint=LargestPaint(element="", size=0, ms=0)
    )
    honest = quality_of(signals(**slow))
    assert honest.value == pytest.approx((0.15 * 0.25 + 0.10 * 0.1) / 0.25)
    assert (quality_of(zeroes).value or 0) > 3 * (honest.value or 1)


def test_an_episode_counts_work_per_step_and_the_slowest_paint() -> None:
    steps = [signals(layout_ms=20, largest_paint=LargestPaint(element="p", size=1, ms=1000)), signals(layout_ms=80)]
    steps += [signals(largest_paint=LargestPaint(element="p", size=1, ms=2500))]
    quality = quality_of(*steps)
    assert {one.name: one.measured for one in quality.measured} == {"layout": 50, "largest_paint": 2500}
    assert quality.value == pytest.approx((0.15 * 0.75 + 0.10 * 0.5) / 0.25)
    assert quality_of().value is None


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(JudgeError, match="signal layout: expected a finite number"):
        score_signal("layout", math.nan)


@given(st.sampled_from(sorted(MARKS)), st.floats(0, 1e6), st.floats(0, 1e6))
def test_more_is_never_better(name: str, low: float, more: float) -> None:
    assert 0 <= score_signal(name, low + more) <= score_signal(name, low) <= 1
