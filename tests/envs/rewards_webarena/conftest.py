"""What the tests of WebArena's evaluators share."""

from __future__ import annotations

import pytest

from envs.rewards.webarena import WebArenaTask, read_configs

from .configs import ADDRESSES, FILE


@pytest.fixture(scope="module")
def tasks() -> dict[int, WebArenaTask]:
    return {task.task_id: task for task in read_configs(FILE.read_text(), FILE.name, ADDRESSES)}
