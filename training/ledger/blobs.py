"""What a blob is, by its bytes and by the ending of its file."""

from __future__ import annotations

BLOB_KINDS = ("jpg", "json", "png", "webp", "bin")
"""Endings of blobs, the most frequent first, which is how they are looked for. ``jpg`` has to stay the first: it is what every blob of an
older run ends in, whatever it is."""


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
