"""The learning curve: charts of the report, and a PNG for Prefect and for a README."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from envs.types import AnyPath
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics, Line
from tasks_lib.report.charts import LineChart, Series, format_duration, line_chart, rolling_mean
from tasks_lib.report.data import RunData, read_measurements
from training.ledger.store import RunStore, atomic_write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = TypeVar("P")

HELD_OUT, TRAINING = "#0072b2", "#d55e00"
"""Blue and vermilion of the Okabe-Ito palette, as on the page. Every kind of colour vision tells
them apart."""

SMOOTH = 9
"""Iterations in the rolling mean of training success; shorter runs are drawn without it."""

MAX_POINTS = 200
"""Most points of a line of the image, which is 1,280 pixels wide: a long run's costs no more."""

INK, RULE = "#3d4247", "#e3e3df"


def learning_curves(run: RunData) -> dict[str, LineChart]:
    """Return the learning curve over ``updates`` and, where clocks were kept, over ``minutes``."""
    by_update = _learning_curve(
        [(float(e.version), e) for e in run.evaluations],
        [(float(i.iteration), i) for i in run.iterations],
        "updates",
        run.measured,
    )
    curves = {"updates": by_update}
    timed = [(e.wall / 60, e) for e in run.evaluations if e.wall is not None]
    timed_iterations = [(i.wall / 60, i) for i in run.iterations if i.wall is not None]
    if len(timed) + len(timed_iterations) > 1:
        curves["minutes"] = _learning_curve(timed, timed_iterations, "minutes", run.measured)
    return curves


def _learning_curve(
    evaluations: list[tuple[float, EvaluationMetrics]],
    iterations: list[tuple[float, IterationMetrics]],
    unit: str,
    split: str,
) -> LineChart:
    training = tuple((x, i.success) for x, i in iterations if i.success is not None)
    series = []
    if len(training) >= 2 * SMOOTH:
        series.append(Series("each iteration", "training raw", training))
        series.append(Series(f"mean of {SMOOTH}", "training", rolling_mean(training, SMOOTH)))
    else:
        series.append(Series("training", "training", training, dots=len(training) == 1))
    series.append(
        Series(
            split,
            "held-out",
            tuple((x, e.mean) for x, e in evaluations),
            dots=True,
            band=tuple((x, e.low, e.high) for x, e in evaluations if e.low is not None and e.high is not None),
        )
    )
    notes: dict[float, list[str]] = {}
    for x, e in evaluations:
        known = f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}], n = {e.n}" if e.n else "unknown, no episode has a reward"
        text = f"{split} {known}"
        notes.setdefault(x, [f"policy v{e.version}"]).append(text)
    for x, i in iterations:
        if i.success is not None:
            notes.setdefault(x, [f"iteration {i.iteration}"]).append(f"training {i.success:.2f}")
    clock = [f"\n{format_duration(x * 60)}" if unit == "minutes" else "" for x in notes]
    return line_chart(
        "Learning curve",
        series,
        x_label="policy version (updates done)" if unit == "updates" else "wall clock, minutes",
        y_label="success rate",
        y_range=(0.0, 1.0),
        y_steps=5,
        notes={x: "\n".join(lines) + time for (x, lines), time in zip(notes.items(), clock, strict=True)},
        whole=unit == "updates",
    )


def learning_curve_png(run_dir: AnyPath, lines: Iterable[Line] | None = None) -> bytes:
    """Draw held-out success with its 95 % interval and training success over updates.

    The image is written to ``<run_dir>/report/learning_curve.png`` and returned, at any time during
    a run.

    Args:
        lines: The lines of ``metrics.jsonl``, where they are in memory.
    """
    run = read_measurements(run_dir, lines)
    buffer = io.BytesIO()
    figure = _figure(run)
    figure.savefig(buffer, format="png", dpi=160)
    atomic_write_bytes(RunStore(run_dir).report_path / "learning_curve.png", buffer.getvalue())
    return buffer.getvalue()


def _thinned(points: Sequence[P]) -> list[P]:
    """Return at most `MAX_POINTS` of the points, evenly spread; the last one is always there."""
    step = -(-len(points) // MAX_POINTS) or 1
    return list(points[::-step])[::-1]


def _value(number: float | None) -> float:
    """Return NaN for an unknown value, which is drawn as a gap."""
    return math.nan if number is None else number


def _figure(run: RunData) -> Figure:
    """Draw the figure without pyplot, whose global state would bind flows to one thread."""
    # matplotlib takes two thirds of a second to import, and every process imports the report.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    training = [(float(i.iteration), i.success) for i in run.iterations if i.success is not None]
    if training:
        rolled = len(training) >= 2 * SMOOTH
        axes.plot(
            *zip(*_thinned(training), strict=True), color=TRAINING, lw=1, alpha=0.35 if rolled else 1, marker=".", ms=3
        )
        label = f"training success, mean of {SMOOTH}" if rolled else "training success"
        mean = _thinned(rolling_mean(training, SMOOTH if rolled else 1))
        axes.plot(*zip(*mean, strict=True), color=TRAINING, lw=1.5, label=label)
    if evaluations := _thinned(run.evaluations):
        x = [e.version for e in evaluations]
        low, high, held_out = (
            [_value(number) for number in side]
            for side in zip(*((e.low, e.high, e.mean) for e in evaluations), strict=True)
        )
        axes.fill_between(x, low, high, color=HELD_OUT, alpha=0.14, lw=0)
        axes.vlines(x, low, high, color=HELD_OUT, lw=1, alpha=0.6)
        axes.plot(x, held_out, color=HELD_OUT, lw=2, marker="o", ms=4.5, label=f"{run.measured} success, 95 % interval")
    if training or any(e.n for e in run.evaluations):
        axes.legend(frameon=False, loc="best", fontsize=9, labelcolor=INK)
    else:
        words = "success unknown, no episode has a reward" if run.evaluations else "no measurement yet"
        axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes, color=INK)
    axes.set(ylim=(0, 1.02), xlabel="policy version (updates done)", ylabel="success rate")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    state = " (still running)" if run.result is None else ""
    axes.set_title(f"{run.run_id}{state}", loc="left", fontsize=10, color=INK)
    axes.grid(axis="y", color=RULE, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(color=RULE, labelcolor=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color("#b9bbb6")
    return figure
