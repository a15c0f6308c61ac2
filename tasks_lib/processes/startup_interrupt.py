"""Handles Ctrl-C while a command imports modules: one line, exit status 130.

This module must import nothing of ours or Prefect's: it acts before they are imported.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

NOTHING_HAS_BEGUN = "interrupted: nothing has begun"
STATUS = 130
"""Exit status of a command that Ctrl-C ended, as in shells: 128 + SIGINT."""


def exit_on_interrupt() -> None:
    """End the process at Ctrl-C, until ``raise_on_interrupt``.

    Used while there is nothing to tidy up. An exception would not do: libraries catch it or print
    it, from callbacks of the import system for instance. Where Ctrl-C is ignored, as in a shell's
    background job, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Make Ctrl-C raise ``KeyboardInterrupt`` again, as in plain Python."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, f"{NOTHING_HAS_BEGUN}\n".encode())  # not print, which may have been interrupted
    os._exit(STATUS)
