"""Fixtures of the tests of ``tasks_lib``: a made-up run's folder, and a real browser to look at
pages with."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from envs.browser.process.chromium import find_chromium


def _load_synthetic_run() -> Any:
    """``--import-mode=importlib`` puts no test folder on the path, so the module is loaded by its
    file."""
    name = "rollwright_tests_synthetic_run"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("synthetic_run.py"))
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def synthetic() -> Any:
    """The module ``synthetic_run``: its constants (``HOSTILE``, ``KINDS``)."""
    return _load_synthetic_run()


@pytest.fixture(scope="session")
def written_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``written_run(iterations=6, …)``: a run with these options, which is written once."""

    @cache
    def write(**options: Any) -> Any:
        return _load_synthetic_run().SyntheticRun(tmp_path_factory.mktemp("written") / "run", **options)

    return write


@pytest.fixture
def make_run(tmp_path: Path, written_run: Callable[..., Any]) -> Callable[..., Any]:
    """``make_run(name="run-1", iterations=6, every=3, finished=True)`` gives a run's folder;
    ``.root`` is its path."""

    def make(name: str = "run-1", **options: Any) -> Any:
        return written_run(**options).copied(tmp_path / "runs" / name)

    return make


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Headless Chromium for looking at pages (Playwright's synchronous interface)."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_chromium()))
        yield browser
        browser.close()
