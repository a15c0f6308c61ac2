"""Prefect artifacts of a run: a table for each iteration and the learning curve as an image."""

from __future__ import annotations

import base64
from typing import Any

from prefect.artifacts import create_image_artifact, create_table_artifact

from tasks_lib.folder.metrics import share
from tasks_lib.processes.server_watch import reached
from tasks_lib.report import learning_curve_png
from training.ledger.store import RunStore


def artifact_key(run_id: str, name: str) -> str:
    """Prefect's keys hold lower-case letters, digits and dashes only."""
    return "".join(
        letter if letter.isalnum() and letter.isascii() else "-" for letter in f"{run_id}-{name}".lower()
    ).strip("-")


def publish_iteration_table(run_id: str, line: dict[str, Any]) -> None:
    """Success by task kind in one iteration, with its groups, episodes and seconds."""
    rows = [
        {"what": kind, "value": round(entry["mean"], 3) if entry["n"] else None, "n": entry["n"]}
        for kind, entry in line["success_by_kind"].items()
    ]
    for section in ("groups", "episodes", "abstentions", "seconds", "train"):
        rows += [
            {"what": f"{section}: {name}", "value": round(value, 4), "n": ""}
            for name, value in line.get(section, {}).items()
            if isinstance(value, int | float)
        ]
    publish_table(
        artifact_key(run_id, "iteration"),
        rows,
        f"Iteration {line['iteration']}: success {share(line['success'])} with version {line['version'] - 1}",
    )


def publish_table(key: str, rows: list[dict[str, Any]], description: str | None = None) -> None:
    """A table artifact. Waits for a server that does not answer."""
    reached(lambda: create_table_artifact(table=rows, key=key, description=description))


def publish_curve(store: RunStore) -> None:
    """The learning curve so far, as an image that needs no server of ours."""
    picture = base64.b64encode(learning_curve_png(store.root)).decode()
    reached(
        lambda: create_image_artifact(
            image_url=f"data:image/png;base64,{picture}",
            key=artifact_key(store.root.name, "learning-curve"),
            description="Greedy success by policy version",
        )
    )
