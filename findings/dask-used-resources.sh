#!/usr/bin/env bash
# Dask's scheduler counts a worker's resources as unused, and later as less than unused, after Worker.set_resources.
#
# Packages:  distributed 2026.8.0. Python 3.11 or newer.
# Input:     one worker with one `browser`, which a task holds. While it runs, the worker calls
#            `set_resources(site=1)`, the documented way to offer another resource later.
# Expected:  WorkerState.used_resources says browser 1 while the task runs, and 0 after it.
# Seen:      0 from that call on, and -1 after the task's end, for as long as the worker lives. (The call sets the
#            counts of all resources to 0; the task's end takes 1 away.)
# So:        offer all resources before the first task, or read who uses what from the tasks under way
#            (`WorkerState.processing`), not from `used_resources`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet distributed==2026.8.0 2>/dev/null
venv/bin/python - 2>/dev/null <<'PYTHON'
import asyncio
import sys

import distributed
from distributed import Client, Event, Scheduler, Worker


def hold() -> None:
    Event("may end").wait()


async def main() -> list[float]:
    seen = []
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, host="127.0.0.1", resources={"browser": 1}) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        state = scheduler.workers[worker.address]
        task = client.submit(hold, resources={"browser": 1})
        while not state.processing:
            await asyncio.sleep(0.05)
        seen.append(state.used_resources["browser"])
        await worker.set_resources(site=1)
        while "site" not in state.resources:
            await asyncio.sleep(0.05)
        seen.append(state.used_resources["browser"])
        await Event("may end", client=client).set()
        await task
        while state.processing:
            await asyncio.sleep(0.05)
        seen.append(state.used_resources["browser"])
    return seen


seen = asyncio.run(main())
print("distributed", distributed.__version__)
for when, expected, got in zip(("the task runs", "it runs, after set_resources", "it has ended"), (1, 1, 0), seen, strict=True):
    print(f"browsers used while {when}: expected {expected}, seen {got:g}")
same = seen == [1, 0, -1]
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
