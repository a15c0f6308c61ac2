"""The folder of a run: atomic writes, and reads that check what they read.

Every file is written under a temporary name in its own folder and renamed, so that a file under its
final name is whole. Several workers may play the same group at once (Dask runs a lost worker's task
again while that worker still lives). So each attempt at a group writes trajectories under names of
its own, with the attempt's token, and the first one to make the group's record wins. Blobs are
named by the sha256 of their bytes, with an ending for their kind, and are checked when read. See
docs/architecture.md for the rules, and `training.ledger.paths` for the layout.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from envs.types import AnyPath, Rubric, StorageError, Trajectory, rubric_hash
from training.ledger.blobs import BLOB_KINDS, blob_kind
from training.ledger.checkpoint_files import MANIFEST, check_checkpoint_files, check_files, file_hashes, read_manifest
from training.ledger.disk import folder_bytes, open_new_file, raise_disk_errors, temporary_name
from training.ledger.paths import RunPaths, group_of, shard_of
from training.ledger.seal import describe_first_error, json_bytes, unsealed

M = TypeVar("M", bound=BaseModel)


@contextmanager
def _temporary_file(path: Path, data: bytes, *, sync: bool = True) -> Iterator[Path]:
    """Write ``data`` under a temporary name beside ``path``, which the block renames or links."""
    temporary = temporary_name(path)
    with raise_disk_errors(path, needed=len(data)):
        try:
            with open_new_file(temporary) as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            yield temporary
        except BaseException:
            with suppress(OSError):  # what stopped the write is the error to report
                temporary.unlink(missing_ok=True)
            raise


def atomic_write_bytes(path: AnyPath, data: bytes, *, sync: bool = True) -> None:
    """Write ``data`` atomically: ``path`` holds all of it, or stays as it was.

    ``sync=False`` leaves out the fsync: for content that is checked when read, whose loss in a
    power cut is noticed and repaired.

    Raises:
        DiskError: The disk is full, over its quota, read-only, failing or refused; no file is left.
    """
    path = Path(path)
    with _temporary_file(path, data, sync=sync) as temporary:
        os.replace(temporary, path)


def write_json(path: AnyPath, value: Any, *, sealed: bool = False) -> None:
    """Write a JSON document atomically; the value and ``sealed`` as in `json_bytes`."""
    atomic_write_bytes(path, json_bytes(value, sealed=sealed))


def write_json_once(path: AnyPath, value: Any, *, sealed: bool = False) -> bool:
    """Write a JSON document unless the path exists; True for the one writer that wins.

    Raises:
        StorageError: The file system has no hard links, so two writers cannot be distinguished.
    """
    path = Path(path)
    with _temporary_file(path, json_bytes(value, sealed=sealed)) as temporary:
        is_first = _link(temporary, path)
        temporary.unlink()
    return is_first


def _link(temporary: Path, path: Path) -> bool:
    """Give a complete file its final name; return True if this call did."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network file system may send the call twice and report the second: the link is ours.
        return os.path.samefile(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise StorageError(
            f"{path.parent} is on a file system without hard links ({error.strerror}); put the run on one that has them (root=FOLDER)"
        ) from error
    return True


BACKUP = "put back a copy of it from a backup"
"""Advice for a damaged file that cannot be made again."""


def move_aside_advice(path: AnyPath) -> str:
    """Return the advice for a damaged file that is made again or not needed."""
    return f"move it to {Path(path).name}.damaged"


def read_json(path: AnyPath, remedy: str = BACKUP) -> Any:
    """Read a JSON document, sealed or not; ``StorageError`` names a missing or damaged file."""
    try:
        return unsealed(Path(path), orjson.loads(Path(path).read_bytes()), remedy)
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist") from error
    except orjson.JSONDecodeError as error:
        raise StorageError(f"{path} is damaged: not valid JSON ({error}); {remedy}") from error


def read_record(path: AnyPath, model: type[M], what: str, remedy: str = BACKUP) -> M:
    """Read a JSON document as a record.

    Raises:
        StorageError: It is missing, damaged or no ``what``; names the file and its first fault.
    """
    try:
        return model.model_validate(read_json(path, remedy))
    except ValidationError as error:
        raise StorageError(f"{path} is no {what}: {describe_first_error(error)}; {remedy}") from error


class RunStore(RunPaths):
    """Reads and writes of one run's folder; stateless."""

    # -- blobs

    def put_blob(self, data: bytes) -> str:
        """Store bytes once under their sha256 and return it."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.blob_path(sha256, blob_kind(data))
        # A blob of another size was torn by a power cut, or damaged since: it is written again.
        with suppress(FileNotFoundError):
            if path.stat().st_size == len(data):
                return sha256
        atomic_write_bytes(path, data, sync=False)
        return sha256

    def blob(self, sha256: str) -> bytes:
        """Return the bytes of a blob; ``StorageError`` if it is missing or torn."""
        for kind in BLOB_KINDS:
            with suppress(FileNotFoundError):
                data = (path := self.blob_path(sha256, kind)).read_bytes()
                break
        else:
            raise StorageError(f"blob {sha256} is missing from {self.blobs_path}")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StorageError(f"blob {path} does not hold what its name says")
        return data

    # -- rubrics

    def put_rubric(self, rubric: Rubric) -> None:
        """Store a rubric once under the hash that rewards name; task files may move."""
        if not (path := self.rubric_path(rubric_hash(rubric))).exists():
            write_json(path, rubric)

    def rubric(self, digest: str) -> Rubric:
        """Return the rubric of a hash; ``StorageError`` if it is missing or damaged."""
        rubric = read_record(path := self.rubric_path(digest), Rubric, "rubric")
        if rubric_hash(rubric) != digest:
            raise StorageError(f"rubric {path} is not the one that its name says; {BACKUP}")
        return rubric

    # -- trajectories

    def trajectory_path(self, episode_id: str, token: str | None = None) -> Path:
        """Path of an episode's trajectory.

        Args:
            token: Token of the attempt that played it, empty for a copy; ``None``: the record's.

        Raises:
            StorageError: ``token`` is ``None``, and the group's record cannot be read, or is
                missing while several attempts have stored the episode.
        """
        if token is None:
            token, _ = self._committed_file(episode_id)
        name = f"{episode_id}.{token}" if token else episode_id
        return self.root / "trajectories" / shard_of(episode_id) / f"{name}.json"

    def put_trajectory(self, trajectory: Trajectory, token: str = "") -> str:
        """Store an episode of one attempt at its group; return the sha256 of its file."""
        data = orjson.dumps(trajectory.model_dump(mode="json"))
        atomic_write_bytes(self.trajectory_path(trajectory.episode_id, token), data)
        return hashlib.sha256(data).hexdigest()

    def trajectory(self, episode_id: str) -> Trajectory:
        """Return the stored episode that its group's record names, or else the only one.

        Raises:
            StorageError: The trajectory is missing, torn, of another schema, another episode, or
                not the one that the record was made of.
        """
        token, sha256 = self._committed_file(episode_id)
        trajectory, digest = self.attempt_trajectory(episode_id, token)
        self._check_recorded(episode_id, token, sha256, digest)
        return trajectory

    def trajectory_document(self, episode_id: str) -> dict[str, Any]:
        """Return `trajectory` as a JSON document without checks of its fields."""
        token, sha256 = self._committed_file(episode_id)
        data = self._trajectory_bytes(episode_id, token)
        try:
            document: dict[str, Any] = orjson.loads(data)
        except ValueError as error:
            raise StorageError(
                f"trajectory {self.trajectory_path(episode_id, token)} cannot be read: {error}"
            ) from error
        self._check_recorded(episode_id, token, sha256, hashlib.sha256(data).hexdigest())
        return document

    def attempt_trajectory(self, episode_id: str, token: str) -> tuple[Trajectory, str]:
        """Return the episode that attempt ``token`` stored, and its sha256; see `trajectory`."""
        path, data = self.trajectory_path(episode_id, token), self._trajectory_bytes(episode_id, token)
        try:
            trajectory = Trajectory.model_validate_json(data)
        except ValidationError as error:
            raise StorageError(f"trajectory {path} cannot be read: {describe_first_error(error)}") from error
        if trajectory.episode_id != episode_id:
            raise StorageError(f"trajectory {path} holds episode {trajectory.episode_id}, not the one of its name")
        return trajectory, hashlib.sha256(data).hexdigest()

    def _trajectory_bytes(self, episode_id: str, token: str) -> bytes:
        path = self.trajectory_path(episode_id, token)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise StorageError(f"trajectory {episode_id} does not exist ({path})") from error

    def _check_recorded(self, episode_id: str, token: str, recorded: str, digest: str) -> None:
        if recorded not in ("", digest):
            path = self.trajectory_path(episode_id, token)
            raise StorageError(f"trajectory {path} is not the one that its group's record was made of (sha256)")

    def stored_trajectories(self) -> Iterator[tuple[str, str]]:
        """Yield (episode id, token) of every stored trajectory, also of attempts that lost."""
        for shard in os.listdir(folder) if (folder := self.root / "trajectories").is_dir() else ():
            for name in os.listdir(folder / shard):
                if name.endswith(".json") and not name.startswith("."):
                    episode_id, _, token = name.removesuffix(".json").partition(".")
                    yield episode_id, token

    def orphans(self) -> list[tuple[str, str]]:
        """Return (episode id, token) of trajectories that their group's record does not name.

        Attempts that lost or died left them; they count for nothing. Where a group's record is
        missing or damaged, none of its trajectories is taken for an orphan.
        """
        orphans, named = [], dict[str, set[tuple[str, str]] | None]()
        for episode_id, token in sorted(self.stored_trajectories()):
            group_id = group_of(episode_id)
            if group_id not in named:
                named[group_id] = self._named_in_record(group_id)
            kept = named[group_id]
            if kept is not None and (episode_id, token) not in kept:
                orphans.append((episode_id, token))
        return orphans

    def episode_ids(self) -> Iterator[str]:
        """Yield the ids of all stored episodes but `orphans`, once each, in no particular order."""
        yield from {episode_id for episode_id, _ in {*self.stored_trajectories()} - {*self.orphans()}}

    def _named_in_record(self, group_id: str) -> set[tuple[str, str]] | None:
        try:
            record = self._record(group_id)
        except StorageError:
            return None
        return None if record is None else {(episode_id, record[0]) for episode_id in record[1]}

    def _committed_file(self, episode_id: str) -> tuple[str, str]:
        """Return token and sha256 of the trajectory that counts; the sha256 is empty if unknown."""
        group_id = group_of(episode_id)
        if (record := self._record(group_id)) is not None:
            token, hashes = record
            return token, hashes.get(episode_id, "")
        folder = self.root / "trajectories" / shard_of(episode_id)
        names = {path.name for path in folder.glob(f"{glob.escape(episode_id)}.*json")}
        if len(names) > 1:
            raise StorageError(
                f"{len(names)} attempts have stored {episode_id} and group {group_id} has no record that says which one counts"
            )
        token = "".join(names).removeprefix(episode_id).removesuffix("json").strip(".")
        return token, ""

    def _record(self, group_id: str) -> tuple[str, dict[str, str]] | None:
        """Return a record's token and its episodes' sha256; ``None`` without a record.

        Only these keys are read; `training.ledger.journal.read_group` reads the whole record.
        """
        path = self.group_path(group_id)
        if not path.exists():
            return None
        record = read_json(path)
        try:
            return record["token"], {episode["episode_id"]: episode["sha256"] for episode in record["episodes"]}
        except (KeyError, TypeError) as error:
            raise StorageError(f"{path} is no group record ({error!r}); {BACKUP}") from error

    # -- groups

    def group_ids(self, phase: str | None = None) -> list[str]:
        """Return the ids of all committed groups (of one phase such as ``i000012``), sorted."""
        return sorted(path.stem for path in (self.root / "groups").glob(f"{phase or '*'}/*.json"))

    # -- policies

    def versions(self) -> list[int]:
        """Return the published policy versions (those with a manifest), ascending."""
        manifests = (self.root / "policies").glob(f"*/{MANIFEST}")
        matches = (re.fullmatch(r"v(\d{6})", path.parent.name) for path in manifests)
        return sorted(int(match[1]) for match in matches if match)

    def latest_policy(self) -> int | None:
        """Return the highest published version, or ``None``. The folder is listed once."""
        names = os.listdir(folder) if (folder := self.root / "policies").is_dir() else []
        numbers = (int(match[1]) for name in names if (match := re.fullmatch(r"v(\d{6})", name)))
        return next((number for number in sorted(numbers, reverse=True) if self.is_published(number)), None)

    def is_published(self, version: int) -> bool:
        """Return True if a version has its manifest."""
        return (self.policy_path(version) / MANIFEST).exists()

    def manifest(self, version: int) -> dict[str, Any]:
        """Read a published version's manifest; ``StorageError`` says how to repair it."""
        with self._name_damage(version):
            manifest = read_manifest(self.policy_path(version))
            if manifest.get("version") != version:
                raise StorageError(f"{self.policy_path(version) / MANIFEST} is of version {manifest.get('version')}")
        return manifest

    def check_policy(self, version: int) -> None:
        """Check a published version's files against its manifest (hashed once per process).

        Raises:
            StorageError: The manifest or a file is damaged or missing; names it and says how to go
                on.
            RemovedError: Retention has removed its weights.
        """
        manifest = self.manifest(version)
        with self._name_damage(version):
            check_files(self.policy_path(version), manifest["files"], MANIFEST)

    @contextmanager
    def _name_damage(self, version: int) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            if type(error) is not StorageError:
                raise  # a ReadError or RemovedError: no file is damaged
            raise StorageError(f"policy v{version} is damaged: {error}; {self._damage_advice(version)}") from error

    def _damage_advice(self, version: int) -> str:
        """Return the advice for a damaged version, whose folder is only moved."""
        folder = self.policy_path(version)
        aside = f"to go on, move {folder} to {self.root / 'damaged' / folder.name} and start the same command again: "
        if self.versions() == [version]:  # of a longer run the checkpoint may have changed since
            return aside + "it is copied again from the checkpoint that the run was started with"
        before = self.policy_path(version - 1) / MANIFEST
        if version == self.latest_policy() and before.exists() and self.batch_path(version).exists():
            return aside + f"v{version} is made again from v{version - 1} and {self.batch_path(version)}"
        return BACKUP

    def publish_policy(self, version: int, source: AnyPath, details: dict[str, Any]) -> None:
        """Copy a checkpoint folder in as ``version``, manifest last, unless it exists already.

        Raises:
            StorageError: ``source`` is no checkpoint, or its files are damaged.
            DiskError: There is no room for the copy, or it may not be written.
        """
        target, source = self.policy_path(version), Path(source)
        if (target / MANIFEST).exists():
            return
        if not (source / "config.json").exists():
            raise StorageError(f"{source} is no Hugging Face checkpoint folder: it has no config.json")
        check_checkpoint_files(source)
        with raise_disk_errors(target, needed=folder_bytes(source)):
            try:
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(MANIFEST))
                files = file_hashes(target)
                if files != file_hashes(source):
                    raise StorageError(
                        f"{source} changed while it was copied to {target}; start the same command again"
                    )
                write_json(target / MANIFEST, {"version": version, "files": files, **details}, sealed=True)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
