"""Watch a run while it goes: a cell for each environment, queues, engine, trainer, browsers.

    python -m flows.monitor --run runs/quickstart-seed0
    python -m flows.monitor --scheduler tcp://10.0.0.5:8786
    python -m flows.monitor --run /shared/runs/miniwob-7b --host 0.0.0.0 --token-file token.txt

It may be started and ended at any time; the run does not notice. A run's folder shows states; its
Dask scheduler also shows each episode as it runs. The browser of runs (flows.view) is at /runs of
the same address, if the folder is given. Elsewhere than on this machine it needs a token, which a
reader gives once as ?token=; with it, flow runs can be approved and cancelled. Ends with Ctrl-C.
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
from tasks_lib.monitor.followed_run import open_monitor
from tasks_lib.monitor.live_source import find_run
from tasks_lib.monitor.serving import PageServer, add_options
from training.ledger.store import RunStore

PORT = 8710


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.monitor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="folder of the run")
    parser.add_argument("--scheduler", metavar="ADDRESS", default="", help="address of the run's Dask scheduler")
    add_options(parser, PORT)
    options = parser.parse_args(arguments)
    if not options.run and not options.scheduler:
        parser.error("give --run FOLDER, --scheduler ADDRESS, or both")
    try:
        store = find_run(resolve_path(options.run)) if options.run else None
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(PageServer.of(options), store, options.scheduler))
    except (ConfigError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(server: PageServer, store: RunStore | None, scheduler: str) -> None:
    """Serve until the process is interrupted."""
    root = None if store is None else store.root.parent
    routes = [] if root is None else browser_of(root).routes()
    with open_monitor(store, scheduler) as monitor:
        application = server.application([*monitor.routes(), *routes], monitor.polling, root)
        async with server.serving(application, monitor.end) as address:
            shown = f"the run {store.root.name}" if store is not None else f"the run of {scheduler}"
            print(f"{address} shows {shown}; Ctrl-C ends it", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
