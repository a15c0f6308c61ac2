"""What a worker has written is waited for: a network file system may show it late."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envs.types import RollwrightError
from tasks_lib.rollouts import shards
from tasks_lib.rollouts.shards import RunningShard
from training.ledger.store import RunStore, atomic_write_bytes


def ended(folder: Path) -> tuple[RunningShard, Path]:
    """A shard of one group whose task has ended."""
    store = RunStore(folder)
    request = SimpleNamespace(groups=[SimpleNamespace(group_id="i000000-g0000")])
    shard = RunningShard(cast(Any, request), cast(Any, SimpleNamespace(result=lambda: "report")), store, 0.0)
    return shard, store.group_path("i000000-g0000")


def test_a_record_that_shows_late_is_waited_for(tmp_path: Path) -> None:
    shard, path = ended(tmp_path)
    path.parent.mkdir(parents=True)
    threading.Timer(0.4, atomic_write_bytes, (path, b"{}")).start()
    assert cast(Any, shard.wait()) == "report" and path.exists()


def test_one_that_never_shows_is_named_with_the_question_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "VISIBLE_SECONDS", 0.2)
    shard, _ = ended(tmp_path)
    with pytest.raises(
        RollwrightError, match=r"groups \['i000000-g0000'\] .* is \S+ the same folder on every worker\?"
    ):
        shard.wait()
