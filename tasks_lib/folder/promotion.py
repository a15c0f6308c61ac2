"""Gives an alias to a version of a run: which version, and whether it may have it."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass

from envs.types import ConfigError
from tasks_lib.config.promotion import PromoteConfig
from tasks_lib.folder.metrics import describe_success
from tasks_lib.folder.metrics_lines import EvaluationMetrics, read_lines
from training.ledger.aliases import Alias, describe_missing_alias, describe_missing_version, read_alias
from training.ledger.retention import best_version
from training.ledger.store import RunStore

BEST = "best"
"""Alias whose version is chosen by its evaluation, if none is given."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """A version that is to get an alias."""

    store: RunStore
    alias: str
    version: int
    before: Alias | None
    """Alias of this name until now."""
    measured: str
    """Success of its newest evaluation; empty if there is none."""

    def describe(self) -> str:
        """Describe the promotion in a sentence, for the log and for the person who approves."""
        before = f", which is version {self.before.version} now" if self.before else ""
        measured = f" ({self.measured})" if self.measured else ""
        return f"version {self.version} of {self.store.root.name}{measured} is to be its alias {self.alias}{before}"


def choose_promotion(config: PromoteConfig) -> Promotion:
    """Return what is to be promoted, which is checked.

    Raises:
        ConfigError: the folder is no run, or has no such version or alias.
        StorageError: the version is damaged or removed.
    """
    store = RunStore(config.run_dir)
    if (newest := store.latest_policy()) is None:
        raise ConfigError(f"run: {store.root} has no published version; give the folder of a training run")
    before = read_alias(store, config.alias)
    if config.remove:
        if before is None:
            raise ConfigError(f"alias: {describe_missing_alias(store, config.alias)}")
        return Promotion(store, config.alias, before.version, before, "")
    evaluations = {line.version: line for line in read_lines(store.metrics_path, EvaluationMetrics)}
    version = config.version
    if version is None and config.alias == BEST:
        version = best_version({number: line.mean for number, line in evaluations.items()})
        if version is None:
            raise ConfigError(
                f"version: no evaluation of {store.root} says which version is the best; give it with --version"
            )
    if version is None:
        version = newest
    if not store.is_published(version):
        raise ConfigError(f"version: {describe_missing_version(store, version)}")
    store.check_policy(version)
    line = evaluations.get(version)
    measured = f"success {describe_success(line.model_dump())}, n = {line.n}" if line else ""
    return Promotion(store, config.alias, version, before, measured)


def person() -> str:
    """Return who runs this process, as ``user@host``."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
