"""Browsers of workers: recorded in a run's folder, compared, and held against the pinned one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from envs.browser.process.pinned import PINNED_PRODUCT
from envs.types import BrowserError
from tasks_lib.folder.frozen_config import read_frozen, write_frozen
from tasks_lib.folder.values import record_browsers
from tasks_lib.preflight import chromium
from tasks_lib.processes.browser_versions import browser_version
from training.ledger.store import RunStore

OLD, NEW = "HeadlessChrome/1.0 @a", "HeadlessChrome/2.0 @b"


class Workers:
    """Stands in for a Dask client whose workers have these browsers."""

    def __init__(self, **browsers: str | Exception) -> None:
        self._browsers = browsers

    async def run(self, _function: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        assert on_error == "return"
        return {worker: self._browsers[worker] for worker in workers}

    def sync(self, function: Any) -> Any:
        return asyncio.run(function())


def compared(**browsers: str | Exception) -> list[str]:
    return [str(each) for each in chromium.compare_workers(Workers(**browsers), list(browsers))]  # type: ignore[arg-type]


def test_workers_with_different_browsers_are_a_fault_that_names_them() -> None:
    assert compared(a=OLD, b=OLD) == compared() == compared(a=OLD, b=BrowserError("none")) == []
    (fault,) = compared(a=OLD, b=NEW, c=OLD)
    assert fault.startswith(f"fault: Chromium: workers have different browsers: {OLD} on a, c; {NEW} on b; run ")


def test_config_json_has_the_browsers_of_all_workers(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    write_frozen(store.config_path, {"config": {"a": 1}, "versions": {"torch": "2"}, "git_commit": None})
    record_browsers(store, [NEW, OLD, NEW])
    document = {"config": {"a": 1}, "versions": {"torch": "2", "chromium": f"{OLD}, {NEW}"}, "git_commit": None}
    assert read_frozen(store.config_path) == document


async def test_the_version_is_that_of_the_browser_that_starts_here() -> None:
    product, revision = (await browser_version()).split()
    assert "Chrome/" in product and len(revision.removeprefix("@")) == 40


@pytest.mark.parametrize("product", [PINNED_PRODUCT, "HeadlessChrome/1.0"])
def test_another_browser_than_the_pinned_one_is_noted(product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def version(_executable: Path) -> tuple[str, str]:
        return product, "@a"

    monkeypatch.setattr("envs.browser.chromium_version", version)
    found = {each.severity: each for each in chromium.check_chromium()}
    assert found.keys() == ({"ok"} if product == PINNED_PRODUCT else {"ok", "note"})
