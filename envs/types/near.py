"""Names that are like one that was mistyped, for errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_NEAR = 3
"""Names that one error offers."""


def near(name: object, names: Iterable[object], *, cutoff: float = 0.6) -> str:
    """``did you mean curriculum? ``, or nothing. Case and hyphens do not matter.

    Args:
        cutoff: Least likeness of a name, 0 to 1 (`difflib`). Higher where a likeness alone is the error.
    """
    known = {_plain(each): str(each) for each in names}
    found = difflib.get_close_matches(_plain(name), known, n=MAX_NEAR, cutoff=cutoff)
    return f"did you mean {' or '.join(known[each] for each in found)}? " if found else ""


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_")
