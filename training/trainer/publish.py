"""Writes what an update leaves behind: first the trainer state, then the policy, whose folder appears whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.store import MANIFEST, RunStore, file_hashes, write_json
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.setup import state_path

KEPT_STATES = 2
"""The latest, and the one before it: until a new policy's manifest is there, a restart begins from the older state."""

WEIGHT_FILES = re.compile(r"(model|pytorch_model|adapter_model).*\.(safetensors|bin)(\.index\.json)?")
"""Files of a checkpoint that a new version replaces; tokenizer, processor and chat template are handed on as they are."""


def publish_state(trainer: PolicyTrainer, store: RunStore, version: int) -> None:
    """Write ``trainer/state/v…`` and prune older ones. Called on every process."""
    target = state_path(store, version)
    temporary = target.parent / f".tmp-{target.name}"
    _on_first(trainer, lambda: _empty(temporary))
    trainer.save_state(temporary)
    trainer.accelerator.wait_for_everyone()
    _on_first(trainer, lambda: _commit_state(temporary, target))


def publish_policy(
    trainer: PolicyTrainer, store: RunStore, version: int, manifest: Callable[[], dict[str, Any]]
) -> None:
    """Write ``policies/v…`` out of the trainer's weights. Called on every process.

    Args:
        manifest: Gives what goes into the manifest besides version and files; called last, so that it can hold this very time.
    """
    target = store.policy_path(version)
    temporary = target.parent / f".tmp-{target.name}"
    _on_first(trainer, lambda: _copy_static_files(store.policy_path(version - 1), temporary))
    trainer.save_weights(temporary)
    _on_first(trainer, lambda: _commit_policy(temporary, target, version, manifest))


def _on_first(trainer: PolicyTrainer, action: Callable[[], object]) -> None:
    if trainer.args.should_save:
        action()
    trainer.accelerator.wait_for_everyone()


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _copy_static_files(parent: Path, folder: Path) -> None:
    _empty(folder)
    for path in parent.iterdir():
        if path.is_file() and path.name != MANIFEST and not WEIGHT_FILES.fullmatch(path.name):
            shutil.copyfile(path, folder / path.name)


def _commit_state(temporary: Path, target: Path) -> None:
    _replace_folder(temporary, target)
    versions = sorted(path for path in target.parent.iterdir() if re.fullmatch(r"v\d{6}", path.name))
    for old in versions[:-KEPT_STATES]:
        shutil.rmtree(old)


def _commit_policy(temporary: Path, target: Path, version: int, manifest: Callable[[], dict[str, Any]]) -> None:
    files = file_hashes(temporary)
    write_json(temporary / MANIFEST, {"version": version, "parent": version - 1, "files": files, **manifest()})
    _replace_folder(temporary, target)


def _replace_folder(temporary: Path, target: Path) -> None:
    """Sync a folder's files, then give it its final name. What lies there is a leftover of a killed process: only a manifest counts."""
    for path in temporary.rglob("*"):
        _sync(path)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
