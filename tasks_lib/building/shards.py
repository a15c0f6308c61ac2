"""Prefect tasks that build a task set: one per shard on Dask, then a merge.

The merge runs in the flow's process. The folder of a set::

    config.json            configuration at its start; other values are refused
    shards/<source>/…      tasks, rejected rows and report of each shard
    replies/               the writer's answers, by content, so that no question is asked twice
    writer_spent.sqlite    requests and tokens of the writers of all shards
    difficulty/… or tasks.jsonl or tasks.parquet, rejected.jsonl
    manifest.json          written last: without it the set is not finished
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import task
from prefect.futures import PrefectFuture

from envs.bundled.generate import MAX_LOOKED_AT, GeneratorSpec, empty_splits, generate, split_counts, wanted_splits
from envs.chat import Ledger
from envs.tasks import TreeLayout
from envs.tasks.assembly import (
    AnySource,
    GenerateSource,
    Layout,
    SetPlan,
    ShardReport,
    ShardRequest,
    build_shard,
    count_writer_requests,
    fingerprint,
    is_whole,
    merge_shards,
    read_report,
)
from envs.types import ConfigError, JudgeError, RollwrightError, Split, StorageError, TaskError
from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.config import PROJECT
from tasks_lib.config.differences import without_budgets
from tasks_lib.folder.failed_start import free_name, undo_failed_start
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.progress import RunProgress
from tasks_lib.folder.values import add_new_defaults, check_kind
from tasks_lib.processes.retries import WORKER_TASK
from training.ledger.store import RunStore, read_json, write_json

UNRELATED_KEYS = {"run_id", "preset", "root", "cluster"}
"""Keys that do not affect the content of a set."""

MAY_CHANGE = frozenset({"give_up"})
"""Keys that may differ when a build is resumed.

They affect the shards, so shards are built anew; answered questions are not asked again.
"""


@task(task_run_name="build-{request.source.name}-{request.shard}", retries=1, **WORKER_TASK)
def build_shard_on_worker(request: ShardRequest) -> ShardReport:
    """Build a shard that does not exist yet.

    Idempotent, so Dask and Prefect may run it again.
    """
    return build_shard(request)


class SetBuild:
    """One task set, while it is built."""

    def __init__(self, config: BuildTasksConfig) -> None:
        self.config = config
        self.folder = config.run_dir
        self.plan = plan_of(config)
        fingerprints = check_sources(config)
        self.requests = [self._requests(source, fingerprints[source.name]) for source in config.sources]
        path = self.folder / "config.json"
        if not path.exists():
            write_json(path, {"config": self.plan.config, "sources": fingerprints})
        while not self.finished and not self.missing_shards() and self.extend():
            pass  # a generator may have further shards already

    @property
    def spent_path(self) -> Path:
        """File in which the writers of all shards count their spending."""
        return self.folder / "writer_spent.sqlite"

    def writer_account(self) -> dict[str, dict[str, int | None]]:
        """Return the writers' spent and remaining requests and tokens (``None``: no limit).

        Empty if no source needs a writer.

        Raises:
            StorageError: the spending cannot be read; names the file, and what to do.
        """
        writer = self.config.writer
        if writer is None or not any(source.needs_writer for source in self.config.sources):
            return {}
        return writer.endpoint.limits.account(Ledger(self.spent_path).read())

    def spending(self) -> str:
        """Describe the writers' account in a sentence; empty without a writer. Raises as
        `writer_account`."""
        parts = [
            f"{account['spent']:,} {name} spent" + ("" if account["left"] is None else f" ({account['left']:,} left)")
            for name, account in self.writer_account().items()
        ]
        return f"writer: {', '.join(parts)}" if parts else ""

    @property
    def finished(self) -> bool:
        """True if the set exists and is complete; its shards may be gone by then."""
        return is_whole(self.plan)

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the finished set."""
        manifest: dict[str, Any] = read_json(self.plan.manifest)
        return manifest

    def missing_shards(self) -> list[ShardRequest]:
        """Return the shards that are missing or incomplete, in their order."""
        return [request for requests in self.requests for request in requests if read_report(request) is None]

    def extend(self) -> bool:
        """Add shards to generators that have too few different requests. Return True if any got
        some.

        Raises:
            TaskError: the last shards of a generator brought nothing new.
        """
        extended = False
        for number, requests in enumerate(self.requests):
            source = requests[0].source
            if (
                not isinstance(source, GenerateSource)
                or (count := count_writer_requests(requests)) >= source.spec.count
            ):
                continue
            if len(requests) > source.shards and count == count_writer_requests(requests[: -source.shards]):
                raise TaskError(
                    f"source {source.name}: there are {count} different tasks of these kinds in these worlds, {source.spec.count} are "
                    "wanted; ask for more kinds, splits or worlds"
                )
            self.requests[number] = [*requests, *self._requests(source, requests[0].fingerprint, len(requests))]
            extended = True
        return extended

    def run(self, progress: RunProgress) -> None:
        """Build the missing shards on the cluster, and further ones that generators need.

        Call it inside a flow with ``RolloutTaskRunner``.

        Raises:
            JudgeError: the writer's endpoint left questions open; all other shards are built.
            StorageError: the writer's spending cannot be counted; before anything is built.
            RollwrightError: the first of the other errors, after all shards have ended.
        """
        self.writer_account()
        self._build_missing(progress)
        while self.extend():
            self._build_missing(progress)

    def _build_missing(self, progress: RunProgress) -> None:
        missing = self.missing_shards()
        total = sum(map(len, self.requests))
        if done := total - len(missing):
            progress.log(f"{done} of {total} shards are there already")
        futures = [(request, build_shard_on_worker.submit(request)) for request in missing]
        errors: list[RollwrightError] = []
        for number, (request, future) in enumerate(futures, start=done + 1):
            report = _result(future, errors)
            outcome = _describe_report(report) if report else str(errors[-1])
            progress.iteration(number, f"shard {request.shard} of {request.source.name}: {outcome}")
        if errors:
            raise _most_lasting_error(errors)

    def merge(self) -> dict[str, Any]:
        """Merge the shards and write the manifest."""
        return merge_shards(self.plan, self.requests)

    def _requests(self, source: AnySource, source_fingerprint: str, first: int = 0) -> list[ShardRequest]:
        """Return the requests for a source's usual number of shards, from number ``first`` on."""
        return [
            ShardRequest(
                source=source,
                shard=shard,
                seed=self.config.seed,
                fingerprint=source_fingerprint,
                writer=self.config.writer if source.needs_writer else None,
                give_up=self.config.give_up,
                folder=str(self.folder / "shards"),
                base=str(PROJECT),
                cache=str(self.folder / "replies"),
                spent=str(self.spent_path),
            )
            for shard in range(first, first + source.shards)
        ]


