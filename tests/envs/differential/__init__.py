"""Small pages on which ours and Playwright's actions are compared
(`tests.envs.test_differential`)."""

from __future__ import annotations

from tests.envs.differential import fields, more, pages, pointer
from tests.envs.differential.row import Row, Step

__all__ = ["ROWS", "Row", "Step"]

ROWS = (*fields.ROWS, *pointer.ROWS, *pages.ROWS, *more.ROWS)
