"""Copies a run's metrics to Weights & Biases or an MLflow server, where they are asked for.

The callbacks of transformers' trainer would show the trainer's part alone; this is every line of
``metrics.jsonl``, which stays the record of the run.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx
import orjson

from envs.types import ConfigError
from training.ledger.store import atomic_write_bytes

logger = logging.getLogger(__name__)

INSTALL = {"wandb": "wandb>=0.31"}
"""Requirement of each tracker that is a package, with the oldest release that it was tried with."""
REQUEST_SECONDS = 10.0
"""Seconds that a request to MLflow may take; the run waits for it."""
MAX_METRICS, MAX_PARAMS, MAX_VALUE = 1000, 100, 6000
"""Metrics and parameters of a request, and characters of a parameter, that MLflow takes."""


class Tracker(Protocol):
    """Receives metrics."""

    def log(self, kind: str, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a line, each under its path, such as ``train/loss``."""

    def close(self, failed: bool) -> None:
        """Send what is left, and end the run there."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a tracker that is not installed, or has no server."""
    for name in names:
        if name == "mlflow":
            _tracking_server()
        elif importlib.util.find_spec(name) is None:
            raise ConfigError(f'trackers: {name} is not installed; install it: uv pip install "{INSTALL[name]}"')


def open_trackers(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[Tracker]:
    """Begin a run at each tracker, or go on with the one that an earlier start began.

    Raises:
        ConfigError: A tracker is not installed, or refuses the run; the message says why.
    """
    check_trackers(names)
    return [TRACKERS[name](folder, config) for name in dict.fromkeys(names)]


class ServiceTracker:
    """Run at a service. What cannot be sent is logged once, and the next lines are tried again."""

    service: str
    _failed = False

    def log(self, kind: str, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a line. Each kind of line counts its own steps."""
        try:
            self.send(kind, values, step)
        except Exception as error:  # of any kind: a copy that fails does not end a run
            if not self._failed:
                logger.warning("%s does not take the metrics of step %d: %s", self.service, step, error)
            self._failed = True
        else:
            self._failed = False

    def send(self, kind: str, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a line; any error is logged."""
        raise NotImplementedError


class WandbTracker(ServiceTracker):
    """Run at Weights & Biases. Environment variables of its own say project, account and mode."""

    service = "Weights & Biases"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        os.environ.setdefault("WANDB_SILENT", "true")
        path = folder / "wandb.id"
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

    def send(self, kind: str, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a line, over the steps of its kind."""
        if kind not in self._kinds:
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
            self._kinds.add(kind)
        self._run.log({**values, f"{kind}/step": step})

    def close(self, failed: bool) -> None:
        """Wait until all lines are sent; W&B shows a run that failed as such."""
        self._run.finish(exit_code=int(failed))


class MlflowTracker(ServiceTracker):
    """Run at an MLflow server, by its REST API: its own client excludes our pins.

    Environment variables of its own say address, experiment and account.
    """

    service = "MLflow"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        headers, path = {}, folder / "mlflow.id"
        if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        user = os.environ.get("MLFLOW_TRACKING_USERNAME")
        self._client = httpx.Client(
            base_url=f"{_tracking_server()}/api/2.0/mlflow/",
            headers=headers,
            auth=(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user and not headers else None,
            timeout=REQUEST_SECONDS,
        )
        try:
            if not path.exists():
                atomic_write_bytes(path, self._create(folder.name, config).encode())
            self._run = path.read_text()
            self._post("runs/update", status="RUNNING")
        except (httpx.HTTPError, KeyError, ValueError) as error:
            raise ConfigError(
                f"trackers: the MLflow server {self._client.base_url} refuses the run: {error}"
            ) from error

    def send(self, kind: str, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a line, in as few requests as MLflow allows."""
        now = time.time_ns() // 1_000_000
        metrics = [{"key": name, "value": value, "timestamp": now, "step": step} for name, value in values.items()]
        for start in range(0, len(metrics), MAX_METRICS):
            self._post("runs/log-batch", metrics=metrics[start : start + MAX_METRICS])

    def close(self, failed: bool) -> None:
        """End the run at the server, which shows whether it failed."""
        state = "FAILED" if failed else "FINISHED"
        try:
            self._post("runs/update", status=state, end_time=time.time_ns() // 1_000_000)
        except (httpx.HTTPError, ValueError) as error:
            logger.warning("MLflow does not take the end of the run: %s", error)
        self._client.close()

    def _create(self, name: str, config: Mapping[str, Any]) -> str:
        """Create a run with the configuration as parameters, which MLflow keeps as they are."""
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rollwright")
        answer = self._client.get("experiments/get-by-name", params={"experiment_name": experiment})
        if answer.status_code == httpx.codes.NOT_FOUND:
            number = self._post("experiments/create", name=experiment)["experiment_id"]
        else:
            number = answer.raise_for_status().json()["experiment"]["experiment_id"]
        created = self._post("runs/create", experiment_id=number, run_name=name, start_time=time.time_ns() // 1_000_000)
        self._run = str(created["run"]["info"]["run_id"])
        given = list(_parameters(config))
        for start in range(0, len(given), MAX_PARAMS):
            self._post("runs/log-batch", params=given[start : start + MAX_PARAMS])
        return self._run

    def _post(self, method: str, **values: Any) -> dict[str, Any]:
        if method.partition("/")[2] in ("update", "log-batch"):
            values["run_id"] = self._run
        answer = self._client.post(method, content=orjson.dumps(values), headers={"Content-Type": "application/json"})
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result


def _parameters(values: Mapping[str, Any], prefix: str = "") -> Iterator[dict[str, str]]:
    """Yield each value of a configuration under its dotted path."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _parameters(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
            yield {"key": f"{prefix}{key}", "value": text[:MAX_VALUE]}


def _tracking_server() -> str:
    """Return the address of the server.

    Raises:
        ConfigError: the environment names none.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not address.startswith(("http://", "https://")):
        raise ConfigError(
            f"trackers: mlflow needs a server, and MLFLOW_TRACKING_URI={address} names none; start one (mlflow server) "
            "and set it to its address, such as http://127.0.0.1:5000"
        )
    return address.rstrip("/")


TRACKERS: dict[str, type[WandbTracker] | type[MlflowTracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}
