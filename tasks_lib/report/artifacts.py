"""Prefect artifacts of a run: a table for each iteration and the learning curve."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
)

from tasks_lib.folder.metrics import MetricsLog, format_share, numbers
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics
from tasks_lib.processes.server_watch import retry_until_reachable
from tasks_lib.report import learning_curve_png
from tasks_lib.report.data import read_run
from tasks_lib.report.episodes import choose_episodes
from training.ledger.store import RunStore


def artifact_key(run_id: str, name: str) -> str:
    """Return a key of Prefect's, which may hold only lower-case letters, digits and dashes."""
    return "".join(
        letter if letter.isalnum() and letter.isascii() else "-" for letter in f"{run_id}-{name}".lower()
    ).strip("-")


def publish_iteration_table(run_id: str, line: IterationMetrics) -> None:
    """Publish one iteration's success by task kind and its other figures.

    They are its groups, episodes, seconds, training, idle shares and staleness.
    """
    rows = [
        {"what": kind, "value": round(entry.mean, 3) if entry.mean is not None else None, "n": entry.n}
        for kind, entry in line.success_by_kind.items()
    ]
    content = line.content()
    for section in ("groups", "episodes", "abstentions", "seconds", "train", "idle", "queues", "asynchronous"):
        rows += [
            {"what": path.replace("/", ": ", 1), "value": round(value, 4), "n": ""}
            for path, value in numbers(content.get(section, {}), section)
        ]
    publish_table(
        artifact_key(run_id, "iteration"),
        rows,
        f"Iteration {line.iteration}: success {format_share(line.success)} with version {line.iteration}",
    )


def publish_table(key: str, rows: list[dict[str, Any]], description: str | None = None) -> None:
    """Publish a table artifact. Waits for a server that does not answer."""
    retry_until_reachable(lambda: create_table_artifact(table=rows, key=key, description=description))


def publish_progress(run_id: str, version: int, iterations: int) -> None:
    """Publish a run's progress as a bar: the share of its updates that is done."""
    key, share_done = artifact_key(run_id, "progress"), 100 * version / iterations
    retry_until_reachable(
        lambda: create_progress_artifact(progress=share_done, key=key, description=f"{version} of {iterations} updates")
    )


def publish_links(store: RunStore, report: Path, view: str) -> None:
    """Publish where the report is, and a link to each episode that it shows.

    Args:
        view: Address of a `flows.view` server; a page of Prefect's may not link to a file.
    """
    page = run_address(store, view)
    lines = [
        f"[Run {store.root.name}]({page}): the links open while `python -m flows.view --root {store.root.parent}` serves at {view}.",
        f"Its report is `{report}`.",
        "",
        "| episode | kind | reward |",
        "|---|---|---|",
    ]
    for chosen in choose_episodes(read_run(store.root).groups, []):
        episode = chosen.member
        link = f"[{episode.episode_id}]({page}/episodes/{quote(episode.episode_id, safe='')})"
        reward = "none" if episode.score is None else f"{episode.score:.2f}"
        lines.append(f"| {link} | {chosen.group.kind} | {reward} |")
    key = artifact_key(store.root.name, "report")
    retry_until_reachable(
        lambda: create_markdown_artifact(markdown="\n".join(lines), key=key, description="Report and episodes")
    )


def run_address(store: RunStore, view: str) -> str:
    """Return the address of a run's page in the browser of runs."""
    return f"{view.rstrip('/')}/runs/{quote(store.root.name, safe='')}"


def publish_curve(store: RunStore, metrics: MetricsLog) -> None:
    """Publish the learning curve so far, as an image that needs no server of ours."""
    lines: list[IterationMetrics | EvaluationMetrics] = [
        *metrics.lines(IterationMetrics),
        *metrics.lines(EvaluationMetrics),
    ]
    picture = base64.b64encode(learning_curve_png(store.root, lines)).decode()
    retry_until_reachable(
        lambda: create_image_artifact(
            image_url=f"data:image/png;base64,{picture}",
            key=artifact_key(store.root.name, "learning-curve"),
            description="Greedy success by policy version",
        )
    )
