"""Browse runs and their episodes in a browser: curves, differing keys, every episode step by step.

    python -m flows.view
    python -m flows.view --root /shared/runs --port 8711
    python -m flows.view --host 0.0.0.0 --token-file token.txt

It shows runs that go on as well. Elsewhere than on this machine it needs a token, which a reader
gives once as ?token=; with it, flow runs can be approved and cancelled. Ends with Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from envs.types import ConfigError
from tasks_lib.config import resolve_path
from tasks_lib.monitor.browse import browser_of
from tasks_lib.monitor.serving import PageServer, add_options

PORT = 8711


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.view", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path("runs"), metavar="FOLDER", help="folder of the runs")
    add_options(parser, PORT)
    options = parser.parse_args(arguments)
    root = resolve_path(options.root)
    try:
        if not root.is_dir():
            raise ConfigError(f"--root {root}: there is no such folder; name the folder of the runs")
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(PageServer.of(options), root))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(server: PageServer, root: Path) -> None:
    """Serve until the process is interrupted."""
    async with server.serving(server.application(browser_of(root).routes(), root=root)) as address:
        print(f"{address}/runs shows the runs in {root}; Ctrl-C ends it", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
