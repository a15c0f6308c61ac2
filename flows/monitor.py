"""Watch a run while it goes: a cell for each environment, queues, engine, trainer, browsers.

    python -m flows.monitor --run runs/quickstart-seed0
    python -m flows.monitor --run /shared/runs/miniwob-7b --host 0.0.0.0 --token-file token.txt

It only reads, and may be started and ended at any time; the run does not notice. The browser of
runs (flows.view) is at /runs of the same address. Elsewhere than on this machine it needs a token,
which a reader gives once as ?token=. Ends with Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from envs.types import ConfigError, StorageError
from tasks_lib.config import resolve_path
from tasks_lib.monitor.browse import browser_of
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource, find_run
from tasks_lib.monitor.run_figures import RunFigures
from tasks_lib.monitor.serving import PageServer, add_options
from training.ledger.store import RunStore

PORT = 8710


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.monitor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, metavar="FOLDER", help="folder of the run")
    add_options(parser, PORT)
    options = parser.parse_args(arguments)
    try:
        store = find_run(resolve_path(options.run))
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(PageServer.of(options), store))
    except (ConfigError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(server: PageServer, store: RunStore) -> None:
    """Serve until the process is interrupted."""
    monitor = LiveMonitor(FolderSource(store), RunFigures(store))
    routes = [*monitor.routes(), *browser_of(store.root.parent).routes()]
    async with server.serving(server.application(routes, monitor.polling), monitor.end) as address:
        print(f"{address} shows the run {store.root.name}; Ctrl-C ends it", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
