"""Repairs damaged files when a training run is opened, or reports what is lost.

A group's record is rebuilt from its trajectories, and a batch from its groups. Where no version was
trained on them yet, groups are rolled out again and batches are made again. A batch that a version
was trained on is only restored if it has the sha256 that the version's manifest names. Every file
that is replaced stays beside it, with ``.damaged`` at the end of its name.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from envs.types import StorageError, Trajectory
from tasks_lib.config import TrainConfig
from tasks_lib.folder.batches import batch_of, damaged_in, possible_files
from training.ledger.checked import CheckedVersion
from training.ledger.journal import groups_of_version, read_batch, read_group, trained_on
from training.ledger.paths import group_of
from training.ledger.seal import sha256_of
from training.ledger.store import RunStore, atomic_write_bytes, move_aside_advice, read_json, write_json
from training.records.groups import EpisodeSummary, GroupRecord

Stored = Mapping[str, list[tuple[str, str]]]
"""(episode id, token) of each group's stored trajectories, by group id."""


def repair_run(
    store: RunStore,
    config: TrainConfig,
    stored: Stored | None = None,
    checked: Mapping[int, CheckedVersion] = MappingProxyType({}),
) -> list[str]:
    """Repair damaged records and batches of a training run, and return a line for each repair.

    Args:
        stored: Result of `stored_by_group`, if it is known.
        checked: Versions that are unchanged since they were checked; they are not read again.

    Raises:
        StorageError: one that a published version depends on cannot be made again; says what is
            lost.
    """
    stored, newest = stored_by_group(store) if stored is None else stored, store.latest_policy() or 0
    versions = [version for version in range(1, newest + 1) if version not in checked]
    unchanged = {group_id for line in checked.values() for group_id in line.groups}
    decided = {group_id for version in versions for group_id in groups_of_version(store, version)} - unchanged
    size, attempts = config.episodes_per_group, config.rollout.attempts
    repairs = [_repair_trained_group(store, config, group_id, stored) for group_id in sorted(decided)]
    repairs += [
        repair_group(store, group_id, stored, size=size, attempts=attempts)
        for group_id in store.group_ids("i*")
        if group_id not in decided and group_id not in unchanged
    ]
    published = [version for version in versions if store.is_published(version)]
    repairs += [_repair_batch(store, config, version) for version in published]
    pending = sorted(int(path.stem[1:]) for path in store.batch_path(0).parent.glob(f"v{'[0-9]' * 6}.json"))
    if config.mode == "async":
        repairs += [_move_later_aside(store, version) for version in pending if version > newest + 1]
    repairs += [_check_pending_batch(store, config, version) for version in pending if version > newest]
    check_trajectories(store, versions, stored)
    check_evaluations(store)
    return [line for line in repairs if line]


def check_evaluations(store: RunStore) -> None:
    """Raise ``StorageError`` if an evaluation was changed or damaged after it was written."""
    for path in sorted(store.evaluation_path(0).parent.glob("*.json")):
        read_json(path, recount_advice(path))


def recount_advice(path: Path) -> str:
    """Return the advice about a damaged evaluation."""
    return (
        f"{move_aside_advice(path)} and start the same command again: the episodes that were played are counted again"
    )


def check_trajectories(store: RunStore, versions: Iterable[int], stored: Stored) -> None:
    """Check that records and trajectories of published versions agree.

    Raises ``StorageError``, which names the first fault, if a trajectory is missing or cut off, or
    its record does not list it. A file is only checked for its presence and its end; ``python -m
    flows.doctor`` reads all of it. Damaged episodes of the current iteration are left out of its
    batch.
    """
    faults = [
        fault
        for version in versions
        for group_id in sorted(groups_of_version(store, version))
        for fault in missing_trajectories(store, read_group(store, group_id), stored)
    ]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise StorageError(f"{faults[0]}{more}: the ledger does not agree with the files. {REMEDY}")


