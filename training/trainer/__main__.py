"""Runs one rank of the trainer: ``python -m training.trainer --run-dir DIR``.

The rank is alone or started by ``torch.distributed.run``. This module allows one trainer per run,
ends it with its owner, and writes every refusal to ``trainer/error.json``.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO

from envs.types import DiskError, RollwrightError, TrainingError
from training.ledger.disk import disk_error
from training.ledger.store import RunStore, write_json
from training.quiet import quiet_model_libraries
from training.trainer.control.link import LinkToOwner
from training.trainer.control.processes import start_watchdog
from training.trainer.resume import remove_temporary_folders
from training.trainer.spec import read_spec

LOCK_SECONDS = 30.0
"""Limit of the wait for the lock of a trainer that is just ending."""


def main() -> int:
    """Run one rank to its end and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.trainer")
    parser.add_argument("--run-dir", type=Path, required=True)
    store = RunStore(parser.parse_args().run_dir.resolve())
    signal.signal(signal.SIGTERM, _terminate)
    try:
        spec = read_spec(store)
        start_watchdog()
        link = LinkToOwner(spec.owner, spec.token, f"rank {_rank()}") if spec.owner else None
        lock = take_lock(store.trainer_path / "lock", LOCK_SECONDS) if _rank() == 0 else None
        if lock:
            remove_temporary_folders(store)
        quiet_model_libraries()
        # Imported here: torch and its dependencies take 15 s, and a wrong config or a second
        # trainer should be reported at once.
        from training.trainer.loop import run_trainer

        run_trainer(store, spec, link)
        del lock
    except RollwrightError as error:
        # A refusal, which a restart would only repeat.
        _report(store, error)
        return 1
    except Exception as error:
        # A crash. Its traceback is printed here, because `os._exit` ends the process before the
        # interpreter would print it.
        _report(store, disk_error(error, store.trainer_path))
        return 1
    return 0


def _report(store: RunStore, error: RollwrightError | None) -> None:
    """Write ``error.json`` for the owner and print the traceback to the log.

    A full disk may refuse both.
    """
    with suppress(DiskError):  # the owner then finds out that the folder cannot be written to
        if error is not None:
            write_json(store.trainer_path / "error.json", {"type": type(error).__name__, "message": str(error)})
    with suppress(OSError):
        traceback.print_exc()


def take_lock(path: Path, seconds: float) -> IO[str]:
    """Take the run's trainer lock, held until the file is closed or the process ends.

    Raises:
        TrainingError: Another trainer still holds it after ``seconds``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+")  # noqa: SIM115 - stays open for the life of the process
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise TrainingError(
                    f"another trainer (pid {holder}) holds {path}; end it, or wait until it is done"
                ) from None
            time.sleep(0.2)
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _terminate(signum: int, frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the log's disk is full, as error.json says already
                stream.flush()
        # Not a return: destroying process groups waits for ranks that may be gone, and all files
        # are already in place.
        os._exit(code)
