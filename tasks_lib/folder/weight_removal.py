"""Removes the weights of policies that a run does not keep. The manifest stays, with a marker
beside it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from training.config import TrainerConfig
from training.ledger.aliases import read_aliases, remove_unless_aliased
from training.ledger.checkpoint_files import MANIFEST, REMOVED
from training.ledger.disk import raise_disk_errors
from training.ledger.retention import best_version, removable_versions
from training.ledger.store import RunStore, write_json

REMAINING_FILES = frozenset({MANIFEST, REMOVED})
"""Files that remain of a policy whose weights were removed."""


class PolicyRetention:
    """Removes the weights that ``trainer.keep_policies`` does not keep."""

    def __init__(self, store: RunStore, settings: TrainerConfig) -> None:
        self._store, self._settings = store, settings
        self._whole = set(store.versions()) if settings.keep_policies else set[int]()
        """Published versions whose weights are not known to be removed."""

    def remove(self, newest: int, means: Mapping[int, float | None], under_way: Collection[int] = ()) -> list[int]:
        """Remove the weights that are not kept any more, and return their versions.

        A removal that was cut off by a kill is completed. A removed version is looked at once.

        Args:
            newest: Newest published version.
            means: Mean success by evaluated version, in the form for `best_version`.
            under_way: Versions that groups under way were started with: a worker that takes one
                over loads it.
        """
        store, settings = self._store, self._settings
        if not settings.keep_policies:
            return []
        self._whole.add(newest)
        aliased = {alias.version for alias in read_aliases(store).values()}
        needed = {*under_way, *_versions_with_state(store), *aliased}
        if settings.keep_best and (best := best_version(means)) is not None:
            needed.add(best)
        removed = []
        for version in removable_versions(self._whole, settings.keep_policies, needed):
            folder = store.policy_path(version)
            if {path.name for path in folder.iterdir()} != REMAINING_FILES:
                if not remove_unless_aliased(store, version, partial(_mark_removed, folder, settings)):
                    continue
                _remove_weights(folder)
                removed.append(version)
            self._whole.discard(version)
        return removed


def _versions_with_state(store: RunStore) -> list[int]:
    """Return the versions with a trainer state, whole or in writing.

    Training may go on from each, with its weights.
    """
    matches = (re.fullmatch(r"(?:\.tmp-)?v(\d{6})", path.name) for path in (store.trainer_path / "state").glob("*v*"))
    return [int(match[1]) for match in matches if match]


def _mark_removed(folder: Path, settings: TrainerConfig) -> None:
    # The marker comes before the removal, so that it explains every missing file.
    write_json(folder / REMOVED, {"keep_policies": settings.keep_policies, "keep_best": settings.keep_best})


def _remove_weights(folder: Path) -> None:
    with raise_disk_errors(folder):
        for path in folder.iterdir():
            if path.name in REMAINING_FILES:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
