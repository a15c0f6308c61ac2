"""The layout of a run's folder: the path of each file, and the names that the paths are made of."""

from __future__ import annotations

import hashlib
from pathlib import Path

from envs.types import AnyPath


def phase_of(group_id: str) -> str:
    """Return the phase of a group: ``i000012`` of ``i000012-g0003``."""
    return group_id.split("-", 1)[0]


def group_of(episode_id: str) -> str:
    """Return the group of an episode: ``i000012-g0003`` of ``i000012-g0003-s02-a0``."""
    return episode_id.rsplit("-s", 1)[0]


def policy_name(version: int) -> str:
    """Return the folder name of a policy version, as ``v000012``."""
    return f"v{version:06d}"


def shard_of(episode_id: str) -> str:
    """Return two hex digits that spread the trajectories over 256 folders."""
    return hashlib.sha256(episode_id.encode()).hexdigest()[:2]


class RunPaths:
    """Paths of one run's folder. Only those that need no look at its files."""

    def __init__(self, run_dir: AnyPath) -> None:
        self.root = Path(run_dir)
        self.blobs_path = self.root / "blobs"
        self.config_path = self.root / "config.json"
        self.tasks_path = self.root / "tasks.jsonl"
        self.task_set_path = self.root / "tasks.json"
        """Size, fingerprint and folders of a task set that is too large to be copied."""
        self.task_files_path = self.root / "task_files"
        """Copies of the folders that tasks upload files from."""
        self.task_file_hashes_path = self.root / "task_files.json"
        """Hashes of the files in these folders."""
        self.trainer_path = self.root / "trainer"
        self.report_path = self.root / "report"
        self.result_path = self.root / "result.json"
        self.metrics_path = self.root / "metrics.jsonl"
        self.journal_path = self.root / "journal.sqlite"
        self.aliases_path = self.root / "aliases"
        self.blocklist_path = self.root / "blocklist"
        """Blocks by sites that workers saw."""

    def blob_path(self, sha256: str, kind: str) -> Path:
        """Path of a blob of one of `training.ledger.blobs.BLOB_KINDS`."""
        return self.blobs_path / sha256[:2] / sha256[2:4] / f"{sha256}.{kind}"

    def sampler_state_path(self, iteration: int) -> Path:
        """Sampler state before an iteration, made from the earlier groups; remade if missing."""
        return self.root / "starts" / f"i{iteration:06d}.json"

    def left_out_path(self, phase: str) -> Path:
        """Sites that were blocked when the groups of a phase were first drawn."""
        return self.root / "left_out" / f"{phase}.json"

    def live_path(self, worker: str) -> Path:
        """Present activity of a worker; not part of the run's record."""
        return self.root / "live" / f"{worker}.json"

    def policy_path(self, version: int) -> Path:
        return self.root / "policies" / policy_name(version)

    def alias_path(self, name: str) -> Path:
        """Version that has a name, such as ``best``."""
        return self.aliases_path / f"{name}.json"

    def batch_path(self, version: int) -> Path:
        return self.root / "batches" / f"{policy_name(version)}.json"

    def evaluation_path(self, version: int) -> Path:
        return self.root / "evaluations" / f"{policy_name(version)}.json"

    def group_path(self, group_id: str) -> Path:
        """Path of a group's record: ``i000012-g0003`` lies in ``groups/i000012/``."""
        return self.root / "groups" / phase_of(group_id) / f"{group_id}.json"

    def regraded_path(self, name: str, episode_id: str) -> Path:
        return self.root / "regraded" / name / shard_of(episode_id) / f"{episode_id}.json"

    def regrading_path(self, name: str) -> Path:
        """Log of a regrading's starts."""
        return self.root / "regraded" / name / "regrading.json"

    def rubric_path(self, digest: str) -> Path:
        return self.root / "rubrics" / f"{digest}.json"

    def spent_path(self, regrading: str = "") -> Path:
        """Database of what the run's judges, or those of one regrading, have spent."""
        return (self.root / "regraded" / regrading if regrading else self.root) / "judge_spent.sqlite"
