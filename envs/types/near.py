"""Suggests similar names for a mistyped one, in error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_NEAR = 3
"""Most names that one error suggests."""


def near(name: object, names: Iterable[object], *, cutoff: float = 0.6) -> str:
    """Return ``did you mean curriculum? ``, or an empty text. Case and hyphens do not matter.

    Args:
        cutoff: Least similarity of a name, 0 to 1 (`difflib`). Higher where similarity alone is the
            error.
    """
    known = {_plain(candidate): str(candidate) for candidate in names}
    matches = difflib.get_close_matches(_plain(name), known, n=MAX_NEAR, cutoff=cutoff)
    return f"did you mean {' or '.join(known[match] for match in matches)}? " if matches else ""


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_")
