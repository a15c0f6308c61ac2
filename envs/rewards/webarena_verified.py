"""Grades WebArena-Verified's tasks by its own evaluators, in an environment of their own.

::

    grade = VerifiedReward({"gitlab": "http://127.0.0.1:8023"})
    async with make_pool(record_network=True) as pool:
        async with open_env(task, reward=grade, pool=pool, live=…) as env: …

The package's pins exclude ours, so its evaluators run in ``.venv-frameworks/webarena-verified``
(``scripts/setup_frameworks webarena-verified``). They read the policy's answer, a JSON object, and
the episode's requests.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from envs.rewards.functions import Episode
from envs.types import ConfigError

PYTHON = Path(__file__).parents[2] / ".venv-frameworks" / "webarena-verified" / "bin" / "python"
"""Python that has the package, where `scripts/setup_frameworks` puts it."""

SECONDS = 120.0
"""Real seconds for one grading: the package takes 4 s to import, and more on a busy machine."""

EVALUATE = """
import json, sys
from webarena_verified.api import WebArenaVerified
from webarena_verified.types.config import WebArenaVerifiedConfig
given = json.load(sys.stdin)
environments = {name: {"urls": [url]} for name, url in given["addresses"].items()}
benchmark = WebArenaVerified(config=WebArenaVerifiedConfig(environments=environments))
result = benchmark.evaluate_task(task_id=given["task_id"], agent_response=given["answer"], network_trace=given["requests"])
json.dump(result.model_dump(mode="json"), open(given["out"], "w"))
"""
"""Program that the package's Python runs; the result goes to a file, since the package logs."""


class VerifiedReward:
    """Reward function of WebArena-Verified's tasks: its evaluators' score, 0 to 1."""

    def __init__(self, addresses: Mapping[str, str], python: Path | None = None) -> None:
        """
        Args:
            addresses: Addresses of the benchmark's sites by name, as in ``LiveOptions.addresses``.
            python: Python with the package; that of `scripts/setup_frameworks` if not given.

        Raises:
            ConfigError: There is no such Python.
        """
        self._python = python or PYTHON
        if not self._python.exists():
            raise ConfigError(
                f"WebArena-Verified: {self._python} is not there; run scripts/setup_frameworks webarena-verified"
            )
        self._addresses = {f"__{name.upper()}__": address for name, address in addresses.items()}
        self.result: dict[str, Any] = {}
        """The evaluators' whole result of the last episode."""

    async def __call__(self, episode: Episode) -> float | None:
        """Grade an episode; ``None`` where the evaluators failed.

        Raises:
            ConfigError: Its requests were not recorded, or it is no task of the benchmark.
        """
        if episode.requests is None:
            raise ConfigError("WebArena-Verified reads requests: give make_pool(record_network=True)")
        number = episode.task.task_id.rpartition("/")[2]
        if not number.isdecimal():
            raise ConfigError(f"{episode.task.task_id} is no task of WebArena-Verified: its id ends with no number")
        self.result = await self._evaluate(int(number), read_answer(episode.answer), list(episode.requests))
        return None if self.result["status"] == "error" else float(self.result["score"])

    async def _evaluate(self, number: int, answer: object, requests: list[dict[str, Any]]) -> dict[str, Any]:
        out_read, out_write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                self._python,
                "-c",
                EVALUATE,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(out_write,),
            )
        finally:
            os.close(out_write)
        with os.fdopen(out_read, "rb") as out:
            given = {
                "task_id": number,
                "answer": answer,
                "requests": requests,
                "addresses": self._addresses,
                "out": f"/dev/fd/{out_write}",
            }
            reading = asyncio.create_task(asyncio.to_thread(out.read))
            try:
                async with asyncio.timeout(SECONDS):
                    _, log = await process.communicate(orjson.dumps(given))
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
                written = await reading
        if process.returncode:
            raise ConfigError(f"WebArena-Verified's evaluators failed: {log.decode(errors='replace').strip()[-500:]}")
        result: dict[str, Any] = orjson.loads(written)
        return result


def read_answer(text: str) -> object:
    """Return the object that an answer holds; the text itself if it holds none."""
    try:
        return json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return text
