"""What differs between two trees of settings, key by key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(now: Any, then: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Dotted key, value now and value then, as YAML writes plain ones. Keys that only one of them has are left out.

    >>> list(differences({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "c": 2}}))
    [('a.b', '1', 'null')]
    """
    if isinstance(now, dict) and isinstance(then, dict):
        for key in sorted(now.keys() & then.keys()):
            yield from differences(now[key], then[key], f"{path}.{key}" if path else key)
    elif now != then:
        yield path, _plain(now), _plain(then)


def _plain(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
