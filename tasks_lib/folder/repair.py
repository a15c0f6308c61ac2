"""Repairs damaged files when a training run is opened, or reports what is lost.

They are made again from other files.

A group's record is made again from its trajectories, and a batch from its groups. What nothing was trained on yet is rolled out or
made again. A batch that a version was trained on is only put back if it has the sha256 that the version's manifest names. Every file
that is replaced stays beside it, with ``.damaged`` at the end of its name.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from envs.types import StorageError, Trajectory
from tasks_lib.config import TrainConfig
from training.batches import TrainingBatch, build_batch
from training.config import AlgorithmConfig
from training.groups import EpisodeSummary, GroupRecord
from training.ledger.evidence import lost_evidence
from training.ledger.journal import groups_of_version, named_groups_of, read_batch, read_group
from training.ledger.seal import json_bytes
from training.ledger.states import EpisodeState
from training.ledger.store import (
    RunStore,
    atomic_write_bytes,
    group_of,
    move_aside_advice,
    phase_of,
    read_json,
    sha256_of,
    write_json,
)

Stored = Mapping[str, list[tuple[str, str]]]
"""(episode id, token) of the trajectories that are stored of each group, by group id."""


def repair_run(store: RunStore, config: TrainConfig) -> list[str]:
    """Make damaged records and batches of a training run again; a line for each, which says what was done.

    Raises:
        StorageError: one that a published version depends on cannot be made again; says what is lost.
    """
    stored, newest = stored_by_group(store), store.latest_policy() or 0
    decided = named_groups(store, newest)
    for version in range(1, newest + 1):
        decided |= {*groups_of_version(store, version)}
        decided |= _unrecorded(store, version, decided, stored)
    size, attempts = config.episodes_per_group, config.rollout.attempts
    said = [_repair_trained_group(store, config, group_id, stored) for group_id in sorted(decided)]
    said += [
        repair_group(store, group_id, stored, size=size, attempts=attempts)
        for group_id in store.group_ids("i*")
        if group_id not in decided
    ]
    said += [_repair_batch(store, config.batch_settings, version) for version in store.versions() if version > 0]
    pending = sorted(int(path.stem[1:]) for path in store.batch_path(0).parent.glob(f"v{'[0-9]' * 6}.json"))
    said += [_move_later_aside(store, version) for version in pending if version > newest + 1]
    said += [_check_pending_batch(store, config.batch_settings, version) for version in pending if version > newest]
    check_trajectories(store, newest, stored)
    check_evaluations(store)
    return [line for line in said if line]


def check_evaluations(store: RunStore) -> None:
    """``StorageError`` if an evaluation was changed or damaged after it was written."""
    for path in sorted(store.evaluation_path(0).parent.glob("*.json")):
        read_json(path, recount_advice(path))


def recount_advice(path: Path) -> str:
    """What to do about a damaged evaluation."""
    return (
        f"{move_aside_advice(path)} and start the same command again: the episodes that were played are counted again"
    )


def check_trajectories(store: RunStore, newest: int, stored: Stored) -> None:
    """``StorageError`` if a trajectory of a published iteration is missing or cut off, or its record does not list it; names the first.

    Only whether a file is there and ends as it should is looked at; ``python -m flows.doctor`` reads all of it. Of the iteration under
    way, what is damaged is left out of its batch.
    """
    faults = [
        fault
        for version in range(1, newest + 1)
        for group_id in sorted(groups_of_version(store, version))
        for fault in missing_trajectories(store, read_group(store, group_id), stored)
    ]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise StorageError(f"{faults[0]}{more}: the ledger does not agree with the files. {REMEDY}")


def missing_trajectories(store: RunStore, record: GroupRecord, stored: Stored) -> list[str]:
    """What is wrong between a record and the files of its trajectories, without reading them whole; each line names the episode."""
    listed = {episode.episode_id for episode in record.episodes}
    faults = [
        f"group {record.group_id} does not list episode {episode_id}, which its attempt has stored"
        for episode_id, token in stored.get(record.group_id, ())
        # Older runs have no token: there another attempt, which was killed, may have left it.
        if token and token == record.token and episode_id not in listed
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
    """Whether a file begins and ends as a JSON object does."""
    with open(path, "rb") as file:
        if file.read(1) != b"{":
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"}"


def rebuilt_record(store: RunStore, group_id: str, stored: Stored, *, size: int, attempts: int) -> GroupRecord:
    """A group's record as its trajectories give it.

    Args:
        stored: What is stored of it.
        size: Episodes that the group was asked for.
        attempts: Times that each was tried at most.

    Raises:
        StorageError: not exactly one attempt has stored all of its episodes; says which are missing.
    """
    by_token: defaultdict[str, list[tuple[Trajectory, str]]] = defaultdict(list)
    faults: list[str] = []
    for episode_id, token in sorted(stored.get(group_id, ())):
        try:
            by_token[token].append(store.attempt_trajectory(episode_id, token))
        except StorageError as error:
            faults.append(str(error))
    whole = {token: found for token, found in by_token.items() if not _unfinished(found, size, attempts)}
    if len(whole) != 1:
        best = max(by_token.values(), key=len, default=[])
        missing = ", ".join(f"{group_id}-s{sample:02d}" for sample in _unfinished(best, size, attempts))
        why = (
            f"{len(whole)} attempts have stored all of it"
            if whole
            else f"of its {size} episodes {missing} are not whole"
        )
        raise StorageError(
            f"the record of group {group_id} cannot be made again from its trajectories: {'; '.join([why, *faults])}"
        )
    ((token, found),) = whole.items()
    first = found[0][0]
    return GroupRecord(
        group_id=group_id,
        token=token,
        task_id=first.task_id,
        kind=first.kind,
        policy_version=first.policy_version,
        episodes=tuple(EpisodeSummary.of(trajectory, sha256) for trajectory, sha256 in found),
    )


def batch_of(
    store: RunStore, version: int, settings: AlgorithmConfig, damaged: Mapping[str, str] = MappingProxyType({})
) -> TrainingBatch:
    """The batch that the groups of a version give; ``StorageError`` if a record cannot be read."""
    groups = _groups_of(store, version)
    named = named_groups_of(store, version)
    return build_batch(version, groups, settings, damaged, earlier_groups(store, version, settings), named)


def earlier_groups(store: RunStore, version: int, settings: AlgorithmConfig) -> list[tuple[EpisodeSummary, ...]]:
    """The groups of the versions before that the batch of ``version`` trains on again, oldest first."""
    first = max(0, version - settings.replay_iterations)
    return [group for earlier in range(first + 1, version) for group in _groups_of(store, earlier)]


def _groups_of(store: RunStore, version: int) -> list[tuple[EpisodeSummary, ...]]:
    return [read_group(store, group_id).episodes for group_id in groups_of_version(store, version)]


def _unfinished(found: list[tuple[Trajectory, str]], size: int, attempts: int) -> list[int]:
    """Samples of a group that are missing, or whose last attempt is."""
    by_sample: defaultdict[int, list[Trajectory]] = defaultdict(list)
    for trajectory, _ in found:
        by_sample[trajectory.sample].append(trajectory)
    return [sample for sample in range(size) if not _finished(by_sample[sample], attempts)]


def _finished(tries: list[Trajectory], attempts: int) -> bool:
    """Whether these are all attempts at an episode (`EpisodeRunner.run`)."""
    tries = sorted(tries, key=lambda each: each.attempt)
    if not tries or [each.attempt for each in tries] != list(range(len(tries))):
        return False
    return tries[-1].is_last_attempt or len(tries) >= attempts


def named_groups(store: RunStore, newest: int) -> set[str]:
    """Groups that batches of published versions name."""
    named: set[str] = set()
    for version in range(1, newest + 1):
        try:
            batch = read_batch(store, version)
        except StorageError:
            continue  # `_repair_batch` says so
        named |= {group_of(row.episode_id) for row in batch.rows}
        named |= {group_of(episode_id) for episode_id in batch.left_out or ()}
    return named


def _unrecorded(store: RunStore, version: int, known: Collection[str], stored: Stored) -> set[str]:
    """Groups that a published version was made of and that neither a record nor its batch names: all of their episodes abstained.

    Raises:
        StorageError: not even trajectories are left of one.
    """
    if named_groups_of(store, version) is not None:
        return set()
    try:
        groups = read_batch(store, version).groups
    except StorageError:  # `_repair_batch` says so; the manifest has the number too
        groups = int(store.manifest(version).get("metrics", {}).get("groups", 0))
    named = {group_id for group_id in known if _iteration(group_id) == version - 1}
    if groups <= len(named):
        return set()
    found = {group_id for group_id in stored if group_id.startswith(f"i{version - 1:06d}")} - named
    if len(named) + len(found) < groups:
        raise StorageError(
            f"version {version} was made of {groups} groups, and of {groups - len(named) - len(found)} there is neither a record "
            f"nor a trajectory. {REMEDY}"
        )
    return found


def repair_group(store: RunStore, group_id: str, stored: Stored | None, *, size: int, attempts: int) -> str:
    """See to the record of a group that nothing depends on yet, before it is rolled out; what was done, empty if nothing had to be.

    A record that cannot be read is made again from its trajectories; if they are not whole, the group is played again.

    Args:
        stored: As in `rebuilt_record`; ``None``: it is looked up if it is needed.
        size: As in `rebuilt_record`.
        attempts: As in `rebuilt_record`.
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
    """What is stored of each group."""
    stored: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for episode_id, token in store.stored_trajectories():
        stored[group_of(episode_id)].append((episode_id, token))
    return stored


