"""Writes an update's trainer state in the background, and publishes the policy atomically."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from envs.types import ReadError, StorageError, TrainingError
from training.ledger.checkpoint_files import (
    MANIFEST,
    RECIPE,
    WEIGHT_FILES,
    check_files,
    commit_folder,
    file_hashes,
)
from training.ledger.disk import folder_bytes, raise_disk_errors
from training.ledger.paths import policy_name
from training.ledger.store import RunStore, write_json
from training.policy.adapters import ADAPTER_CONFIG, is_adapter
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.published_weights import compare_published
from training.trainer.resume import state_path

ADAM_BYTES = 12
"""Bytes of state per trained parameter: the weight and Adam's two moments in float32."""


def publish_state(trainer: PolicyTrainer, store: RunStore, version: int) -> None:
    """Begin to write ``trainer/state/v…``; training may go on at once. Called on every process.

    It first waits for the state before. At least two are kept: a restart before the new policy's
    manifest needs the older state.
    """
    target = state_path(store, version)
    temporary = target.parent / f".tmp-{target.name}"
    trainer.states.wait()
    needed = ADAM_BYTES * trainer.trained_parameters
    with _remove_on_failure(temporary, needed):
        _on_first(trainer, lambda: _empty(temporary))
        files = trainer.copy_state(temporary)
    trainer.states.start(files, temporary, target, needed)


def publish_policy(
    trainer: PolicyTrainer, store: RunStore, version: int, manifest: Callable[[], dict[str, Any]]
) -> None:
    """Write the trainer's weights as ``policies/v…``. Called on every process.

    Args:
        manifest: Returns the manifest's entries besides version and files; called last, so that
            they can include the time of this call.
    """
    target = store.policy_path(version)
    parent = store.policy_path(version - 1)
    temporary = target.parent / f".tmp-{target.name}"
    with _remove_on_failure(temporary, folder_bytes(parent)):
        _on_first(trainer, lambda: _copy_static_files(parent, temporary))
        model, weights = trainer.save_weights(temporary)
        if not trainer.is_compared:
            compare_published(trainer, temporary)
            trainer.is_compared = True
        sender = trainer.sender
        if sender is not None and weights:
            sender.offer(version, model, weights, temporary)
        entries = {"sender": sender.name} if sender is not None else {}
        _on_first(trainer, lambda: _commit_policy(temporary, target, version, lambda: {**entries, **manifest()}))


def check_replay(trainer: PolicyTrainer, store: RunStore, version: int) -> str:
    """Compare the weights of repeated updates with the published version, which counts.

    Attention on GPUs adds in an order that differs from run to run, so that a repeated update may
    give weights that differ in their last bits. The trainer then takes the published weights, and
    keeps the optimizer's moments of the repeated updates. Merged adapters cannot be taken apart,
    and stay as repeated. Called on every process.

    Returns:
        What differed and how training goes on; empty if all weights are equal.
    """
    temporary = store.trainer_path / f".tmp-replayed-{policy_name(version)}"
    differences = [""]
    with _remove_on_failure(temporary, folder_bytes(store.policy_path(version))):
        _on_first(trainer, lambda: _empty(temporary))
        trainer.save_weights(temporary)
        if trainer.args.should_save:
            differences = [_compare_replayed(temporary, store, version)]
            shutil.rmtree(temporary)
    if trainer.args.world_size > 1:
        torch.distributed.broadcast_object_list(differences)
    if not differences[0]:
        return ""
    difference = f"the updates up to v{version} that were done again gave other weights ({differences[0]})"
    if trainer.lora and not is_adapter(store.policy_path(version)):
        return f"{difference}; training goes on from them, as v{version} is published with its adapter merged"
    largest = trainer.load_weights(store.policy_path(version))
    return f"{difference}, by {largest:.1e} at most; training goes on from those that are published"


def _compare_replayed(temporary: Path, store: RunStore, version: int) -> str:
    published = {
        name: entry for name, entry in store.manifest(version)["files"].items() if WEIGHT_FILES.fullmatch(name)
    }
    try:
        check_files(temporary, published, f"the manifest of {store.policy_path(version)}")
    except ReadError:
        raise
    except StorageError as error:
        return str(error)
    return ""


@contextmanager
def _remove_on_failure(temporary: Path, needed: int) -> Iterator[None]:
    """Remove a temporary folder when the block fails; write faults become ``DiskError``."""
    with raise_disk_errors(temporary, needed):
        try:
            yield
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _on_first(trainer: PolicyTrainer, action: Callable[[], object]) -> None:
    if trainer.args.should_save:
        action()
    trainer.accelerator.wait_for_everyone()


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _copy_static_files(parent: Path, folder: Path) -> None:
    """Copy the files that all versions share; a recipe holds the hashes of other weights."""
    _empty(folder)
    left_out = (MANIFEST, RECIPE, ADAPTER_CONFIG)
    for path in parent.iterdir():
        if path.is_file() and path.name not in left_out and not WEIGHT_FILES.fullmatch(path.name):
            shutil.copyfile(path, folder / path.name)


def _commit_policy(temporary: Path, target: Path, version: int, manifest: Callable[[], dict[str, Any]]) -> None:
    """Publish the folder, unless the version is published already: the first commit wins."""
    if (target / MANIFEST).exists():
        shutil.rmtree(temporary)
        raise TrainingError(f"{target} is published already, and was to be written again; nothing of it was changed")
    files = file_hashes(temporary)
    document = {"version": version, "parent": version - 1, "files": files, **manifest()}
    write_json(temporary / MANIFEST, document, sealed=True)
    shutil.rmtree(target, ignore_errors=True)  # left by a killed process: it has no manifest
    commit_folder(temporary, target)
