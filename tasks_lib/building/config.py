"""Configuration of building a task set: sources, rubric writer, output format."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from envs.tasks import WriterConfig
from envs.tasks.assembly import Source
from tasks_lib.config import ClusterConfig, RunConfig


class BuildTasksConfig(RunConfig):
    """Configuration of a task set.

    The same values, seed and source files give the same bytes.
    """

    flow = "flows.build_tasks"
    unnamed = "tasks"

    sources: list[Source] = Field(min_length=1, description="Where tasks come from, in order.")
    writer: WriterConfig | None = Field(
        None,
        description="Model that writes rubrics and instructions.",
    )
    give_up: bool = Field(
        False,
        description="Reject tasks that the endpoint did not answer, instead of failing.",
    )
    layout: Literal["tree", "file"] = Field("tree", description="Folders by difficulty, or one file.")
    form: Literal["jsonl", "parquet", "json"] = Field("jsonl", description="File format; json: one task a file.")
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [source.name for source in self.sources]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"sources: two are named {twice[0]!r}; each needs a name of its own")
        if self.writer is None and (asking := [source.name for source in self.sources if source.needs_writer]):
            raise ValueError(f"writer: source {asking[0]!r} has something written; give writer.endpoint")
        if (self.layout, self.form) == ("file", "json"):
            raise ValueError("form: json is one task a file; for layout file choose jsonl or parquet")
        return self

    def plan(self) -> str:
        """Describe what this configuration would do, in a sentence."""
        named = ", ".join(f"{source.name} ({source.kind}, {source.shards} shards)" for source in self.sources)
        written = f", with {self.writer.endpoint.models.default} writing" if self.writer is not None else ""
        return f"would build tasks from {named}{written}, as a {self.layout} of {self.form} files in {self.run_dir}"
