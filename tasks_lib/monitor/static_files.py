"""Files of a page, as they are sent."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from starlette.responses import FileResponse, JSONResponse, Response

PAGE = Path(__file__).parent / "page"
"""Folder of the pages' files."""

KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
"""Content type by the end of a file's name."""

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Content-Security-Policy of all pages: they load from their own server alone, and nothing inline
runs."""


def static_file(folder: Path, name: str, allowed: Collection[str]) -> Response:
    """Return a file of a folder; names that are not among the allowed ones do not exist."""
    if name not in allowed:
        return JSONResponse({"error": f"there is no file {name[:100]!r} here"}, status_code=404)
    return FileResponse(folder / name, media_type=KINDS[Path(name).suffix], headers={"Cache-Control": "no-cache"})
