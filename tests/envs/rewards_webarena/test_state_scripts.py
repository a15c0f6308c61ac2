"""Scripts that grade a state, in a package of ours that stands for agisdk."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from envs import ConfigError
from envs.rewards.webarena import state_scripts
from envs.rewards.webarena.state_scripts import NoVerdictError, grade_state

READS = "import json, sys\nstate = json.load(open(sys.argv[1]))\n"
SCRIPTS = {
    "lamp.py": f"{READS}print('SUCCESS' if state['order'] == 'Lámpara' else 'FAILURE: ' + state['order'])",
    "fails.py": f"{READS}print(state['cart'])",
    "silent.py": READS,
    "other.py": f"{READS}print('perhaps')",
    "empty.py": "",
    "sees.py": "import os\nprint('FAILURE' if 'SECRET' in os.environ else 'SUCCESS')",
    "endless.py": "import time\nwhile True: time.sleep(1)",
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "agisdk" / state_scripts.FOLDER
    folder.mkdir(parents=True)
    (tmp_path / "agisdk" / "__init__.py").write_text("raise ImportError('it is never imported')")
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("SECRET", "key")


@pytest.mark.parametrize(
    ("name", "order", "passed"),
    [("lamp.py", "Lámpara", True), ("lamp.py", "vase", False), ("sees.py", "", True)],
)
async def test_a_script_reads_the_state_and_says_the_verdict(name: str, order: str, passed: bool) -> None:
    assert await grade_state(name, {"order": order}) is passed


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("fails.py", {"order": "Lamp"}, "fails.py gave no verdict: KeyError: 'cart'"),
        ("silent.py", {"order": "Lamp"}, "silent.py gave no verdict: it printed nothing"),
        ("other.py", {"order": "Lamp"}, "other.py gave no verdict: perhaps"),
        ("sees.py", {}, "sees.py: the site shows no state; expected a JSON object that is not empty"),
        ("sees.py", None, "sees.py: the site shows no state"),
    ],
)
async def test_what_gives_no_verdict_is_no_failure(name: str, state: object, reason: str) -> None:
    with pytest.raises(NoVerdictError, match=reason):
        await grade_state(name, state)


async def test_a_script_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_scripts, "SECONDS", 0.5)
    with pytest.raises(NoVerdictError, match=r"endless\.py did not end within 0\.5 s"):
        await grade_state("endless.py", {"order": "Lamp"})
    assert not [one for one in psutil.Process().children() if "endless.py" in " ".join(one.cmdline())]


@pytest.mark.parametrize(("name", "reason"), [("absent.py", "has none of this name"), ("empty.py", "is empty")])
async def test_a_script_that_is_not_there_is_named(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"need .*{name}.*{reason}"):
        await grade_state(name, {"order": "Lamp"})
