"""Imports VisualWebArena: ``test_raw.json`` of its wheel, or the files of its repository.

The repository's files number their tasks from 0 each, so their ids have the file's name too
(``visualwebarena/classifieds-7``). Rows that need eyes are refused: those whose request has a
picture (``image``), and those that are graded by pictures of a page (``page_image_query``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from envs.tasks.imports.webarena import WebArena, WebArenaRow

PICTURES = "page_image_query"
"""Evaluator that asks a model about pictures of a page, or compares them with others."""


class VisualWebArenaRow(WebArenaRow):
    """One configuration of a task."""

    kept = WebArenaRow.kept | {"comments", "viewport_size", "reference_url"}


class VisualWebArena(WebArena):
    """The 910 tasks of three sites, of which those that need no eyes are imported."""

    name = "visualwebarena"
    model = VisualWebArenaRow
    wheel_files = "visualwebarena/test_raw.json"

    def fields_in(self, row: WebArenaRow, file: Path) -> dict[str, Any]:
        """Return the fields of the task; the name of its file is a part of its id."""
        if not (row.model_extra or {}).get("image") and PICTURES in row.eval.eval_types:
            raise ValueError(
                f"eval.eval_types: {PICTURES} looks at pictures of a page, which no reward here can; leave the row out"
            )
        named = re.fullmatch(r"test_(\w+)\.raw", file.stem)
        return {**self.fields(row), "task_id": f"{named[1]}-{row.task_id}" if named else row.task_id}
