"""Checks a run's folder: every reference between files, and every hash.

The checks only read, and may run while the run goes on.

They follow records to trajectories and blobs, batches to groups, and manifests to checkpoint files.
They rebuild the ledger in memory and compare it with ``journal.sqlite``, the metrics and the
result. Opening a run makes the cheap ones of these checks itself (`tasks_lib.folder.repair`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from envs.types import ConfigError, StorageError, Trajectory
from tasks_lib.config import TrainConfig
from tasks_lib.folder.batches import batch_of, damaged_in
from tasks_lib.folder.frozen_config import COPY as CONFIG_COPY
from tasks_lib.folder.metrics_lines import IterationMetrics, parse_line
from tasks_lib.folder.regraded import read_log, read_regraded
from tasks_lib.folder.repair import (
    REMEDY,
    Stored,
    missing_trajectories,
    rebuilt_record,
    recount_advice,
    stored_by_group,
)
from tasks_lib.folder.task_sets import check_frozen_tasks
from tasks_lib.folder.values import KINDS
from tasks_lib.preflight.findings import Finding
from tasks_lib.rollouts.sampling import SamplerState
from training.ledger.aliases import read_aliases
from training.ledger.checkpoint_files import MANIFEST, REMOVED, added_files
from training.ledger.evidence import blobs_of
from training.ledger.journal import Journal, groups_of_version, published_batch, read_batch, read_group
from training.ledger.paths import policy_name
from training.ledger.seal import describe_first_error, sha256_of
from training.ledger.store import RunStore, move_aside_advice, read_json
from training.records.groups import EpisodeSummary, GroupRecord
from training.trainer.resume import check_state

OPEN_AGAIN = "start the run again: opening it makes this again from its other files"
LEAVE = "nothing: it counts for nothing"
COPY = "put the file back from a copy of the run"

SUMMARY = ("seed", "sample", "score", "passed", "steps", "response_tokens", "stop_reason", "abstained")
"""Fields of an episode in a group's record that its trajectory has too."""


def examine(run_dir: Path) -> list[Finding]:
    """Return everything that is wrong in a run's folder, with advice.

    Raises:
        ConfigError: the folder does not exist, or is no folder of a run.
    """
    store = RunStore(run_dir)
    if not store.root.is_dir():
        raise ConfigError(
            f"--run: there is no folder {store.root}; runs are in runs/, or in the root that they were given"
        )
    if not any((store.root / name).exists() for name in ("config.json", "groups", "policies", "trajectories")):
        raise ConfigError(f"--run: {store.root} is no folder of a run; give one such as runs/quickstart-seed0")
    return list(_Doctor(store).findings())


