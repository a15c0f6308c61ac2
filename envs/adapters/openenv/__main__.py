"""``python -m envs.adapters.openenv``: serve web tasks to clients of OpenEnv."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import uvicorn

from envs.adapters.openenv import make_app
from envs.garbage import collect_seldom
from envs.prompts import StepRenderer
from envs.prompts.user_turn import ObservationMode
from envs.server.sessions import LEASE_SECONDS
from envs.tasks import load_tasks


def read_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m envs.adapters.openenv", description="An OpenEnv server.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; there are no keys")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--task", default="miniwob/click-test", help="task of a reset that names none")
    parser.add_argument("--tasks", type=Path, help="task file with further tasks")
    parser.add_argument("--mode", choices=get_args(ObservationMode), default="text")
    parser.add_argument("--no-screenshot", action="store_true", help="text alone, with --mode text")
    parser.add_argument("--max-sessions", type=int, default=16)
    parser.add_argument("--lease-seconds", type=float, default=LEASE_SECONDS)
    parser.add_argument("--live", action="store_true", help="open addresses that clients name")
    return parser.parse_args(arguments)


def main() -> None:
    """Serve until the process is ended."""
    given = read_arguments()
    app = make_app(
        task=given.task,
        tasks=load_tasks(given.tasks) if given.tasks else (),
        renderer=StepRenderer(mode=given.mode, screenshot=not given.no_screenshot),
        max_sessions=given.max_sessions,
        lease_seconds=given.lease_seconds,
        live=given.live,
    )
    collect_seldom()
    uvicorn.run(app, host=given.host, port=given.port, access_log=False, ws_per_message_deflate=False)


if __name__ == "__main__":
    main()
