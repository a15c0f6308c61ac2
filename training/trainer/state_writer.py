"""Writes trainer states beside training: each rank its own files, and the first rank commits.

The trainer copies its state into host memory and trains on while a thread writes the copy to a
temporary folder. Once the files of all ranks are synced, the first rank lists them in the manifest
and gives the folder its final name; only then are older states removed. So a kill at any moment
leaves the last whole state. One state is written at a time: the next one waits for it.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from envs.types import RollwrightError, TrainingError
from training.ledger.checkpoint_files import MANIFEST, commit_folder, state_hashes
from training.ledger.disk import raise_disk_errors
from training.ledger.store import write_json

APART = timedelta(hours=2)
"""Longest time between the first rank that has written its files and the last."""

Files = dict[Path, Any]
"""Contents by path, for `torch.save`."""


class StateWriter:
    """Writes the states of one trainer; every rank has one."""

    def __init__(self, kept: int) -> None:
        """Make the writer, on all ranks at once.

        Args:
            kept: Number of newest states that are kept.
        """
        self._kept = kept
        is_alone = not distributed.is_initialized() or distributed.get_world_size() == 1
        # A group of its own, so that its messages and those of training do not meet.
        self._group = None if is_alone else distributed.new_group(backend="gloo", timeout=APART)
        self._thread = ThreadPoolExecutor(1, "state")
        self._writing: Future[None] | None = None

    def start(self, files: Files, temporary: Path, target: Path, needed: int) -> None:
        """Begin to write the next state; call ``wait`` before.

        Args:
            files: This rank's files under ``temporary``, with contents that do not change.
            temporary: Folder that exists; on the first rank it may hold further files.
            target: Final name of the folder.
            needed: Bytes of all ranks' files, for the message of a full disk.
        """
        self._writing = self._thread.submit(self._write, files, temporary, target, needed)

    def wait(self) -> None:
        """Wait until the started state is whole.

        Raises:
            DiskError, TrainingError: A rank could not write its files.
        """
        if self._writing is not None:
            self._writing.result()

    def raise_failure(self) -> None:
        """Raise the errors of ``wait`` if the write has ended with one already."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    def _write(self, files: Files, temporary: Path, target: Path, needed: int) -> None:
        failure: RollwrightError | None = None
        entries: dict[str, dict[str, Any]] = {}
        try:
            with raise_disk_errors(temporary, needed):
                written = [save_file(path, files.pop(path)) for path in list(files)]
                entries = state_hashes(temporary, written)
        except RollwrightError as error:
            failure = error
        except Exception as error:
            failure = TrainingError(f"cannot write the trainer state {temporary}: {type(error).__name__}: {error}")
        results = self._of_all_ranks((entries, failure))
        failures = [refused for _, refused in results if refused is not None]
        if _is_first():
            with raise_disk_errors(temporary, needed):
                if failures:
                    shutil.rmtree(temporary, ignore_errors=True)
                else:
                    listed = {name: entry for entries, _ in results for name, entry in entries.items()}
                    commit_state(temporary, target, self._kept, listed)
        if failures:
            raise failures[0]

    def _of_all_ranks(self, result: Any) -> list[Any]:
        if self._group is None:
            return [result]
        results = [None] * distributed.get_world_size(self._group)
        distributed.all_gather_object(results, result, group=self._group)
        return results


def save_file(path: Path, content: Any) -> Path:
    """Write and sync one file of a state; return its path."""
    with open(path, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    return path


def commit_state(temporary: Path, target: Path, kept: int, listed: dict[str, dict[str, Any]]) -> None:
    """Write the manifest, give a state its final name, and remove all but the newest ``kept``.

    Args:
        listed: Hashes of the files of all ranks, as other machines may not show them here yet;
            further files of the folder are hashed here.
    """
    others = [
        path for path in temporary.rglob("*") if path.is_file() and str(path.relative_to(temporary)) not in listed
    ]
    files = {**listed, **state_hashes(temporary, others)}
    write_json(temporary / MANIFEST, {"version": int(target.name[1:]), "files": files}, sealed=True)
    shutil.rmtree(target, ignore_errors=True)  # left by a killed process: it has no manifest
    commit_folder(temporary, target)
    versions = sorted(path for path in target.parent.iterdir() if re.fullmatch(r"v\d{6}", path.name))
    for old in versions[:-kept]:
        shutil.rmtree(old)


def copy_to_host(item: Any, known: dict[Any, torch.Tensor] | None = None) -> Any:
    """Return a copy of a state whose tensors lie in host memory; shared ones stay shared."""
    known = {} if known is None else known
    if isinstance(item, torch.Tensor):
        place = item.device, item.dtype, item.data_ptr(), item.shape, item.stride()
        if not item.numel() or place not in known:
            known[place] = item.detach().to("cpu", copy=True)
        return known[place]
    if isinstance(item, dict):
        copied = copy.copy(item)
        for key, value in item.items():
            copied[key] = copy_to_host(value, known)
        return copied
    if type(item) in (list, tuple):
        return type(item)(copy_to_host(value, known) for value in item)
    return item


def _is_first() -> bool:
    return not distributed.is_initialized() or distributed.get_rank() == 0
