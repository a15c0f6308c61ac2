"""Task sources: own files, imported task sets, the task generator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

import envs.bundled.generate
import envs.bundled.sites
from envs.bundled.generate import GeneratorSpec, generate_world, worlds
from envs.bundled.generate.generate import draft_of
from envs.tasks.decompose import DecompositionRules
from envs.tasks.imports import FORMATS, import_tasks
from envs.tasks.rows import OnProblem
from envs.tasks.stream import iter_tasks, task_files
from envs.types import ConfigError, Record, Split, TaskError, WebTask
from envs.types.extensions import is_reference
from envs.types.near import near

TASKS_OF_WORLD = 60
"""Estimated number of different requests of a world.

All templates give some 80, and many requests come twice. More shards are built if this is too high.
"""


GENERATOR = (envs.bundled.generate, envs.bundled.sites)
"""Packages whose code decides what is generated."""


class SourceBase(Record):
    """Settings that every source has."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        examples=["mine"],
        description="Name in the manifest; unique.",
    )
    shards: int = Field(4, ge=1, le=256, description="Parts built side by side, one Prefect task each.")
    write_rubrics: bool = Field(False, description="A model writes missing rubrics (writer).")
    decompose: DecompositionRules | None = Field(
        None,
        description="Make sub-tasks; true: with the defaults.",
        json_schema_extra={"short": "true"},
    )
    part_words: Literal["template", "written"] = Field(
        "template", description="Sub-task instructions: from group descriptions, or by a model (writer)."
    )

    @field_validator("decompose", mode="before")
    @classmethod
    def _in_short(cls, value: object) -> object:
        return ({} if value else None) if isinstance(value, bool) else value

    @property
    def needs_writer(self) -> bool:
        """True if a model is asked for this source."""
        return self.write_rubrics or (self.decompose is not None and self.part_words == "written")


class FileSource(SourceBase):
    """Task files (JSONL, JSON, Parquet)."""

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = Field(
        min_length=1,
        examples=[["datasets/tasks/miniwob.jsonl"]],
        description="Globs of task files.",
    )


class ImportSource(SourceBase):
    """A task set in the format of another benchmark."""

    kind: Literal["import"] = "import"
    format: str = Field(
        examples=["webgym"], description=f"{', '.join(FORMATS.own)}; an installed one, or module:function."
    )
    path: str = Field(examples=["webgym.jsonl"], description="File or folder.")
    split: Split | None = Field(None, description="Split of its tasks; null: the format's.")
    judged: bool = Field(False, description="A judge grades tasks that have no other grading.")

    @model_validator(mode="after")
    def _one_rubric(self) -> Self:
        if self.judged and self.write_rubrics:
            raise ValueError("judged and write_rubrics both make rubrics for tasks without one; choose one of them")
        return self

    @field_validator("format")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FORMATS and not is_reference(value):
            raise ValueError(f"there is no format {value!r}; {near(value, FORMATS)}there are {', '.join(FORMATS)}")
        return value


class GenerateSource(SourceBase):
    """Tasks generated over the bundled sites.

    Batches of ``shards`` shards are built until there are enough tasks.
    """

    kind: Literal["generate"] = "generate"
    spec: GeneratorSpec = Field(GeneratorSpec(), description="What to generate; the run's seed is added to its seed.")
    worlds: int = Field(0, ge=0, le=100_000, description="Worlds of one shard; 0: estimated.")

    @property
    def worlds_of_shard(self) -> int:
        """Number of worlds of one shard."""
        return self.worlds or -(-self.spec.count // (self.shards * TASKS_OF_WORLD))


AnySource = FileSource | ImportSource | GenerateSource
Source = Annotated[AnySource, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task of a source, before it is graded and checked."""

    row: int
    """Its place in the source, by which shards are merged."""
    task: WebTask
    key: str = ""
    """The source's own key beside `content_key`: one for all wordings of a request."""
    reference: dict[str, Any] | None = None
    """The row of an imported task."""
    format: str = ""


def candidates(source: AnySource, shard: int, base: Path, on_problem: OnProblem, seed: int = 0) -> Iterator[Candidate]:
    """Yield the good tasks of one shard of a source.

    Shard k has those whose place is k modulo the number of shards.

    Raises:
        TaskError: a glob matches nothing.
    """
    match source:
        case FileSource():
            tasks = iter_tasks(source_files(source, base), shard=shard, shards=source.shards, on_problem=on_problem)
            for number, task in enumerate(tasks):
                yield Candidate(number * source.shards + shard, task)
        case ImportSource():
            # Every shard reads everything (ids are checked across shards); only the first reports
            # problems.
            handler = on_problem if shard == 0 else _ignore_problem
            items = import_tasks(
                source.format, base / source.path, split=source.split, on_problem=handler, judged=source.judged
            )
            for row, item in enumerate(items):
                if row % source.shards == shard:
                    yield Candidate(row, item.task, reference=item.reference, format=item.source)
        case GenerateSource():
            yield from _generate_candidates(source, shard, seed)


def _generate_candidates(source: GenerateSource, shard: int, seed: int) -> Iterator[Candidate]:
    spec = source.spec.model_copy(update={"seed": source.spec.seed + seed})
    first = shard * source.worlds_of_shard
    for row, world in enumerate(islice(worlds(spec), first, first + source.worlds_of_shard), start=first):
        for task in generate_world(spec, world):
            yield Candidate(row, task, _request_key(task))


def _request_key(task: WebTask) -> str:
    """Return the key of a generated request, equal for all wordings and as in `generate`."""
    kind, seed, number = task.task_id.split("/")
    draft = draft_of(kind, int(seed), int(number))
    assert draft is not None
    return digest_of(f"{task.site}\n{task.path}\n{draft.wordings[0]}\n{task.rubric_hash}")


def digest_of(text: str) -> str:
    """Return 128 bits of a text's hash in hex, which tell a billion texts apart."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def source_files(source: FileSource, base: Path) -> list[Path]:
    """Return the files of a source.

    Raises:
        TaskError: a glob matches nothing.
    """
    return sorted({path for glob in source.paths for path in _match_files(glob, base)})


def fingerprint(source: AnySource, base: Path) -> str:
    """Return a sha256 of all files that a source reads, or of the generator's code.

    A changed file changes the fingerprint, and so the requests of its shards.

    Raises:
        ConfigError: there is nothing to read, or no template is left.
    """
    try:
        match source:
            case FileSource():
                files = source_files(source, base)
            case ImportSource():
                files = _list_files(base / source.path)
            case GenerateSource():
                next(worlds(source.spec))  # refuses what it does not know
                files = sorted(path for package in GENERATOR for path in Path(package.__path__[0]).rglob("*.py"))
    except (OSError, TaskError) as error:
        raise ConfigError(f"source {source.name}: {error}") from error
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _match_files(glob: str, base: Path) -> list[Path]:
    absolute = Path(glob)
    if absolute.is_absolute():
        return task_files(str(absolute.relative_to(absolute.anchor)), root=Path(absolute.anchor))
    return task_files(glob, root=base)


def _list_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(child for child in path.rglob("*") if child.is_file())
    path.stat()
    return [path]


def _ignore_problem(problem: object) -> None:
    """Do nothing: another shard reports it."""
