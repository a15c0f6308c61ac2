"""Imports VisualWebArena: ``test_raw.json`` of its wheel, or the files of its repository.

The repository's files number their tasks from 0 each, so their ids have the file's name too
(``visualwebarena/classifieds-7``). The pictures of a request (``image``) become the task's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from envs.tasks.imports.webarena import WebArena, WebArenaRow


class VisualWebArenaRow(WebArenaRow):
    """One configuration of a task."""

    kept = WebArenaRow.kept | {"comments", "viewport_size", "reference_url"}

    image: str | list[str] | None = None


class VisualWebArena(WebArena):
    """The 910 tasks of three sites."""

    name = "visualwebarena"
    model = VisualWebArenaRow
    wheel_files = "visualwebarena/test_raw.json"

    def fields_in(self, row: WebArenaRow, file: Path) -> dict[str, Any]:
        """Return the fields of the task; the name of its file is a part of its id."""
        assert isinstance(row, VisualWebArenaRow)
        named = re.fullmatch(r"test_(\w+)\.raw", file.stem)
        task_id = f"{named[1]}-{row.task_id}" if named else row.task_id
        images = (row.image,) if isinstance(row.image, str) else tuple(row.image or ())
        return {**self.fields(row), "task_id": task_id, "images": images}
