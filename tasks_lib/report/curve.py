"""Draws the learning curve as a PNG, for Prefect and for a README."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from envs.types import AnyPath
from tasks_lib.report.charts import rolling_mean
from tasks_lib.report.data import RunData, read_run
from tasks_lib.report.summary import SMOOTH
from training.ledger.store import RunStore, atomic_write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD_OUT, TRAINING = "#0072b2", "#d55e00"
"""Blue and vermilion of the Okabe-Ito palette, as on the page. Every kind of colour vision tells
them apart."""

INK, RULE = "#3d4247", "#e3e3df"


def learning_curve_png(run_dir: AnyPath) -> bytes:
    """Draw held-out success with its 95 % interval and training success over updates.

    The image is written to ``<run_dir>/report/learning_curve.png`` and returned, at any time during
    a run.
    """
    run = read_run(run_dir)
    buffer = io.BytesIO()
    figure = _figure(run)
    figure.savefig(buffer, format="png", dpi=160)
    atomic_write_bytes(RunStore(run_dir).report_path / "learning_curve.png", buffer.getvalue())
    return buffer.getvalue()


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
        axes.plot(*zip(*training, strict=True), color=TRAINING, lw=1, alpha=0.35 if rolled else 1, marker=".", ms=3)
        label = f"training success, mean of {SMOOTH}" if rolled else "training success"
        mean = rolling_mean(training, SMOOTH if rolled else 1)
        axes.plot(*zip(*mean, strict=True), color=TRAINING, lw=1.5, label=label)
    if run.evaluations:
        x = [e.version for e in run.evaluations]
        low, high, held_out = (
            [_value(number) for number in side]
            for side in zip(*((e.low, e.high, e.mean) for e in run.evaluations), strict=True)
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