@contextmanager
def open_build(config: BuildTasksConfig) -> Iterator[SetBuild]:
    """Open (or resume) a set under its lock.

    Raises:
        ConfigError: it was started with other values, or a source does not exist.
        StorageError: another process is working on it, or the folder holds something else.
    """
    with run_lock(config.run_dir), undo_failed_start(RunStore(config.run_dir)):
        yield SetBuild(config)


def plan_of(config: BuildTasksConfig) -> SetPlan:
    """Return the plan of a configuration's set."""
    values = config.model_dump(mode="json", exclude=UNRELATED_KEYS)
    return SetPlan(config.run_dir, Layout(config.layout), TreeLayout(config.form), values)


def check_sources(config: BuildTasksConfig) -> dict[str, str]:
    """Return the fingerprints of the sources, by name. Nothing is written.

    Raises:
        ConfigError: a source does not exist, or the set in the folder was started with other values
            or files.
        StorageError: the folder holds something else.
    """
    fingerprints = {source.name: fingerprint(source, PROJECT) for source in config.sources}
    path, plan = config.run_dir / "config.json", plan_of(config)
    if path.exists():
        frozen = check_kind(path, plan.config)
        before = add_new_defaults(BuildTasksConfig, frozen["config"])
        lasting = [key for key in plan.config if key not in MAY_CHANGE]
        changed = [key for key in lasting if _comparable(key, plan.config[key]) != _comparable(key, before.get(key))]
        changed += [
            f"the files of source {name}"
            for name, current in fingerprints.items()
            if current != frozen["sources"].get(name)
        ]
        if changed:
            raise ConfigError(
                f"the set in {path.parent} was started with other values of: {', '.join(changed)} (see {path}); "
                f"use those, or another run_id, such as run_id={free_name(path.parent)}"
            )
    elif strange := [child.name for child in sorted(config.run_dir.glob("*")) if child.name != "run.lock"]:
        raise StorageError(
            f"{path.parent} holds {strange[0]} and is no task set that is being built; choose another run_id or root"
        )
    return fingerprints


