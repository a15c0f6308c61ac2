"""The one exception tree.

::

    RollwrightError
    ├── ConfigError      a parameter, preset or flag
    ├── TaskError        a task file or row
    ├── BrowserError     Chromium, its connection or a page (retried, never a reward)
    │   ├── PageScriptError  JavaScript that was run in a page threw
    │   └── CapacityError    no session became free in time
    ├── SiteError        a site that cannot be served or reset
    ├── JudgeError       a reward that could not be computed
    ├── PolicyError      a checkpoint, or what it cannot do
    │   └── ProbeError       a server's log-probs are not those of the checkpoint
    ├── EngineError      an inference engine that fails for the moment (waited for, then abstains)
    ├── TrainingError    the trainer process
    └── StorageError     the run's folder, journal or blobs
        ├── DiskError        a file cannot be written: disk full, quota, not permitted
        └── ReadError        a file's disk or network fails for the moment (retried)
"""

from __future__ import annotations

import copy
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class RollwrightError(Exception):
    """Base of all errors that Rollwright raises on purpose.

    The message names the thing, what was expected and the fix.
    """


class ConfigError(RollwrightError):
    """A parameter, preset or flag is unknown or out of range."""


class TaskError(RollwrightError):
    """A task file or row is malformed."""


class BrowserError(RollwrightError):
    """Chromium, its connection or a page failed.

    The episode is an abstention and is retried; it never becomes a reward.
    """


class PageScriptError(BrowserError):
    """JavaScript of a check failed in the page: what it looks for is not there.

    Graded, not retried.
    """


class CapacityError(BrowserError):
    """All sessions are in use, and none became free in time."""


class SiteError(RollwrightError):
    """A site cannot be served, reset or reached."""


class JudgeError(RollwrightError):
    """A reward could not be computed; the episode is an abstention."""


class PolicyError(RollwrightError):
    """A checkpoint cannot be used, or cannot do what was asked of it. Asking again does not
    help."""


class ProbeError(PolicyError):
    """A server does not give the log-probs of the version that was published to it."""


class EngineError(RollwrightError):
    """The inference engine failed for the moment: dead, restarting, out of time. It is asked again;
    then the episode is an abstention."""


class TrainingError(RollwrightError):
    """The trainer process failed or refused a batch."""


class StorageError(RollwrightError):
    """The run's folder, journal or a blob is missing, torn or of another version."""


class DiskError(StorageError):
    """A file cannot be written: the disk is full, over its quota, read-only, failing, or not ours.
    Never retried."""


class ReadError(StorageError):
    """A file cannot be read: its disk, or the network to it, fails.

    What it holds is not in question, so it is retried.
    """


def again(error: E) -> E:
    """A new exception like a stored one, to be raised in its place.

    An exception that is raised twice collects the tracebacks of all who raised it, and each
    overwrites its cause. The cause of the stored one is kept.
    """
    new = copy.copy(error)
    new.__cause__, new.__suppress_context__ = error.__cause__, error.__suppress_context__
    return new.with_traceback(None)
