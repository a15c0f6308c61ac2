"""Finds the version that a starting trainer resumes from. Imports no torch.

That is the newest version whose weights and state are whole. Later published versions are done
again from their batches, which gives the same weights to the last bit: random numbers depend on
seed and version alone, and each manifest has the learning rate of its update. Version 0 has no
state, so a run that has all its batches can always resume.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from envs.types import ReadError, StorageError, TrainingError
from training.ledger.checkpoint_files import MANIFEST, check_files, read_manifest
from training.ledger.paths import policy_name
from training.ledger.store import RunStore
from training.trainer.spec import TrainerSpec


class ResumePoint(NamedTuple):
    """A version to resume from, and the reason if it is not the latest."""

    version: int
    damage: str = ""
    """Damage of the latest version's state; empty if no update is done again."""


def find_resume_point(store: RunStore, spec: TrainerSpec) -> ResumePoint:
    """Return the newest version that training can resume from. Hashes every file once.

    A version without a state because of ``trainer.state_every`` is skipped without a warning, and
    so is the newest one with a state if a kill cut its write off.

    Raises:
        StorageError: The latest policy is damaged; the message names the file and the remedy.
        TrainingError: No version can be resumed from.
    """
    latest = store.latest_policy()
    if latest is None:
        raise TrainingError(f"{store.root} has no published policy: version 0 must be there before the trainer starts")
    store.check_policy(latest)
    if spec.trainer.finetuning_type == "lora":
        store.check_policy(0)
    damage = ""
    due = [version for version in range(1, latest + 1) if spec.trainer.state_due(version, spec.total_updates)][:-1]
    for version in range(latest, -1, -1):
        try:
            if version:
                check_state(state_path(store, version))
            if version != latest:
                store.check_policy(version)
            return ResumePoint(version, damage)
        except ReadError:
            raise  # a file that cannot be read for the moment is not damaged
        except StorageError as error:
            if version in due or state_path(store, version).exists():
                damage = damage or str(error)
        if not store.batch_path(version).exists():
            break
    damage = damage or f"the trainer states before v{latest} are gone"
    raise TrainingError(
        f"{damage}; and there is no earlier version whose weights, state and later batches are all whole. "
        f"Put back a copy of {state_path(store, latest)} from a backup"
    )


def check_state(folder: Path) -> None:
    """Check a trainer state's files by its manifest.

    Raises:
        StorageError: The state is missing or of another version, or one of its files is missing,
            truncated or changed.
    """
    if not folder.is_dir():
        raise StorageError(f"trainer state {folder} is missing")
    manifest = read_manifest(folder)
    if policy_name(version := manifest.get("version", int(folder.name[1:]))) != folder.name:
        raise StorageError(f"trainer state {folder} is of version {version}")
    check_files(folder, manifest["files"], MANIFEST)


def remove_temporary_folders(store: RunStore) -> None:
    """Delete the unfinished folders of a killed trainer. Called under the trainer's lock."""
    for folder in (store.root / "policies", store.trainer_path / "state", store.trainer_path):
        for path in folder.glob(".tmp-*"):
            shutil.rmtree(path)


def state_path(store: RunStore, version: int) -> Path:
    """Return the folder of the optimizer and scheduler state after the update to ``version``."""
    return store.trainer_path / "state" / policy_name(version)
