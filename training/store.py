"""The folder of a run: where each artefact lies, and how it gets there whole.

Every file is written under a temporary name in its own folder and renamed, so that whatever is found under its final name is whole.
Blobs are named by the sha256 of their bytes, end in what they are, and are checked when read. See docs/architecture.md for the layout and the rules.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from envs.types import Rubric, StorageError, Trajectory, rubric_hash
from envs.types.paths import AnyPath

BLOB_KINDS = ("jpg", "json", "png", "webp", "bin")
"""Endings of blobs, the most frequent first, which is how they are looked for. ``jpg`` has to stay the first: it is what every blob of an
older run ends in, whatever it is."""

MANIFEST = "manifest.json"
"""Written last into a policy's folder; without it the policy does not exist."""


def atomic_write_bytes(path: AnyPath, data: bytes, *, sync: bool = True) -> None:
    """Write ``data`` so that ``path`` is either absent (or as before) or holds all of it.

    ``sync=False`` leaves out the fsync: for content that is checked when read, whose loss in a power cut is noticed and repaired.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: AnyPath, value: Any) -> None:
    """Atomically write a JSON document (plain values, or anything with ``model_dump``)."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    atomic_write_bytes(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))


def read_json(path: AnyPath) -> Any:
    """Read a JSON document; ``StorageError`` names the file when it is missing or torn."""
    try:
        return orjson.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist") from error
    except orjson.JSONDecodeError as error:
        raise StorageError(f"{path} is not valid JSON ({error}); delete it and start the run again") from error


def phase_of(group_id: str) -> str:
    """``i000012-g0003`` is of ``i000012``."""
    return group_id.split("-", 1)[0]


def policy_name(version: int) -> str:
    """Folder name of a policy version, e.g. ``v000012``."""
    return f"v{version:06d}"


