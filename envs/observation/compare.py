"""Compares observations of equal episodes: what differs first, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from envs.types import Observation

PORT = re.compile(r"(https?://(?:127\.0\.0\.1|localhost)):\d+")
"""Address of a server of ours, which has another port in each run."""

PLACES = frozenset(["box"])
"""Fields that are compared to a tenth of a CSS pixel."""


def canonical_observation(observation: Observation) -> dict[str, Any]:
    """Return an observation as JSON without what differs between equal episodes: ports."""
    canonical: dict[str, Any] = _canonical(observation.model_dump(mode="json"))
    return canonical


def _canonical(value: Any, field: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item, field) for item in value]
    if isinstance(value, float) and field in PLACES:
        return round(value, 1)
    return PORT.sub(r"\1:PORT", value) if isinstance(value, str) else value


def first_difference(recorded: Any, replayed: Any) -> tuple[str, Any, Any] | None:
    """Return path and values of the first difference of two JSON values; ``None`` if equal."""
    return next(_differences(recorded, replayed, ""), None)


def _differences(recorded: Any, replayed: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for key in [*recorded, *(key for key in replayed if key not in recorded)]:
            yield from _differences(recorded.get(key), replayed.get(key), f"{path}.{key}" if path else key)
    elif isinstance(recorded, list) and isinstance(replayed, list):
        for index, (one, other) in enumerate(zip(recorded, replayed, strict=False)):
            yield from _differences(one, other, f"{path}[{index}]")
        if len(recorded) != len(replayed):
            yield f"length of {path}", len(recorded), len(replayed)
    elif recorded != replayed:
        yield path, recorded, replayed
