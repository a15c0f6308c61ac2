"""Starts a template and leaves nothing of it behind.

The worker holds the other end of a pipe. When that closes, however the worker ended, the supervisor
kills the template and everything below it, and removes the folder of the instances. If the
supervisor itself is killed, the kernel kills the template, and with it the process namespace of all
instances; without namespaces the keeper of each instance ends it. Mounts live in a namespace that
ends with them.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from . import kernel
from .processes import kill_descendants
from .template import run_template


def main() -> None:
    """Run ``supervisor CONFIG``; ``CONFIG`` is JSON.

    ``folder`` is that of the instances, ``life`` and ``control`` are open files: the pipe that ends
    with the worker, and the socket on which the template is asked.
    """
    config: dict[str, Any] = json.loads(sys.argv[1])
    del sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.adopt_orphans()
    config["missing"] = "" if config["isolate"] else "it was not asked for"
    if config["isolate"]:
        try:
            kernel.unshare(kernel.NEW_PROCESSES)
        except OSError as error:
            config["missing"] = str(error)
    gate_read, gate_write = os.pipe()
    template = os.fork()
    if template == 0:
        os.close(config["life"])
        os.close(gate_write)
        kernel.die_with_parent()
        if not os.read(gate_read, 1):  # the supervisor ended before the signal was set
            os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        run_template(config)
        os._exit(0)
    os.close(config["control"])
    os.close(gate_read)
    os.write(gate_write, b"1")
    _watch(template, config["life"])
    kill_descendants()
    shutil.rmtree(Path(config["folder"]), ignore_errors=True)  # the worker removes it too
    os._exit(0)


def _watch(template: int, life: int) -> None:
    """Return when the worker is gone or the template has ended; reap orphans until then."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        readable, _, _ = select.select([life, woken], [], [])
        if life in readable:
            return
        os.read(woken, 512)
        while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            if ended == template:
                return
