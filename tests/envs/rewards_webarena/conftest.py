"""What the tests of WebArena's evaluators share."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from envs.rewards.webarena import placed

from .configs import ADDRESSES, FILE, Config, config


@pytest.fixture(scope="module")
def tasks() -> dict[int, Config]:
    rows = {raw["task_id"]: config(raw) for raw in json.loads(FILE.read_text())}
    return {number: replace(row, eval=placed(row.eval, ADDRESSES)) for number, row in rows.items()}