def summary_rows(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the manifest's counts as rows of a table."""
    rows = [{"what": "tasks", "count": manifest["tasks"]}, {"what": "rejected", "count": manifest["rejected"]}]
    splits = {split: 0 for source in _generators(manifest) for split in map(str, wanted_splits(source.spec))}
    for group, counts in (
        ("by_difficulty", manifest["by_difficulty"]),
        ("by_split", {**splits, **manifest["by_split"]}),
    ):
        rows += [{"what": f"{group}: {name}", "count": count} for name, count in counts.items()]
    for name, counts in manifest["by_source"].items():
        rows += [{"what": f"{name}: {what}", "count": counts[what]} for what in ("read", "written", "parts", "tasks")]
        rows += [{"what": f"{name}: rejected, {stage}", "count": count} for stage, count in counts["rejected"].items()]
    return rows


def check_splits(config: BuildTasksConfig) -> list[str]:
    """Check, before a set is built, that each split of its generators will have tasks.

    Only small sets are checked (`MAX_LOOKED_AT`): their tasks are generated, which takes seconds,
    and not stored.

    Returns:
        A warning for each generator with an empty split, where another kind of source may fill it.

    Raises:
        ConfigError: a split will have no task, or there are too few different tasks; says what to
            set.
    """
    specs = {
        source.name: _seeded(source, config.seed) for source in config.sources if isinstance(source, GenerateSource)
    }
    counts: Counter[Split] = Counter()
    for name, spec in specs.items():
        if spec.count > MAX_LOOKED_AT:
            counts.update(wanted_splits(spec))  # assumed; `split_warnings` counts the result
            continue
        try:
            counts.update(split_counts(generate(spec), spec))
        except TaskError as error:
            raise ConfigError(f"source {name}: {error}") from error
    warnings = [f"source {name}: {empty}" for name, spec in specs.items() if (empty := empty_splits(spec, counts))]
    if warnings and len(specs) == len(config.sources):
        raise ConfigError(f"{warnings[0]}. For a set without that split, set its share in splits to 0")
    return [f"warning: {warning}" for warning in warnings]


def describe_set(manifest: dict[str, Any]) -> str:
    """Describe a set in a few words."""
    return f"{manifest['tasks']:,} tasks, {manifest['rejected']:,} rejected"


def split_warnings(manifest: dict[str, Any]) -> list[str]:
    """Return a warning for each generator whose split is empty in the whole set.

    It says why, and what to set.
    """
    warnings = []
    for source in _generators(manifest):
        if warning := empty_splits(_seeded(source, manifest["config"]["seed"]), manifest["by_split"]):
            warnings.append(f"source {source.name}: {warning}")
    return warnings


def _seeded(source: GenerateSource, seed: int) -> GeneratorSpec:
    """Return the spec with which a source is built in a set of this seed."""
    return source.spec.model_copy(update={"seed": source.spec.seed + seed})


def _generators(manifest: dict[str, Any]) -> list[GenerateSource]:
    sources = manifest["config"]["sources"]
    return [GenerateSource.model_validate(source) for source in sources if source["kind"] == "generate"]


def _result(future: PrefectFuture[ShardReport], errors: list[RollwrightError]) -> ShardReport | None:
    """Return the report, or add an error and return ``None``.

    An error that is not ours ends the build at once.
    """
    try:
        return future.result()
    except RollwrightError as error:
        errors.append(error)
        return None


def _most_lasting_error(errors: list[RollwrightError]) -> RollwrightError:
    """Return an error that another start cannot mend, or all open questions in one error."""
    lasting = [error for error in errors if not isinstance(error, JudgeError)]
    if lasting:
        return lasting[0]
    return JudgeError(f"{len(errors)} shards are not complete:\n" + "\n".join(map(str, errors)))


def _describe_report(report: ShardReport) -> str:
    rejected = sum(report.rejected.values())
    parts = [f"{report.tasks:,} tasks"]
    parts += [
        f"{count:,} {what}"
        for count, what in ((report.parts, "of them parts"), (report.written, "rubrics written"))
        if count
    ]
    parts += [f"{rejected:,} rejected"] if rejected else []
    parts += [f"{report.requests:,} requests"] if report.requests else []
    return ", ".join(parts)


def _comparable(key: str, value: Any) -> Any:
    """Return a value of the configuration, without the parts that may change."""
    if key != "writer" or not value:
        return value
    return {**value, "endpoint": without_budgets(value["endpoint"])}
