"""Copies a run's metrics to Weights & Biases, where it is installed and asked for.

The callbacks of transformers' trainer would show the trainer's part alone; this is every line of
``metrics.jsonl``, which stays the record of the run.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from envs.types import ConfigError
from training.ledger.store import atomic_write_bytes

logger = logging.getLogger(__name__)

INSTALL = {"wandb": "wandb>=0.31"}
"""Requirement of each tracker, with the oldest release that it was tried with."""
ID_FILE = "wandb.id"
"""File of a run's folder with its id at the tracker, under which the run goes on."""


class Tracker(Protocol):
    """Receives metrics."""

    def log(self, kind: str, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a line, each under its path, such as ``train/loss``."""

    def close(self, failed: bool) -> None:
        """Send what is left, and end the run there."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a tracker that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f'trackers: {name} is not installed; install it: uv pip install "{INSTALL[name]}"')


def open_trackers(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[Tracker]:
    """Begin a run at each tracker, or go on with the one that an earlier start began.

    Raises:
        ConfigError: A tracker is not installed, or refuses the run; the message says why.
    """
    check_trackers(names)
    return [TRACKERS[name](folder, config) for name in dict.fromkeys(names)]


class WandbTracker:
    """Run at Weights & Biases. Environment variables of its own say project, account and mode.

    A line that cannot be sent is logged once, and the next ones are tried again.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        os.environ.setdefault("WANDB_SILENT", "true")
        path = folder / ID_FILE
        if not path.exists():
            atomic_write_bytes(path, uuid.uuid4().hex.encode())
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "rollwright"),
                name=folder.name,
                id=path.read_text(),
                resume="allow",
                dir=folder,
                config=dict(config),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"trackers: Weights & Biases refuses the run: {error}; log in (wandb login), or set WANDB_MODE=offline"
            ) from error
        self._kinds = set[str]()
        self._failed = False

    def log(self, kind: str, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a line. Each kind of line counts its own steps."""
        try:
            if kind not in self._kinds:
                self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
                self._kinds.add(kind)
            self._run.log({**values, f"{kind}/step": step})
        except Exception as error:  # of any kind: a copy that fails does not end a run
            if not self._failed:
                logger.warning("Weights & Biases does not take the metrics of step %d: %s", step, error)
            self._failed = True
        else:
            self._failed = False

    def close(self, failed: bool) -> None:
        """Wait until all lines are sent; W&B shows a run that failed as such."""
        self._run.finish(exit_code=int(failed))


TRACKERS = {"wandb": WandbTracker}
