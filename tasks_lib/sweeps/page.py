"""Renders the page of a sweep: table, learning curves, means over seeds.

It reads ``sweep.json`` and the measurements in the arms' own folders, at any time during a sweep,
and writes ``report/index.html``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from envs.types import AnyPath
from tasks_lib.folder.metrics import describe_success
from tasks_lib.folder.metrics_lines import EvaluationMetrics
from tasks_lib.report.charts import LineChart, Series, line_chart
from tasks_lib.report.data import read_measurements
from tasks_lib.report.page import SCRIPTS, TEMPLATES, content_policy, flatten, templates
from tasks_lib.sweeps.arms import describe_values
from tasks_lib.sweeps.summary import TUNED, ArmRecord, SweepSummary, without_seed
from training.ledger.store import RunStore, atomic_write_bytes, move_aside_advice, read_json, read_record

COLOURS, DASHES = 8, 3
"""Number of colours and dash patterns in the style sheet. With more settings, some look the
same."""
MAX_NOTED = 12
"""Maximum number of arms in the note at one version, the best first."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The evaluations of an arm, ascending by version."""

    arm: ArmRecord
    evaluations: tuple[EvaluationMetrics, ...]


def summary_path(folder: AnyPath) -> Path:
    """Return the path of ``sweep.json`` in a sweep's folder."""
    return Path(folder) / "sweep.json"


def read_summary(folder: AnyPath) -> SweepSummary:
    """Read ``sweep.json`` of a sweep's folder. ``StorageError`` if it is missing or torn."""
    path = summary_path(folder)
    remedy = f"{move_aside_advice(path)} and start the same sweep again: it is made again from the arms' folders"
    return read_record(path, SweepSummary, "summary of a sweep", remedy)


def build_sweep_report(folder: AnyPath) -> Path:
    """Write ``<folder>/report/index.html`` and return its path.

    The arms' folders lie beside the sweep's.

    Raises:
        StorageError: ``sweep.json`` is missing or torn.
    """
    folder = Path(folder)
    summary = read_summary(folder)
    curves, problems = [], list[str]()
    for arm in summary.compared:
        run = read_measurements(folder.parent / arm.run_id)
        problems += [f"{arm.run_id}: {problem}" for problem in run.problems]
        curves.append(Curve(arm, tuple(run.evaluations)))
    config = read_json(RunStore(folder).config_path)["config"]
    path = RunStore(folder).report_path / "index.html"
    page = render_sweep(summary, curves, problems, list(flatten(config)), now=time.time())
    atomic_write_bytes(path, page.encode())
    return path


def render_sweep(
    summary: SweepSummary,
    curves: Sequence[Curve],
    problems: Sequence[str],
    config: Sequence[tuple[str, str]],
    *,
    now: float,
) -> str:
    """Return the page as text; ``now`` is in seconds since the epoch."""
    style = "\n".join((TEMPLATES / name).read_text() for name in ("style.css", "sweep.css"))
    script = "\n".join((TEMPLATES / name).read_text() for name in SCRIPTS)
    looks = setting_classes(summary)
    best = [(pages, summary.record(run_id)) for pages, run_id in summary.best.items()]
    return (
        templates()
        .get_template("sweep.html.j2")
        .render(
            summary=summary,
            tuned=TUNED,
            arms=[(arm, [_cell(arm, key) for key in summary.keys], looks[_setting(arm)]) for arm in summary.arms],
            states=[
                (state, sum(arm.state == state for arm in summary.arms))
                for state in dict.fromkeys(arm.state for arm in summary.arms)
            ],
            settings=[(describe_values(setting.values), setting) for setting in summary.settings],
            best=best,
            best_looks={arm.run_id for pages in summary.best for arm in summary.leaders(pages)},
            chart=sweep_curves(curves, looks),
            measured=any(curve.evaluations for curve in curves),
            legend=[
                (name, look) for name, look in looks.items() if name in {_setting(arm) for arm in summary.compared}
            ],
            problems=problems,
            config=config,
            style=Markup(style),  # our own files, so no markup to escape
            script=Markup(script),
            policy=content_policy(style, script),
            built=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
        )
    )


def setting_classes(summary: SweepSummary) -> dict[str, str]:
    """Return the style sheet's class of each setting, in the order of the arms.

    Arms that differ only in their seeds look alike.
    """
    settings = dict.fromkeys(_setting(arm) for arm in summary.arms)
    return {name: f"arm c{index % COLOURS} d{index // COLOURS % DASHES}" for index, name in enumerate(settings)}


def sweep_curves(curves: Sequence[Curve], looks: dict[str, str]) -> LineChart:
    """Return a chart of success over policy versions, with a line for each arm."""
    series = [
        Series(
            curve.arm.run_id,
            looks[_setting(curve.arm)],
            tuple((float(evaluation.version), evaluation.mean) for evaluation in curve.evaluations),
            dots=True,
        )
        for curve in curves
    ]
    noted: dict[float, list[tuple[float, str]]] = {}
    for curve in curves:
        for evaluation in curve.evaluations:
            if evaluation.mean is not None:
                text = f"{describe_success(evaluation.model_dump(), 2)} {describe_values(curve.arm.values)}"
                noted.setdefault(float(evaluation.version), []).append((evaluation.mean, text))
    notes = {}
    for version, entries in noted.items():
        ranked = [text for _, text in sorted(entries, key=lambda entry: -entry[0])]
        more = [f"and {len(ranked) - MAX_NOTED} more"] if len(ranked) > MAX_NOTED else []
        notes[version] = "\n".join([f"policy v{version:.0f}", *ranked[:MAX_NOTED], *more])
    return line_chart(
        "Learning curves",
        series,
        x_label="policy version (updates done)",
        y_label="success rate",
        y_range=(0.0, 1.0),
        y_steps=5,
        notes=notes,
        whole=True,
    )


def _setting(arm: ArmRecord) -> str:
    return describe_values(without_seed(arm.values))


def _cell(arm: ArmRecord, key: str) -> str:
    return describe_values({"": arm.values[key]}).removeprefix("=") if key in arm.values else "–"
