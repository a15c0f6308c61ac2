"""How Chromium is started: which of its processes wait for no deadline of a frame, and a Chromium
behind a script."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs.browser import PoolOptions, find_chromium
from envs.browser.operations import CORES
from envs.browser.process.chromium import _spawn, prompt_frames
from envs.types import BrowserError, Click, WebTask
from tests.builders import page_task

FLAG = "--run-all-compositor-stages-before-draw"
PAGE = "<button onclick=\"this.textContent = 'seen'\">go</button>"


def _told(pids: tuple[int, ...]) -> dict[str, bool]:
    """By the kind of process, whether it has the flag itself. Chromium's processes show their
    arguments as one, joined by blanks."""
    found = {}
    for pid in pids:
        words = [word for argument in psutil.Process(pid).cmdline() for word in argument.split()]
        kind = next((word.removeprefix("--type=") for word in words if word.startswith("--type=")), "browser")
        prefix = any(word.startswith("--renderer-cmd-prefix") for word in words)
        found[kind] = FLAG in words and not prefix
    return found


async def _step(pages: Any, task: WebTask, **options: Any) -> tuple[str, bytes, dict[str, bool]]:
    """What is on the page's button after a click, its picture, and who has the flag."""
    async with pages({"index.html": PAGE}, **options) as (pool, site), pool.lease(site) as session:
        await session.reset(task, 0)
        result = await session.step(Click(element=1))
        return result.observation.elements[0].text, result.screenshot, _told(pool.browser_pids())


async def test_pages_wait_for_no_deadline_and_the_process_that_draws_does(pages: Any) -> None:
    text, screenshot, told = await _step(pages, page_task("/index.html"), max_sessions=CORES)
    assert text == "seen" and screenshot
    assert told["renderer"]
    assert not told["gpu-process"] and not told["browser"]


@pytest.mark.parametrize(
    "options", [{"max_sessions": 4 * CORES}, {"max_sessions": 1, "screenshots": False}], ids=["many", "no pictures"]
)
async def test_where_it_does_not_pay_they_are_told_nothing(options: dict[str, Any], pages: Any) -> None:
    text, _, told = await _step(pages, page_task("/index.html"), **options)
    assert text == "seen" and not told["renderer"]


async def test_both_make_the_same_picture(pages: Any) -> None:
    task = page_task("/index.html")
    few, many = [await _step(pages, task, max_sessions=number) for number in (1, 4 * CORES)]
    assert few[1] == many[1] and few[2] != many[2]


async def test_a_chromium_behind_a_script_works_and_its_pages_are_told_nothing(pages: Any, tmp_path: Path) -> None:
    script = tmp_path / "chromium"
    script.write_text(f'#!/bin/sh\nexec {find_chromium()} "$@"\n')
    script.chmod(0o755)
    text, screenshot, told = await _step(pages, page_task("/index.html"), max_sessions=1, executable=script)
    assert text == "seen" and screenshot and not told["renderer"]


async def test_navigations_within_a_document_are_not_measured(pages: Any) -> None:
    """The measurement ends the process of some pages whose clock is held (153.0.8010.0)."""
    page = "<p>of</p><script>document.querySelector('p').textContent = PerformanceObserver.supportedEntryTypes</script>"
    async with pages({"index.html": page}) as (pool, site), pool.lease(site) as session:
        seen = (await session.reset(page_task("/index.html"), 0)).observation
    assert "navigation" in seen.text and "soft-navigation" not in seen.text


@pytest.mark.parametrize("name", ["a chromium", "chro\tmium"])
def test_a_path_with_a_blank_is_no_prefix(name: str, tmp_path: Path) -> None:
    executable = tmp_path / name
    shutil.copy("/bin/true", executable)
    assert prompt_frames(executable) == ()
    assert prompt_frames(executable.rename(tmp_path / "chromium"))
    assert prompt_frames(tmp_path / "none") == ()


def test_pages_whose_clock_runs_need_no_prompting() -> None:
    assert PoolOptions(max_sessions=1).prompt_frames
    assert not PoolOptions(max_sessions=1, virtual_time=False).prompt_frames


@pytest.mark.parametrize("allowed", range(9))
def test_a_start_that_runs_out_of_descriptors_leaves_none_open(
    allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails the n-th call that opens or copies a descriptor; one that gets through them all does
    not find its program."""
    calls = itertools.count()

    def limited(real: Any) -> Any:
        def call(*args: Any) -> Any:
            if args[1:2] != (fcntl.F_SETPIPE_SZ,) and next(calls) == allowed:
                raise OSError(errno.EMFILE, "Too many open files")
            return real(*args)

        return call

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        for module, name in ((os, "pipe"), (os, "open"), (fcntl, "fcntl")):
            patch.setattr(module, name, limited(getattr(module, name)))
        with pytest.raises(BrowserError, match="did not start"):
            _spawn(tmp_path / "no program", [], {}, tmp_path)
    assert set(os.listdir("/proc/self/fd")) == before


STOPS = """
import asyncio
from envs.browser.process import chromium

async def run():
    process = await chromium.ChromiumProcess.start(chromium.find_chromium(), chromium.LAUNCH_ARGS)
    family = process.family()
    await process.stop()
    assert len(family) > 2 and not process.running
    assert {member.status() for member in family[1:] if member.is_running()} <= {"zombie"}

chromium.STOP_SECONDS = 600
asyncio.run(run())
"""
PARENT = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: it gets its children's orphans, and removes none
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""


def test_a_chromium_is_stopped_when_it_is_dead_though_nobody_removes_it() -> None:
    subprocess.run([sys.executable, "-c", PARENT, STOPS], check=True, timeout=60)
