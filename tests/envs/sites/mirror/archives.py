"""HTTP archives that the tests write themselves, in the form of Chrome's DevTools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

URL = "https://shop.example/"


def entry(response: dict[str, Any], method: str = "GET", url: str = URL, **request: Any) -> dict[str, Any]:
    """An entry in the form of Chrome's DevTools."""
    headers = [{"name": ":authority", "value": "shop.example"}, {"name": "accept", "value": "*/*"}]
    answer = {"status": 200, "httpVersion": "h3", "headers": [], "content": {"size": 0, "mimeType": "x-unknown"}}
    return {
        "_resourceType": "document",
        "request": {"method": method, "url": url, "httpVersion": "h3", "headers": headers, **request},
        "response": answer | response,
    }


def write_har(folder: Path, *entries: Any) -> Path:
    path = folder / "shop.har"
    path.write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}))
    return path


def headers(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    """Headers in the form of an archive."""
    return [{"name": name, "value": value} for name, value in pairs]
