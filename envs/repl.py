"""Act on a page from a terminal: numbered elements, actions as text, the screenshot in a file.

    python -m envs.repl miniwob/click-test --seed 7
    python -m envs.repl https://example.com --instruction "Look around."

Each line is an action in any form that a policy may write: ``click [3]``, ``type [1] "Ann"``,
``scroll [down]``, ``{"action": "goto", "url": "https://example.com/next"}``. Further commands:

    :reset [SEED]     begin another episode
    :screenshot FILE  save the screenshot there (JPEG)
    :save FILE        save the trajectory of the episode that ended (python -m flows.replay)
    :quit             end; so does Ctrl-D
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from envs import StepRenderer, StepResult, SyncWebEnv, open_env_sync
from envs.types import RollwrightError

SCREENSHOT = Path("screenshot.jpg")
"""File that has the newest screenshot, where no other one is named."""


def main(arguments: Sequence[str], read: Callable[[str], str] = input) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.repl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", help="id of a task (envs.list_tasks), live/HOST or an address")
    parser.add_argument("--seed", type=int, help="seed of the page")
    parser.add_argument("--instruction", help="instruction of a live page")
    parser.add_argument("--horizon", type=int, default=1000, help="actions of an episode (default: %(default)s)")
    parser.add_argument("--screenshot", type=Path, default=SCREENSHOT, metavar="FILE", help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        with open_env_sync(
            options.task, seed=options.seed, instruction=options.instruction, horizon=options.horizon, repeats=0
        ) as env:
            Terminal(env, options.screenshot).run(read)
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


class Terminal:
    """Reads lines and shows pages until the end."""

    def __init__(self, env: SyncWebEnv, screenshot: Path) -> None:
        self._env = env
        self._screenshot = screenshot
        self._renderer = StepRenderer(prompt="plain")
        self._step: StepResult | None = None

    def run(self, read: Callable[[str], str]) -> None:
        """Read lines from ``read`` (`input`) until ``:quit`` or the end of the input."""
        self._show(self._env.reset())
        while True:
            try:
                line = read("> ").strip()
            except (EOFError, KeyboardInterrupt):
                return
            if line == ":quit":
                return
            if line:
                try:
                    self._do(line)
                except (RollwrightError, OSError, ValueError) as error:
                    print(f"error: {error}")

    def _do(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        if command == ":reset":
            self._show(self._env.reset(int(argument) if argument else None))
        elif command == ":screenshot":
            assert self._step is not None
            Path(argument or self._screenshot).write_bytes(self._step.screenshot)
        elif command == ":save":
            if self._env.trajectory is None:
                raise ValueError("the episode is not over yet; end it with answer or terminate")
            Path(argument or "episode.json").write_text(self._env.trajectory.model_dump_json())
        elif command.startswith(":"):
            raise ValueError(f"no command {command}; there are :reset, :screenshot, :save and :quit")
        else:
            self._show(self._env.step(line))

    def _show(self, step: StepResult) -> None:
        self._step = step
        if step.screenshot:
            self._screenshot.write_bytes(step.screenshot)
        print(self._renderer.text(step))
        if step.done:
            print("`:reset` begins another episode.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
