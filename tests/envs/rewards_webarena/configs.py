"""Configurations of WebArena's true shape, of our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("configs.json")
ADDRESSES = {"__GITLAB__": "http://git.test/", "__REDDIT__": "http://reddit.test", "__SHOPPING__": "http://shop.test"}


def broken(change: Callable[[dict[str, Any]], object], row: int = 3) -> dict[str, Any]:
    """A row of the file that is not as it should be any more."""
    raw: dict[str, Any] = json.loads(FILE.read_text())[row]
    change(raw)
    return raw
