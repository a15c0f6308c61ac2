"""Seals JSON documents: each holds the sha256 of its other content.

A seal shows that a document was changed. Batches, trajectories, blobs, rubrics and checkpoint files
have theirs elsewhere: in a manifest, a record, or their name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from envs.types import AnyPath, StorageError

SEAL = "document_sha256"
"""Key of the seal, the last one of a document."""


def json_bytes(value: Any, *, sealed: bool = False) -> bytes:
    """Return the bytes that `training.ledger.store.write_json` writes for a value.

    Args:
        value: Plain values, or anything with ``model_dump``.
        sealed: True to add a seal to an object.
    """
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if sealed:
        value = {**value, SEAL: _digest(orjson.loads(json_bytes(value)))}
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)


def unsealed(path: Path, document: Any, remedy: str) -> Any:
    """Return a document without its seal; other documents have none.

    Raises:
        StorageError: The document was changed after it was sealed; gives the ``remedy``.
    """
    if not isinstance(document, dict) or SEAL not in document:
        return document
    rest = {key: value for key, value in document.items() if key != SEAL}
    if document[SEAL] != _digest(rest):
        raise StorageError(f"{path} is damaged: it was changed after it was written (sha256); {remedy}")
    return rest


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()


def describe_first_error(error: ValidationError) -> str:
    """Describe the first error of a document, as ``episodes.0.score: Input should be …``."""
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'value'}: {first['msg']}"


def sha256_of(content: AnyPath | bytes) -> str:
    """Return the sha256 of bytes, or of a file, which is read in pieces."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open(content, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
