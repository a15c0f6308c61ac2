"""Finds the version that a starting trainer resumes from.

The newest whose weights and state are whole. Imports no torch.

Later versions that are published already are done again from their batches, which gives the same weights to the last bit (random
numbers depend on seed and version alone, and the learning rate that an update had is in its manifest). With version 0, which has no
state, there is always a place to go on from, as long as the run has all its batches.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from envs.types import ReadError, StorageError, TrainingError
from training.ledger.checkpoint_files import MANIFEST, check_archive, check_files, read_manifest
from training.ledger.store import RunStore, policy_name
from training.trainer.spec import TrainerSpec


class ResumePoint(NamedTuple):
    """A version to go on from, and why it is not the latest."""

    version: int
    damage: str = ""
    """What is wrong with the state of the latest version; empty when nothing is done again."""


def find_resume_point(store: RunStore, spec: TrainerSpec) -> ResumePoint:
    """The newest version that training can go on from. Every file is hashed once.

    A version whose state was not to be written (``trainer.state_every``) is passed over, which is no damage.

    Raises:
        StorageError: The latest policy is damaged; names the file and says how to go on.
        TrainingError: No version can be gone on from.
    """
    latest = store.latest_policy()
    if latest is None:
        raise TrainingError(f"{store.root} has no published policy: version 0 must be there before the trainer starts")
    store.check_policy(latest)
    if spec.trainer.finetuning_type == "lora":
        store.check_policy(0)
    damage = ""
    for version in range(latest, -1, -1):
        try:
            if version:
                check_state(state_path(store, version))
            if version != latest:
                store.check_policy(version)
            return ResumePoint(version, damage)
        except ReadError:
            raise  # what cannot be read for the moment is not done again
        except StorageError as error:
            if spec.trainer.state_due(version, spec.total_updates) or state_path(store, version).exists():
                damage = damage or str(error)
        if not store.batch_path(version).exists():
            break
    damage = damage or f"the trainer states before v{latest} are gone"
    raise TrainingError(
        f"{damage}; and there is no earlier version whose weights, state and later batches are all whole. "
        f"Put back a copy of {state_path(store, latest)} from a backup"
    )


def check_state(folder: Path) -> None:
    """Check a trainer state's files: by its manifest, or by their own checksums if it is older than those manifests.

    Raises:
        StorageError: It is missing or another version's, or one of its files is missing, cut short or another one.
    """
    if not folder.is_dir():
        raise StorageError(f"trainer state {folder} is missing")
    if (folder / MANIFEST).exists():
        manifest = read_manifest(folder)
        if policy_name(version := manifest.get("version", int(folder.name[1:]))) != folder.name:
            raise StorageError(f"trainer state {folder} is of version {version}")
        check_files(folder, manifest["files"], MANIFEST)
        return
    archives = [path for path in sorted(folder.rglob("*.pt")) + sorted(folder.rglob("*.bin")) if path.is_file()]
    if not archives:
        raise StorageError(f"trainer state {folder} is damaged: it holds no optimizer")
    for path in archives:
        check_archive(path)


def remove_temporary_folders(store: RunStore) -> None:
    """Delete what a killed trainer was still writing. Called under the trainer's lock."""
    for folder in (store.root / "policies", store.trainer_path / "state", store.trainer_path):
        for path in folder.glob(".tmp-*"):
            shutil.rmtree(path)


def state_path(store: RunStore, version: int) -> Path:
    """Folder of the optimizer, scheduler and random state after the update that made ``version``."""
    return store.trainer_path / "state" / policy_name(version)