class RunStore:
    """Paths, reads and writes of one run's folder. Holds no state, so any process may make its own."""

    def __init__(self, run_dir: AnyPath) -> None:
        self.root = Path(run_dir)

    # -- paths

    @property
    def config_path(self) -> Path:
        return self.root / "config.json"

    @property
    def tasks_path(self) -> Path:
        return self.root / "tasks.jsonl"

    @property
    def task_set_path(self) -> Path:
        """What the files of a set held that is too large to be copied."""
        return self.root / "tasks.json"

    @property
    def task_files_path(self) -> Path:
        """Copies of the folders that tasks upload files from."""
        return self.root / "task_files"

    @property
    def task_file_hashes_path(self) -> Path:
        """What each of those folders held."""
        return self.root / "task_files.json"

    def start_path(self, iteration: int) -> Path:
        """What the draws of an iteration begin from; made from the groups before it, and made again when it is not there."""
        return self.root / "starts" / f"i{iteration:06d}.json"

    @property
    def trainer_path(self) -> Path:
        return self.root / "trainer"

    @property
    def report_path(self) -> Path:
        return self.root / "report"

    @property
    def result_path(self) -> Path:
        return self.root / "result.json"

    @property
    def metrics_path(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def journal_path(self) -> Path:
        return self.root / "journal.sqlite"

    @property
    def blocklist_path(self) -> Path:
        """Walls that workers saw."""
        return self.root / "blocklist"

    def left_out_path(self, phase: str) -> Path:
        """Sites that were blocked when the groups of a phase were first drawn."""
        return self.root / "left_out" / f"{phase}.json"

    def live_path(self, worker: str) -> Path:
        """What a worker is doing now; no part of the run."""
        return self.root / "live" / f"{worker}.json"

    def policy_path(self, version: int) -> Path:
        return self.root / "policies" / policy_name(version)

    def batch_path(self, version: int) -> Path:
        return self.root / "batches" / f"{policy_name(version)}.json"

    def evaluation_path(self, version: int) -> Path:
        return self.root / "evaluations" / f"{policy_name(version)}.json"

    def group_path(self, group_id: str) -> Path:
        """``i000012-g0003`` lies in ``groups/i000012/``."""
        return self.root / "groups" / phase_of(group_id) / f"{group_id}.json"

    def trajectory_path(self, episode_id: str) -> Path:
        return self.root / "trajectories" / _shard(episode_id) / f"{episode_id}.json"

    def regraded_path(self, name: str, episode_id: str) -> Path:
        return self.root / "regraded" / name / _shard(episode_id) / f"{episode_id}.json"

    def regrading_path(self, name: str) -> Path:
        """When and with what a regrading was started."""
        return self.root / "regraded" / name / "regrading.json"

    def rubric_path(self, digest: str) -> Path:
        return self.root / "rubrics" / f"{digest}.json"

    def spent_path(self, regrading: str = "") -> Path:
        """What the run's judges have spent together, or those of one regrading."""
        return (self.root / "regraded" / regrading if regrading else self.root) / "judge_spent.json"

    def blob_path(self, sha256: str) -> Path:
        """Where a blob lies; where it would as a picture, if there is none of that name."""
        paths = [self._blob_path(sha256, kind) for kind in BLOB_KINDS]
        return next((path for path in paths if path.exists()), paths[0])

    def _blob_path(self, sha256: str, kind: str) -> Path:
        return self.root / "blobs" / sha256[:2] / f"{sha256}.{kind}"

    # -- blobs

    def put_blob(self, data: bytes) -> str:
        """Store bytes once under their sha256 and return it. The file's ending says what they are (`blob_kind`)."""
        sha256 = hashlib.sha256(data).hexdigest()
        path, older = (self._blob_path(sha256, kind) for kind in (blob_kind(data), BLOB_KINDS[0]))
        if not path.exists() and not older.exists():
            atomic_write_bytes(path, data, sync=False)
        return sha256

    def blob(self, sha256: str) -> bytes:
        """The bytes of a blob; ``StorageError`` when it is missing or torn."""
        path = self.blob_path(sha256)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise StorageError(f"blob {sha256} is missing from {self.root / 'blobs'}") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StorageError(f"blob {path} does not hold what its name says; delete it")
        return data

    # -- rubrics

    def put_rubric(self, rubric: Rubric) -> None:
        """Keep what episodes are graded by, once, under its hash: their rewards name it, and the set of tasks may lie elsewhere."""
        path = self.rubric_path(rubric_hash(rubric))
        if not path.exists():
            write_json(path, rubric)

    def rubric(self, digest: str) -> Rubric | None:
        """The rubric of that hash; ``None`` where none was kept (older runs). ``StorageError`` when it is torn, or another one."""
        path = self.rubric_path(digest)
        if not path.exists():
            return None
        try:
            rubric = Rubric.model_validate(read_json(path))
        except ValidationError as error:
            raise StorageError(f"rubric {path} cannot be read: {error}") from error
        if rubric_hash(rubric) != digest:
            raise StorageError(f"rubric {path} is not the one that its name says; delete it")
        return rubric

    # -- trajectories

    def put_trajectory(self, trajectory: Trajectory) -> None:
        data = orjson.dumps(trajectory.model_dump(mode="json"))
        atomic_write_bytes(self.trajectory_path(trajectory.episode_id), data)

    def trajectory(self, episode_id: str) -> Trajectory:
        """The stored episode; ``StorageError`` when missing, torn or of another schema."""
        path = self.trajectory_path(episode_id)
        try:
            return Trajectory.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise StorageError(f"trajectory {episode_id} does not exist ({path})") from error
        except ValidationError as error:
            raise StorageError(f"trajectory {path} cannot be read: {error}") from error

    def episode_ids(self) -> Iterator[str]:
        """All stored episodes, in no particular order."""
        for path in (self.root / "trajectories").glob("*/*.json"):
            yield path.stem

    # -- groups

    def group_ids(self, phase: str | None = None) -> list[str]:
        """Ids of all committed groups (of one phase such as ``i000012``), sorted."""
        return sorted(path.stem for path in (self.root / "groups").glob(f"{phase or '*'}/*.json"))

    # -- policies

    def versions(self) -> list[int]:
        """Published policy versions (those with a manifest), ascending."""
        found = (re.fullmatch(r"v(\d{6})", path.parent.name) for path in (self.root / "policies").glob(f"*/{MANIFEST}"))
        return sorted(int(match[1]) for match in found if match)

    def latest_policy(self) -> int | None:
        """Highest published version, or ``None`` before the first."""
        return max(self.versions(), default=None)

    def manifest(self, version: int) -> dict[str, Any]:
        """The manifest of a published version."""
        manifest: dict[str, Any] = read_json(self.policy_path(version) / MANIFEST)
        return manifest

    def publish_policy(self, version: int, source: AnyPath, details: dict[str, Any]) -> None:
        """Copy a checkpoint folder in as ``version``, manifest last. A version that is already there is left alone."""
        target, source = self.policy_path(version), Path(source)
        if (target / MANIFEST).exists():
            return
        if not (source / "config.json").exists():
            raise StorageError(f"{source} is no Hugging Face checkpoint folder: it has no config.json")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(MANIFEST))
        write_json(target / MANIFEST, {"version": version, "files": file_hashes(target), **details})


def blob_kind(data: bytes) -> str:
    """The ending of a blob's file, by its first bytes: a picture's, ``json`` for an object or a list, ``bin`` for anything else.

    >>> blob_kind(b'{"state": "passed"}')
    'json'
    """
    if data.startswith(b"\xff\xd8\xff"):
        return "jpg"
    if data.startswith(b"\x89PNG\r\n"):
        return "png"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    return "json" if data[:1] in (b"{", b"[") else "bin"


def file_hashes(folder: AnyPath) -> dict[str, dict[str, Any]]:
    """``{name: {size, sha256}}`` of a checkpoint's files, the manifest left out."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def _shard(episode_id: str) -> str:
    """Two hex digits that spread the trajectories over 256 folders."""
    return hashlib.sha256(episode_id.encode()).hexdigest()[:2]
