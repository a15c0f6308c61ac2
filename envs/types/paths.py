"""The type of path arguments: a text or any path object."""

from __future__ import annotations

import os
from typing import TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]
"""``"tasks.jsonl"`` or ``Path("tasks.jsonl")``."""