def _repair_trained_group(store: RunStore, config: TrainConfig, group_id: str, stored: Stored) -> str:
    """As `repair_group`, of a group that a published version was trained on or that its batch names."""
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
"""What can be done when what a version was trained on is lost."""


def _repair_batch(store: RunStore, settings: AlgorithmConfig, version: int) -> str:
    """See that the batch of a published version is the one that it was trained on."""
    path, wanted = store.batch_path(version), store.manifest(version).get("batch")
    try:
        read_batch(store, version)
        if wanted in (None, sha256_of(path)):
            return ""
        fault = f"{path} is not the batch that version {version} was trained on (sha256)"
    except StorageError as error:
        fault = str(error)
    for data in _forms(store, version, settings):
        if sha256_of(data) == wanted:
            copy_damaged(path)
            atomic_write_bytes(path, data)
            return f"{fault}: made again from its groups, as its manifest says"
    raise StorageError(f"{fault}, and its groups give another one than version {version} was trained on. {REMEDY}")


def _iteration(group_id: str) -> int:
    return int(phase_of(group_id)[1:])


def _check_pending_batch(store: RunStore, settings: AlgorithmConfig, version: int) -> str:
    """Put a batch that nothing was trained on aside if it is not what its groups give: it is made again from them."""
    path = store.batch_path(version)
    if not path.exists():
        return ""
    try:
        found = read_batch(store, version)
        made = batch_of(store, version, settings, damaged_in(found))
        if found in (made, made.model_copy(update={"left_out": None})):  # as older code wrote it
            return ""
        fault = f"{path} is not what its groups give"
    except StorageError as error:
        fault = str(error)
    move_damaged_aside(path)
    return f"{fault}: it is made again from its groups"


