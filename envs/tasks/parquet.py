"""Task rows as Parquet: a column for each field of `WebTask`, and ``schema_version``.

Text, whole numbers and booleans have columns of their own type. Every other field (``seeds``) is a
text column with its JSON. A null means that the row does not have the field. A field added to
`WebTask` becomes a column without a change here.

pyarrow is imported only when a Parquet file is used: it takes 40 MB and a third of a second, which
readers of JSON lines need not spend.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from envs.tasks.rows import SCHEMA_VERSION, VERSION_FIELD
from envs.types import TaskError, WebTask
from envs.types.paths import AnyPath

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

ROWS_PER_GROUP = 8192
"""Rows in memory at once while writing: some megabytes."""

ROWS_PER_BATCH = 1024
"""Rows in memory at once while reading."""

_PLAIN: dict[Any, str] = {str: "string", str | None: "string", int: "int64", bool: "bool"}
"""Column types of field annotations; any other field is JSON in a text column."""

JSON_FIELDS = frozenset(name for name, field in WebTask.model_fields.items() if field.annotation not in _PLAIN)
"""Fields whose column holds JSON."""


def parquet_schema() -> pa.Schema:
    """Return names and types of the columns, in the order of `WebTask`."""
    import pyarrow as pa  # type: ignore[import-untyped]

    types = {name: _PLAIN.get(field.annotation, "string") for name, field in WebTask.model_fields.items()}
    return pa.schema([(name, pa.type_for_alias(alias)) for name, alias in {VERSION_FIELD: "int64", **types}.items()])


def save_parquet(path: AnyPath, tasks: Iterable[WebTask]) -> int:
    """Write tasks, `ROWS_PER_GROUP` at a time, and return their number.

    Raises:
        TaskError: a number has more than 64 bits.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    schema = parquet_schema()
    written = 0
    rest = iter(tasks)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch := list(itertools.islice(rest, ROWS_PER_GROUP)):
            try:
                table = pa.Table.from_pylist([_columns(task) for task in batch], schema)
            except (OverflowError, pa.ArrowInvalid) as error:
                raise TaskError(f"{path}: a task does not fit the columns ({error}); write it as JSON lines") from error
            writer.write_table(table)
            written += len(batch)
    return written


def parquet_rows(path: AnyPath) -> Iterator[str]:
    """Yield the rows of a file as JSON text.

    They are checked like the lines of a JSONL file.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(path) as file:
            # One thread: checking rows takes longer than decoding, and each thread would hold
            # memory.
            for batch in file.iter_batches(ROWS_PER_BATCH, use_threads=False):
                for row in batch.to_pylist():
                    yield json.dumps(
                        {name: _value(name, value) for name, value in row.items() if value is not None}, default=repr
                    )
    # Not every one is a ValueError or an OSError: an unsupported codec or type is neither.
    except pa.ArrowException as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _columns(task: WebTask) -> dict[str, Any]:
    row = task.model_dump(mode="json")
    texts = {name: json.dumps(row[name]) for name in JSON_FIELDS if row[name] is not None}
    return {**row, **{name: texts.get(name) for name in JSON_FIELDS}, VERSION_FIELD: SCHEMA_VERSION}


def _value(name: str, value: Any) -> Any:
    """Return a column's value, with JSON decoded.

    Text that should be JSON and is not stays text; the check of its field then refuses it.
    """
    if name not in JSON_FIELDS or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (RecursionError, ValueError):
        return value