def missing_trajectories(store: RunStore, record: GroupRecord, stored: Stored) -> list[str]:
    """Return the faults between a record and the files of its trajectories, a line for each.

    The files are not read whole; each line names the episode.
    """
    listed = {episode.episode_id for episode in record.episodes}
    faults = [
        f"group {record.group_id} does not list episode {episode_id}, which its attempt has stored"
        for episode_id, token in stored.get(record.group_id, ())
        if token == record.token and episode_id not in listed
    ]
    for episode_id in sorted(listed):
        path = store.trajectory_path(episode_id, record.token)
        try:
            if not _is_whole_object(path):
                faults.append(f"the trajectory of episode {episode_id} is cut off, or is none ({path})")
        except FileNotFoundError:
            faults.append(f"the trajectory of episode {episode_id} does not exist ({path})")
    return faults


def _is_whole_object(path: Path) -> bool:
    """Return True if a file begins and ends as a JSON object does."""
    with open(path, "rb") as file:
        if file.read(1) != b"{":
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"}"


def rebuilt_record(store: RunStore, group_id: str, stored: Stored, *, size: int, attempts: int) -> GroupRecord:
    """Return a group's record, rebuilt from its trajectories.

    Args:
        stored: Stored trajectories by group.
        size: Episodes that the group was asked for.
        attempts: Maximum number of attempts at each episode.

    Raises:
        StorageError: not exactly one attempt has stored all of its episodes; says which are
            missing.
    """
    by_token: defaultdict[str, list[tuple[Trajectory, str]]] = defaultdict(list)
    faults: list[str] = []
    for episode_id, token in sorted(stored.get(group_id, ())):
        try:
            by_token[token].append(store.attempt_trajectory(episode_id, token))
        except StorageError as error:
            faults.append(str(error))
    complete = {
        token: trajectories for token, trajectories in by_token.items() if not _unfinished(trajectories, size, attempts)
    }
    if len(complete) != 1:
        best = max(by_token.values(), key=len, default=[])
        missing = ", ".join(f"{group_id}-s{sample:02d}" for sample in _unfinished(best, size, attempts))
        reason = (
            f"{len(complete)} attempts have stored all of it"
            if complete
            else f"of its {size} episodes {missing} are not whole"
        )
        raise StorageError(
            f"the record of group {group_id} cannot be made again from its trajectories: {'; '.join([reason, *faults])}"
        )
    ((token, trajectories),) = complete.items()
    first = trajectories[0][0]
    return GroupRecord(
        group_id=group_id,
        token=token,
        task_id=first.task_id,
        kind=first.kind,
        policy_version=first.policy_version,
        episodes=tuple(EpisodeSummary.of(trajectory, sha256) for trajectory, sha256 in trajectories),
    )


def _unfinished(trajectories: list[tuple[Trajectory, str]], size: int, attempts: int) -> list[int]:
    """Return the samples of a group that are missing, or whose last attempt is missing."""
    by_sample: defaultdict[int, list[Trajectory]] = defaultdict(list)
    for trajectory, _ in trajectories:
        by_sample[trajectory.sample].append(trajectory)
    return [sample for sample in range(size) if not _finished(by_sample[sample], attempts)]


def _finished(tries: list[Trajectory], attempts: int) -> bool:
    """Return True if these are all attempts at an episode (`EpisodeRunner.run`)."""
    tries = sorted(tries, key=lambda trajectory: trajectory.attempt)
    if not tries or [trajectory.attempt for trajectory in tries] != list(range(len(tries))):
        return False
    return tries[-1].is_last_attempt or len(tries) >= attempts


