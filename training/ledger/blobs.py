"""Kinds of blobs, by their first bytes and by the ending of their file."""

from __future__ import annotations

BLOB_KINDS = ("jpg", "json", "png", "webp", "bin")
"""Endings of blobs, the most frequent first: files are looked for in this order."""


def blob_kind(data: bytes) -> str:
    """Return the ending of a blob's file, by its first bytes.

    It is a picture's ending, ``json`` for an object or a list, ``bin`` for anything else.

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
