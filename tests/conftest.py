"""Fixtures that every part uses: small values made by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from envs.types import StopReason
from training.records.groups import EpisodeSummary, GroupRecord, StepShape

# An example that is slow on a loaded machine is no failure. The examples are the same in every run,
# so that a change is what fails; `--hypothesis-profile=explore` draws new ones.
settings.register_profile("rollwright", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile("rollwright")


def make_group(group_id: str, scores: Sequence[float | None], kind: str = "click-test", steps: int = 1) -> GroupRecord:
    """The record of a group with these rewards; ``None`` is an abstention."""
    episodes = tuple(
        EpisodeSummary(
            episode_id=f"{group_id}-s{sample:02d}-a0",
            seed=5,
            sample=sample,
            score=score,
            passed=bool(score),
            steps=steps,
            response_tokens=4 * steps,
            stop_reason=StopReason.BROWSER_ERROR if score is None else StopReason.DONE,
            abstained="the browser died" if score is None else None,
            shapes=tuple(StepShape(3, 4, step) for step in range(steps)),
            sha256="",
        )
        for sample, score in enumerate(scores)
    )
    return GroupRecord(
        group_id=group_id, token="", task_id=f"miniwob/{kind}", kind=kind, policy_version=0, episodes=episodes
    )


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as everything here does."""
    return "asyncio"


@pytest.fixture
def synthetic_group() -> Callable[..., GroupRecord]:
    """``synthetic_group(group_id, scores, kind=…, steps=…)``."""
    return make_group


@pytest.fixture(scope="session")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Path]]:
    """``small_disk(size)`` mounts a file system of so many bytes; its folder. Skips where that is
    not allowed."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        if os.geteuid() or not shutil.which("mount"):
            pytest.skip("only root can mount a small file system")
        folder = tmp_path_factory.mktemp("disk")
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the minutes that each package's tests took, fixtures included; with two lanes they add
    up to twice the wall time."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds["/".join(report.nodeid.split("::")[0].split("/")[:2])] += report.duration
    if sum(seconds.values()) > 60:
        terminalreporter.section("minutes of each package")
        for package, spent in sorted(seconds.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{spent / 60:6.1f}  {package}")
