from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from .vision_models import make_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``tiny_checkpoint(family)``: the folder of a tiny random checkpoint, made once."""
    return cache(lambda family: make_checkpoint(family, tmp_path_factory.mktemp(family) / "checkpoint"))
