"""Ends child processes when their parent dies, whatever kills it."""

from __future__ import annotations

import os
import subprocess
import sys

_WATCH = "import os, signal, sys; sys.stdin.read(); os.kill(int(sys.argv[1]), signal.SIGTERM)"
"""Program that waits until its standard input is closed. The kernel closes it when our process
ends, killed or not."""


def end_with_parent(pid: int) -> None:
    """End process ``pid`` when this process is gone.

    Meant for children of libraries that do not look after their parent.
    """
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, False)
    subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCH, str(pid)],
        stdin=read_end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_end)
    # The write end stays open on purpose, for as long as this process lives.
