"""Run by the Python of `benchmarks.browsergym`'s environment: one BrowserGym environment that
clicks. Protocol: `benchmarks.rates`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from typing import Any

import gymnasium
import psutil
from browsergym.core.env import BrowserEnv
from browsergym.core.task import OpenEndedTask
from playwright.sync_api import BrowserType

WARM_STEPS = 2
ONLY_LOOPBACK = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1, EXCLUDE localhost"


def main() -> None:
    """Measure, and print the two lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("executable")
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--slow-mo", type=int, required=True)
    parser.add_argument("--delay", type=float, required=True)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # that slow_mo overrides the task's
    _launch_with(options.executable)
    environment = BrowserEnv(
        OpenEndedTask,
        {"start_url": options.url, "goal": "Click."},
        slow_mo=options.slow_mo,
        pre_observation_delay=options.delay,
    )
    environment.reset(seed=0)
    bids = [button.get_attribute("bid") for button in environment.page.locator("button").all()]
    for number in range(WARM_STEPS):
        _step(environment, bids[number])
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    print(json.dumps(_measured(environment, bids, options.seconds)), flush=True)
    environment.close()


def _measured(environment: BrowserEnv, bids: list[str], seconds: float) -> dict[str, float]:
    cpu, started, steps, failed = _cpu_seconds(), time.perf_counter(), 0, 0
    while time.perf_counter() < started + seconds:
        failed += not _step(environment, bids[(WARM_STEPS + steps) % len(bids)])
        steps += 1
    seconds, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
    clicks = environment.page.evaluate("Number(document.querySelector('output').value)")
    assert clicks >= steps - failed, f"{clicks} clicks met a button in {steps} steps"
    return {"steps": steps, "failed": failed, "seconds": seconds, "cpu_seconds": cpu}


def _step(environment: gymnasium.Env[Any, Any], bid: str) -> bool:
    """Click and observe; whether the click was made: BrowserGym gives it half a second, which a
    loaded machine may exceed."""
    observation = environment.step(f'click("{bid}")')[0]
    error = observation["last_action_error"]
    assert not error or error.startswith("TimeoutError"), error
    assert observation["screenshot"].shape == (720, 1280, 3)
    assert observation["axtree_object"]["nodes"] and observation["dom_object"]["documents"]
    return not error


def _launch_with(executable: str) -> None:
    """Every launch takes this Chromium: its chat window has no parameter for it."""
    launch = BrowserType.launch

    def patched(self: BrowserType, **options: Any) -> Any:
        options["args"] = [*(options.get("args") or []), ONLY_LOOPBACK]
        return launch(self, **{"executable_path": executable, **options})

    BrowserType.launch = patched  # type: ignore[method-assign]


def _cpu_seconds() -> float:
    """User and system seconds of this process and everything below it that lives: driver, both
    browsers."""
    process = psutil.Process()
    times = [member.cpu_times() for member in [process, *process.children(recursive=True)]]
    return sum(time.user + time.system for time in times)


if __name__ == "__main__":
    main()