def repair_group(store: RunStore, group_id: str, stored: Stored | None, *, size: int, attempts: int) -> str:
    """Repair the record of a group before it is rolled out, while nothing depends on it.

    A record that cannot be read is made again from its trajectories; if they are not complete, the
    group is played again. Returns what was done; empty if nothing had to be.

    Args:
        stored: The argument of `rebuilt_record`; with ``None`` it is looked up if it is needed.
        size: The argument of `rebuilt_record`.
        attempts: The argument of `rebuilt_record`.
    """
    path = store.group_path(group_id)
    if not path.exists():
        return ""
    try:
        read_group(store, group_id)
    except StorageError as error:
        try:
            record = rebuilt_record(store, group_id, stored or stored_by_group(store), size=size, attempts=attempts)
        except StorageError as lost:
            move_damaged_aside(path)
            return f"{error}; {lost}: it is rolled out again"
        copy_damaged(path)
        write_json(path, record, sealed=True)
        return f"{error}: made again from its {len(record.episodes)} trajectories"
    return ""


def stored_by_group(store: RunStore) -> Stored:
    """Return the stored trajectories of each group."""
    stored: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for episode_id, token in store.stored_trajectories():
        stored[group_of(episode_id)].append((episode_id, token))
    return stored


def _repair_trained_group(store: RunStore, config: TrainConfig, group_id: str, stored: Stored) -> str:
    """Repair a group that a published version was trained on, or that its batch names.

    It does the same as `repair_group`, but never plays the group again.
    """
    try:
        read_group(store, group_id)
        return ""
    except StorageError as error:
        fault = error
    try:
        size = config.episodes_per_group
        record = rebuilt_record(store, group_id, stored, size=size, attempts=config.rollout.attempts)
    except StorageError as lost:
        raise StorageError(
            f"{fault}; {lost}. A version was trained on it, so it cannot be played again. {REMEDY}"
        ) from lost
    path = store.group_path(group_id)
    copy_damaged(path)
    write_json(path, record, sealed=True)
    return f"{fault}: made again from its {len(record.episodes)} trajectories"


REMEDY = (
    "Put the files back from a copy of the run, or start another run_id from the newest policy (policy.checkpoint=FOLDER/policies/v…); "
    "python -m flows.doctor --run FOLDER names all that is damaged"
)
"""Advice for lost files that a version was trained on."""


def _repair_batch(store: RunStore, config: TrainConfig, version: int) -> str:
    """Restore the batch of a published version if it is not the one trained on."""
    path, (wanted, _) = store.batch_path(version), trained_on(store, version)
    try:
        read_batch(store, version)
        if wanted == sha256_of(path):
            return ""
        fault = f"{path} is not the batch that version {version} was trained on (sha256)"
    except StorageError as error:
        fault = str(error)
    for data in possible_files(store, version, config.batch_settings, config.seed):
        if sha256_of(data) == wanted:
            copy_damaged(path)
            atomic_write_bytes(path, data)
            return f"{fault}: made again from its groups, as its manifest says"
    raise StorageError(f"{fault}, and its groups give another one than version {version} was trained on. {REMEDY}")


def _check_pending_batch(store: RunStore, config: TrainConfig, version: int) -> str:
    """Move a batch that no version was trained on aside if its groups give another one.

    It is made again from them.
    """
    path = store.batch_path(version)
    if not path.exists():
        return ""
    try:
        batch = read_batch(store, version)
        made = batch_of(store, version, config.batch_settings, damaged_in(batch), seed=config.seed)
        if batch == made:
            return ""
        fault = "it is not what its groups give"
    except StorageError as error:
        fault = str(error)
    move_damaged_aside(path)
    return f"{path} is made again from its groups: {fault}"


def _move_later_aside(store: RunStore, version: int) -> str:
    """Move a later version's batch aside, after a damaged policy was moved aside.

    In an asynchronous run it is made of other groups now.
    """
    path = store.batch_path(version)
    path.rename(path.with_name(f"{path.name}.outdated"))
    return f"{path} was made before its version's turn has come again: it is made again from its groups"


def move_damaged_aside(path: Path) -> None:
    """Rename a damaged file; its next reader makes it again."""
    path.rename(path.with_name(path.name + ".damaged"))


def copy_damaged(path: Path) -> None:
    """Copy a damaged file, if it exists, before it is replaced.

    So its own name is never missing, whenever the process is killed.
    """
    if path.exists():
        shutil.copyfile(path, path.with_name(path.name + ".damaged"))