def _move_later_aside(store: RunStore, version: int) -> str:
    """Of an asynchronous run: where a damaged policy was moved aside, batches of later versions are made of other groups now."""
    path = store.batch_path(version)
    if named_groups_of(store, version) is None:
        return ""
    path.rename(path.with_name(f"{path.name}.outdated"))
    return f"{path} was made before its version's turn has come again: it is made again from its groups"


def _forms(store: RunStore, version: int, settings: AlgorithmConfig) -> Iterator[bytes]:
    """The files that a batch may have had: with all episodes, without those that are damaged, and as older code wrote it."""
    batch = batch_of(store, version, settings)
    yield json_bytes(batch)
    newer = {"group_ids", "versions"} if batch.group_ids is None else set()
    yield json_bytes(batch.model_dump(mode="json", exclude=newer))
    newer |= {"replayed", "damaged_earlier"}
    yield json_bytes(batch.model_dump(mode="json", exclude=newer))
    yield json_bytes(batch.model_dump(mode="json", exclude={"left_out", *newer}))
    without_lost = batch_of(store, version, settings, lost_evidence(store, batch))
    yield json_bytes(without_lost)
    if batch.group_ids is None:
        yield json_bytes(without_lost.model_dump(mode="json", exclude={"group_ids", "versions"}))


def damaged_in(batch: TrainingBatch) -> dict[str, str]:
    """The episodes that a batch was made without because they are damaged, and what is."""
    left_out = (batch.left_out or {}).items()
    own = {episode_id: each.reason for episode_id, each in left_out if each.state is EpisodeState.DAMAGED}
    return own | batch.damaged_earlier


def move_damaged_aside(path: Path) -> None:
    """Rename a damaged file that is made again later, by whoever misses it."""
    path.rename(path.with_name(path.name + ".damaged"))


def copy_damaged(path: Path) -> None:
    """Copy a damaged file, if it is there, before it is replaced: so its own name is never missing, whenever the process is killed."""
    if path.exists():
        shutil.copyfile(path, path.with_name(path.name + ".damaged"))
