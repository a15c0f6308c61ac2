"""Renders the report: an HTML page with style, script and images inside."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from envs.types import AnyPath
from tasks_lib.report import grading, regraded, summary
from tasks_lib.report.charts import format_duration, number
from tasks_lib.report.curve import learning_curves
from tasks_lib.report.data import RunData, read_run
from tasks_lib.report.episodes import NOT_AGAIN, episode_images, viewer_data
from tasks_lib.report.regraded import CHANGES, RegradingData, read_regradings
from tasks_lib.report.timeline import timeline
from training.ledger.store import RunStore, atomic_write_bytes

TEMPLATES = Path(__file__).parent / "templates"
EPISODE_SCRIPTS = ("elements.js", "evidence.js", "regraded.js", "episode.js")
"""Scripts that show one episode."""
SCRIPTS = (*EPISODE_SCRIPTS, "charts.js", "viewer.js")
"""Parts of the page's one script, in this order. The last ones start when they are read."""


def build_report(run_dir: AnyPath) -> Path:
    """Write ``<run_dir>/report/index.html`` and return its path.

    The page is self-contained: it makes no request, so it can be opened from the disk, mailed, or
    served. It may be built at any time during a run, and again; it then shows what exists.
    """
    store = RunStore(run_dir)
    run = read_run(run_dir)
    regradings = read_regradings(run, store)
    viewer = viewer_data(run, store, regradings)
    path = store.report_path / "index.html"
    atomic_write_bytes(path, render(run, viewer, regradings, now=time.time()).encode())
    return path


def render(run: RunData, viewer: dict[str, Any], regradings: Sequence[RegradingData] = (), *, now: float) -> str:
    """Return the page as text.

    ``viewer`` comes from ``episodes.viewer_data``; ``now`` is in seconds since the epoch.
    """
    environment = templates()
    style = (TEMPLATES / "style.css").read_text()
    script = "\n".join((TEMPLATES / name).read_text() for name in SCRIPTS)
    shares, total = summary.time_split(run)
    return environment.get_template("page.html.j2").render(
        run=run,
        head=summary.headline(run),
        curves=learning_curves(run),
        kinds=summary.kind_rows(run),
        shares=shares,
        total=total,
        orchestration=summary.orchestration_share(shares),
        orchestration_target=summary.ORCHESTRATION_TARGET,
        timeline=timeline(run),
        health=summary.health_charts(run),
        staleness=summary.staleness_rows(run),
        counts=summary.episode_counts(run),
        stops=summary.stop_reasons(run),
        settled=summary.settled_steps(run),
        grading=grading.grading(run),
        causes=grading.cause_rows(run),
        regradings=regradings,
        most_kinds=regraded.MAX_KINDS,
        shown={episode["id"] for episode in viewer["episodes"]},
        config=list(flatten(run.config)),
        viewer=viewer,
        facets=facets(viewer["episodes"]),
        style=Markup(style),  # our own files need no escaping; the page's policy allows only these
        script=Markup(script),
        policy=content_policy(style, script),
        built=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
        age=max(0.0, now - run.measured_at) if run.measured_at is not None else None,
    )


def render_episode(store: RunStore, episode: dict[str, Any]) -> str:
    """Return one episode as a page that stands alone, with its screenshots inside.

    Args:
        episode: Its values (`tasks_lib.report.episodes.episode_values`).
    """
    style = (TEMPLATES / "style.css").read_text()
    script = "\n".join((TEMPLATES / name).read_text() for name in (*EPISODE_SCRIPTS, "single.js"))
    images = episode_images([episode], store, episode["problems"])
    return (
        templates()
        .get_template("episode.html.j2")
        .render(
            run=store.root.name,
            episode=episode,
            viewer={"episodes": [episode], "images": images},
            style=Markup(style),
            script=Markup(script),
            policy=content_policy(style, script),
        )
    )


def templates() -> Environment:
    """Return the environment of the pages' templates, with their filters. It escapes all values."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "duration": format_duration, "percent": percent, "rate": rate}
    return environment


def content_policy(style: str, script: str) -> str:
    """Return a page's Content-Security-Policy: it reaches nothing, and allows only this style and
    script."""
    return f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"


def facets(episodes: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the viewer's filters: values by key of an episode, in the order to offer them."""
    values = {key: {episode[key] for episode in episodes} for key in ("kind", "outcome", "where")}
    again = {episode["again"] for episode in episodes if "again" in episode}
    offered = {"again": [name for name in (*CHANGES, NOT_AGAIN) if name in again]} if again else {}
    return {
        "kind": sorted(values["kind"]),
        "outcome": [outcome for outcome in ("success", "failure", "abstained") if outcome in values["outcome"]],
        "where": sorted(values["where"], key=lambda where: (where[0] != "e", len(where), where)),
        **offered,
    }


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value) pairs of nested configuration."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        yield prefix, ", ".join(str(inner) for inner in value) or "(none)"
    elif prefix:
        yield prefix, "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def percent(value: float | None) -> str:
    """Format a share as per cent, e.g. ``7.4 %``."""
    if value is None:
        return "–"
    if 0 < value < 0.0005:
        return "< 0.1 %"
    return f"{value * 100:.1f} %" if value < 0.0995 else f"{value * 100:.0f} %"


def rate(value: float | None) -> str:
    """Format a success rate with two decimals."""
    return "–" if value is None else f"{value:.2f}"


def _hash(text: str) -> str:
    """Return the source expression that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