class _Doctor:
    """Checks of one run, which share the files that they read."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.newest = store.latest_policy() or 0
        self.stored: Stored = stored_by_group(store)
        self.config: TrainConfig | None = None
        self.records: dict[str, GroupRecord] = {}
        self.wanted: dict[int, str | None] = {}
        """Hashes (sha256) of the batches that versions were trained on, by their manifests."""
        self._blobs: set[str] = set()
        self._trained: set[str] = set()
        """Ids of groups that published versions were trained on."""

    def findings(self) -> Iterator[Finding]:
        yield from self._configuration()
        yield from self._policies()
        groups = list(self._groups())
        yield from groups
        for record in self.records.values():
            yield from self._trajectories(record)
        yield from self._leftovers()
        yield from self._documents()
        yield from self._regradings()
        if self.config is None:
            return
        batches = list(self._batches())
        yield from batches
        if groups or batches:  # faults of the ledger would only follow from these
            yield self._found(
                self.store.journal_path, "was not compared with the files", "mend the faults above first", "note"
            )
        else:
            yield from self._ledger()

    def _found(self, path: Path, what: object, todo: str, severity: Literal["fault", "note"] = "fault") -> Finding:
        text = str(what).replace(f"{self.store.root}/", "")
        name = str(path.relative_to(self.store.root))
        return Finding(name, text.removeprefix(f"{name}: ").removeprefix(f"{name} "), todo, severity)

    def _configuration(self) -> Iterator[Finding]:
        path = self.store.config_path
        try:
            frozen = read_json(path)["config"]
            kind = next((kind for key, kind in KINDS.items() if key in frozen), "")
            if kind == "a training run":
                self.config = TrainConfig.model_validate({**frozen, "preset": ""})
        except (KeyError, TypeError, StorageError, ValidationError) as error:
            what = describe_first_error(error) if isinstance(error, ValidationError) else error
            yield self._found(path, f"is no configuration: {what}", COPY)
            return
        copy = path.with_name(CONFIG_COPY)
        try:
            if copy.exists() and read_json(copy) != read_json(path):
                yield self._found(copy, f"is not what {path.name} is", OPEN_AGAIN)
        except StorageError as error:
            yield self._found(copy, error, OPEN_AGAIN)
        try:
            check_frozen_tasks(self.store)
        except StorageError as error:
            yield self._found(self.store.tasks_path, error, COPY)

    def _policies(self) -> Iterator[Finding]:
        for folder in sorted((self.store.root / "policies").glob("v*")):
            path = folder / MANIFEST
            if not path.exists():
                yield self._found(folder, "has no manifest: it was not published", LEAVE, "note")
                continue
            try:
                files = read_json(path)["files"].items()
                wrong = [name for name, known in files if _differs(folder / name, known)]
            except (AttributeError, KeyError, TypeError, StorageError) as error:
                yield self._found(path, f"is no manifest: {error}", COPY)
                continue
            self.wanted[int(folder.name[1:])] = read_json(path).get("batch")
            if (folder / REMOVED).exists():
                continue
            for added in added_files(folder, dict(files)):
                yield self._found(added, f"was added: {MANIFEST} does not list it", f"move it out of {folder.name}")
            for name in wrong:
                yield self._found(folder / name, "is missing or not the file that its manifest names (sha256)", COPY)
        for folder in sorted((self.store.trainer_path / "state").glob("v*")):
            try:
                check_state(folder)
            except StorageError as error:
                newest = folder.name == policy_name(self.newest)
                todo = "start the run again: it trains from the newest whole state"
                yield self._found(folder, error, todo if newest else LEAVE, "fault" if newest else "note")
        # The folder of an evaluation holds the one version that was evaluated.
        missing = set(range(self.newest)) - set(self.store.versions()) if self.config is not None else set[int]()
        for version in sorted(missing):
            yield self._found(self.store.policy_path(version), "is missing, and later versions are there", COPY)
        yield from self._aliases()

    def _aliases(self) -> Iterator[Finding]:
        try:
            aliases = read_aliases(self.store)
        except StorageError as error:
            yield self._found(self.store.aliases_path, error, COPY)
            return
        for name, alias in aliases.items():
            folder = self.store.policy_path(alias.version)
            if not self.store.is_published(alias.version) or (folder / REMOVED).exists():
                what = f"names version {alias.version}, which has no weights"
                yield self._found(self.store.alias_path(name), what, "give the name to another: flows.promote")

    def _groups(self) -> Iterator[Finding]:
        for version in range(1, self.newest + 1):
            self._trained.update(self._groups_of(version))
        for group_id in sorted({*self.store.group_ids(), *self._trained}):
            path = self.store.group_path(group_id)
            try:
                self.records[group_id] = read_group(self.store, group_id)
            except StorageError as error:
                yield self._found(path, error, self._group_remedy(group_id))

    def _groups_of(self, version: int) -> list[str]:
        try:
            return groups_of_version(self.store, version)
        except StorageError:  # reported by the check of policies
            return []

    def _group_remedy(self, group_id: str) -> str:
        if self.config is None or not group_id.startswith("i"):
            return f"{COPY}; without one it is missing from the report, and a group that no result depends on is rolled out again"
        try:
            size = self.config.episodes_per_group
            rebuilt_record(self.store, group_id, self.stored, size=size, attempts=self.config.rollout.attempts)
        except StorageError as lost:
            if group_id in self._trained:
                return f"{str(lost).replace(f'{self.store.root}/', '')}. {REMEDY}"
            return "start the run again: the group is rolled out again"
        return OPEN_AGAIN

    def _trajectories(self, record: GroupRecord) -> Iterator[Finding]:
        trained = record.group_id in self._trained
        todo = REMEDY if trained else f"{COPY}; without it the report and the batch are made without the episode"
        record_path = self.store.group_path(record.group_id)
        shallow = missing_trajectories(self.store, record, self.stored)
        for what in shallow:
            yield self._found(record_path, what, todo)
        for episode in record.episodes:
            path = self.store.trajectory_path(episode.episode_id, record.token)
            try:
                trajectory = self.store.trajectory(episode.episode_id)
            except StorageError as error:
                if not any(episode.episode_id in what for what in shallow):
                    yield self._found(path, error, todo)
                continue
            summary = EpisodeSummary.of(trajectory)
            wrong = [key for key in SUMMARY if getattr(summary, key) != getattr(episode, key)]
            wrong += [
                key for key in ("group_id", "kind", "task_id") if getattr(trajectory, key) != getattr(record, key)
            ]
            if wrong:
                yield self._found(path, f"does not agree with its group's record in {', '.join(wrong)}", todo)
            yield from self._blobs_of(trajectory, path)

    def _blobs_of(self, trajectory: Trajectory, path: Path) -> Iterator[Finding]:
        for sha256 in blobs_of(trajectory):
            if sha256 in self._blobs:
                continue
            self._blobs.add(sha256)
            try:
                self.store.blob(sha256)
            except StorageError as error:
                todo = f"{COPY}; without it rows that need it are left out of a batch, and the report shows a gap"
                yield self._found(path, f"needs what is damaged: {error}", todo)

    def _leftovers(self) -> Iterator[Finding]:
        for episode_id, token in self.store.orphans():
            path = self.store.trajectory_path(episode_id, token)
            yield self._found(path, "is of an attempt that did not commit its group", LEAVE, "note")
        for path in sorted(self.store.root.glob("**/*.damaged")):
            yield self._found(path, "was put aside when the run was opened", LEAVE, "note")

    def _documents(self) -> Iterator[Finding]:
        store = self.store
        for path in sorted((store.root / "starts").glob("*.json")):
            try:
                SamplerState.model_validate(read_json(path))
            except (StorageError, ValidationError):
                todo = f"{move_aside_advice(path)}: it is made again from the groups before it"
                yield self._found(path, "is no sampler state of an iteration", todo)
        for path in sorted((store.root / "rubrics").glob("*.json")):
            try:
                store.rubric(path.stem)
            except StorageError as error:
                yield self._found(path, error, COPY)
        kept = [path for path in (store.task_set_path, store.task_file_hashes_path) if path.exists()]
        evaluations = sorted((store.root / "evaluations").glob("*.json"))
        for path in [*evaluations, *sorted((store.root / "left_out").glob("*.json")), *kept]:
            try:
                read_json(path)
            except StorageError as error:
                what = str(error).partition(";")[0]
                yield self._found(path, what, recount_advice(path) if path in evaluations else COPY)
        if store.result_path.exists():
            try:
                read_json(store.result_path)
            except StorageError as error:
                yield self._found(store.result_path, error, OPEN_AGAIN)

    def _regradings(self) -> Iterator[Finding]:
        for folder in sorted((self.store.root / "regraded").glob("*/")):
            try:
                read_log(self.store, folder.name)
            except StorageError as error:
                yield self._found(self.store.regrading_path(folder.name), error, COPY)
            for path in sorted(folder.glob("*/*.json")):
                try:
                    if read_regraded(path).episode_id != path.stem:
                        raise StorageError(f"{path} is the reward of another episode")
                except StorageError as error:
                    todo = f"{move_aside_advice(path)} and start that regrading again: only this episode is graded"
                    yield self._found(path, str(error).partition(";")[0], todo)

    def _batches(self) -> Iterator[Finding]:
        assert self.config is not None
        versions = {int(path.stem[1:]) for path in (self.store.root / "batches").glob("v*.json")}
        for version in sorted(versions | {version for version in self.store.versions() if version > 0}):
            try:
                self._check_batch(version)
            except StorageError as error:
                yield self._found(self.store.batch_path(version), error, OPEN_AGAIN)

    def _check_batch(self, version: int) -> None:
        """Raise ``StorageError`` unless a version was, or would be, trained on this batch."""
        assert self.config is not None
        batch, published = read_batch(self.store, version), version <= self.newest
        if published:
            wanted = self.wanted.get(version)
            if wanted not in (None, sha256_of(self.store.batch_path(version))):
                raise StorageError(f"is not what version {version} was trained on (sha256)")
        elif batch != batch_of(
            self.store, version, self.config.batch_settings, damaged_in(batch), seed=self.config.seed
        ):
            raise StorageError("is not what its groups give")

    def _ledger(self) -> Iterator[Finding]:
        """Check that files, journal, metrics and result agree on the one state of every episode."""
        with closing(Journal(Path(":memory:"))) as journal:
            for group_id, record in self.records.items():
                if group_id.startswith("i"):
                    try:
                        journal.accept([record])
                    except StorageError as error:
                        yield self._found(self.store.group_path(group_id), error, COPY)
            for version in self.store.versions()[1:]:
                try:
                    journal.record_update(published_batch(self.store, version))
                except StorageError as error:
                    yield self._found(self.store.batch_path(version), error, REMEDY)
            yield from self._journal(journal)
            yield from self._metrics(journal)

    def _journal(self, journal: Journal) -> Iterator[Finding]:
        path = self.store.journal_path
        if not path.exists():
            return
        query = "SELECT episode_id, state, coalesce(version, -1) FROM events"
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                kept = set(connection.execute(query).fetchall())
        except sqlite3.Error as error:
            yield self._found(path, f"is no ledger of this version ({error})", OPEN_AGAIN, "note")
            return
        files = {
            (event.episode_id, str(event.state), -1 if event.version is None else event.version)
            for event in journal.events()
        }
        if kept != files:
            episode = min(kept ^ files)[0]
            yield self._found(path, f"and the files differ, first in episode {episode}", OPEN_AGAIN, "note")

    def _metrics(self, journal: Journal) -> Iterator[Finding]:
        path = self.store.metrics_path
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        known: set[int] = set()
        for number, line in enumerate(lines, start=1):
            try:
                if line and isinstance(entry := parse_line(line), IterationMetrics):
                    known.add(entry.iteration)
                    yield from self._line(journal, path, number, entry)
            except StorageError as error:
                if number == len(lines):
                    yield self._found(path, "ends in the middle of a line", OPEN_AGAIN, "note")
                else:
                    yield self._found(path, f"line {number} is damaged: it {error}", OPEN_AGAIN)
        for iteration in sorted(set(range(self.newest)) - known):
            yield self._found(path, f"has no line of iteration {iteration}", OPEN_AGAIN, "note")

    def _line(self, journal: Journal, path: Path, number: int, line: IterationMetrics) -> Iterator[Finding]:
        counted, files = line.episodes, journal.episodes(self._groups_of(line.iteration + 1))
        if counted != files:
            yield self._found(
                path, f"line {number} counts other episodes than the files have: {counted}, not {files}", COPY
            )


def _differs(path: Path, known: dict[str, Any]) -> bool:
    return not path.is_file() or path.stat().st_size != known["size"] or sha256_of(path) != known["sha256"]
