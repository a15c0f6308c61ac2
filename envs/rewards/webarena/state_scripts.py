"""Runs REAL's graders: scripts of the package agisdk that read a state and print a verdict.

::

    passed = await grade_state("eval_omnizon_13.py", state)

Each runs in a process of its own, as in the package: Python's standard library is all that it has.
The package takes every output without the word SUCCESS for a failed task. Here an error, a script
that prints neither word, and one that does not end give no verdict.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from envs.types import ConfigError

FOLDER = Path("REAL", "browsergym", "webclones", "v2", "eval_scripts")
"""Folder of the scripts in the package."""
INSTALL = "pip install --no-deps agisdk==0.3.5"
SECONDS = 30.0
"""Real seconds for one script, as in the package."""
MAX_SHOWN = 160
"""Characters of a script's error that are shown."""


class NoVerdictError(Exception):
    """A script that gives no verdict on its task."""


def lacking_script(name: str) -> str:
    """Name what a script needs and this process does not have; empty if nothing."""
    if (script := _path(name)) is None:
        return f"the package agisdk, where the browsers run: {INSTALL}"
    if not script.is_file():
        return f"the script {name} in the package agisdk, which has none of this name: {INSTALL}"
    return "" if script.stat().st_size else f"a script that grades: {name} of the package agisdk is empty"


async def grade_state(name: str, state: object) -> bool:
    """Return the verdict of a script on a state.

    Args:
        name: File name of the script.
        state: The state that the site shows at the end.

    Raises:
        ConfigError: The script is not installed.
        NoVerdictError: The state is no object or is empty, or the script gave no verdict.
    """
    script, lacking = _path(name), lacking_script(name)
    if script is None or lacking:
        raise ConfigError(f"checks of a site's state need {lacking}")
    if not isinstance(state, dict) or not state:
        raise NoVerdictError(f"{name}: the site shows no state; expected a JSON object that is not empty")
    with TemporaryDirectory(prefix="rollwright-real-") as folder:
        file = Path(folder, "state.json")
        file.write_bytes(orjson.dumps(state))
        output, errors = await _run(script, file)
    if "SUCCESS" in output.upper():
        return True
    if "FAIL" in output.upper():
        return False
    reason = (errors.strip().splitlines() or output.strip().splitlines() or ["it printed nothing"])[-1]
    raise NoVerdictError(f"{name} gave no verdict: {reason[:MAX_SHOWN]}")


def _path(name: str) -> Path | None:
    package = importlib.util.find_spec("agisdk")
    locations = package.submodule_search_locations if package else None
    return Path(locations[0], FOLDER, name) if locations else None


async def _run(script: Path, file: Path) -> tuple[str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-X", "utf8", str(script), str(file)),
        cwd=file.parent,
        env={},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise NoVerdictError(f"{script.name} did not end within {SECONDS:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace"), errors.decode(errors="replace")
