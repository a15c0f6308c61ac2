"""The benchmark's own 812 configurations (``config_files/test.raw.json``), which are no part of
this repository.

ROLLWRIGHT_WEBARENA_CONFIGS=…/test.raw.json python -m pytest
tests/envs/rewards_webarena/test_public_configs.py
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from envs.rewards.webarena import KNOWN, lacking, read_eval
from envs.rewards.webarena.helpers import read_helper_call
from envs.tasks import TaskProblem
from envs.tasks.imports import export_tasks, import_tasks
from envs.tasks.rows import read_row
from envs.types.webarena import EvalType, PageCheck, WebArenaEval, placed

VARIABLE = "ROLLWRIGHT_WEBARENA_CONFIGS"
SITES = ("shopping", "shopping_admin", "gitlab", "reddit", "map", "wikipedia", "homepage")
ADDRESSES = {name: f"http://{name.replace('_', '-')}.test" for name in SITES}
LOGINS = {"shopping_site_admin": "/etc/shop-admin.json"}

pytestmark = pytest.mark.skipif(
    VARIABLE not in os.environ,
    reason=f"{VARIABLE} names no file; it is config_files/test.raw.json of github.com/web-arena-x/webarena",
)


@pytest.fixture(scope="module")
def path() -> Path:
    return Path(os.environ[VARIABLE])


@pytest.fixture(scope="module")
def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def looks(evaluators: WebArenaEval) -> tuple[PageCheck, ...]:
    return evaluators.program_html if EvalType.PROGRAM_HTML in evaluators.eval_types else ()


def test_all_are_read_and_imported(path: Path, rows: list[dict[str, Any]]) -> None:
    problems: list[TaskProblem] = []
    items = list(import_tasks("webarena", path, on_problem=problems.append))
    assert len(rows) == len(items) == 812 and problems == []
    assert [row["task_id"] for row in rows] == list(range(812))
    for row, item in zip(rows, items, strict=True):
        assert item.task.evaluators == read_eval(row["eval"], row) and item.task.instruction == row["intent"]
        assert read_row(item.task.model_dump_json()) == (item.task, [])
    types = Counter(each for item in items if item.task.evaluators for each in item.task.evaluators.eval_types)
    assert types == Counter(each for row in rows for each in row["eval"]["eval_types"])


def test_every_helper_is_known_and_all_addresses_are_sites(path: Path, rows: list[dict[str, Any]]) -> None:
    called: Counter[str] = Counter()
    for item in import_tasks("webarena", path):
        assert item.task.evaluators is not None and item.task.site in SITES
        evaluators = placed(item.task.evaluators, ADDRESSES)
        assert not re.search(r"__[A-Z]", evaluators.model_dump_json()), item.task.task_id
        for check in looks(evaluators):
            assert lacking(check, ADDRESSES, LOGINS) == "", item.task.task_id
            programs = (check.url, check.locator)
            called.update(read_helper_call(each)[0] for each in programs if each.startswith("func:"))
    assert set(called) == KNOWN - {"get_query_text"}  # VisualWebArena's
    wanted = re.findall(r'"func:(\w+)\(', json.dumps([row["eval"].get("program_html") for row in rows]))
    assert called == Counter(wanted)


def test_they_are_exported_as_they_were(path: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    export_tasks(tmp_path / "again.json", import_tasks("webarena", path))
    assert json.loads((tmp_path / "again.json").read_text(encoding="utf-8")) == rows
