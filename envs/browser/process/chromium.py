"""Finds Chromium, makes its command line, and starts and stops its processes.

Messages go over a pipe, to which no other process can connect. When our process dies, the pipe
closes and Chromium ends by itself.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import psutil

from envs.browser.process.pinned import PINNED_FOLDER, environment
from envs.cdp.cbor import CBOR
from envs.cdp.client import CdpClient, ConnectionLost
from envs.cdp.pipe import Pipe
from envs.cdp.wire import MAX_MESSAGE
from envs.egress import EGRESS_ARGS, chromium_args
from envs.settle import PROCESS_ARGS
from envs.types import BrowserError

logger = logging.getLogger(__name__)

CHROMIUM_VARIABLE = "ROLLWRIGHT_CHROMIUM"
"""Environment variable that names the executable; it wins over everything that is found."""

CANDIDATES = (
    # Debian's raw binaries. The wrappers in /usr/bin add a shell process (its pid is not
    # Chromium's) and, for the full browser, extra flags. The shell opens pages six times faster and
    # needs a third of the memory.
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/chromium",
)

AUTOMATION_ARGS = (
    # Run without a window, over a pipe.
    "--headless",
    "--remote-debugging-pipe=cbor",
    "--no-startup-window",
    "--disable-dev-shm-usage",
    # Its own sandbox needs rights that containers do not give; a task's pages are kept in by the
    # egress proxy.
    "--no-sandbox",
    # No questions and no accounts of the browser's own; what it would ask the network for is in
    # `EGRESS_ARGS`.
    "--no-default-browser-check",
    "--disable-client-side-phishing-detection",
    "--password-store=basic",
    "--use-mock-keychain",
    # Pages behave the same whether they are shown or not.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-back-forward-cache",
    # Nothing of the browser's own stops a page or a call.
    "--disable-hang-monitor",
    "--disable-ipc-flooding-protection",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    # Pages look and sound the same, and have a mouse.
    "--hide-scrollbars",
    "--mute-audio",
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
)
"""Flags of every automated Chromium; `LAUNCH_ARGS` and the egress flags come after them."""

DISABLED_FEATURES = (
    # Frames of other origins live in their page's process: one snapshot reads them, one clock stops
    # them.
    "IsolateOrigins",
    "site-per-process",
    "Translate",
    # With it every navigation, also of one site, gets a new frame host, and steps that come after
    # take a seventh more switches between threads.
    "RenderDocument",
    # They measure navigations within a document. With a held clock a check of theirs fails on some
    # pages, which ends the page's process (153.0.8010.0).
    "SoftNavigationDetection",
    "SoftNavigationHeuristics",
)

LAUNCH_ARGS = (
    "--disable-site-isolation-trials",
    *PROCESS_ARGS,
    # There is none; without the flag a GPU process is started only to fail.
    "--disable-gpu",
    # Equal pages must give equal screenshots: the same text on every machine, and no tile that is
    # drawn over what was there before (a repainted rounded corner differs from a newly painted
    # one).
    "--disable-partial-raster",
    # Keys scroll at once: a held clock gives the frames of an animation one or two steps later.
    "--disable-smooth-scrolling",
    "--disable-checker-imaging",  # nor a frame without its pictures, which come with a later one
    "--disable-lcd-text",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
)
"""Flags of pools' Chromiums; `launch_args` adds those of the egress proxy."""

ELF = b"\x7fELF"
"""First bytes of a Linux program."""

START_SECONDS = 30.0
"""Real seconds for Chromium to answer (0.13 s when idle)."""

STOP_SECONDS = 5.0
"""Real seconds that killed processes may take to die (0.01 s when idle)."""

DEAD_POLL_SECONDS = 0.005
"""Seconds between looks at killed processes."""

PIPE_BYTES = 2**20
"""A snapshot and a screenshot at once; by itself a pipe holds 64 kB."""

LOWEST_DESCRIPTOR = 10
"""Lowest descriptor of our pipes; a child gets 0 to 4."""


def launch_args(proxy: str) -> tuple[str, ...]:
    """Command-line arguments of a Chromium that uses ``proxy``.

    ``proxy`` is the address of a listener of the egress proxy.
    """
    return (*LAUNCH_ARGS, *chromium_args(proxy, disable_features=DISABLED_FEATURES))


def prompt_frames(executable: Path) -> tuple[str, ...]:
    """Return arguments that make pages with a held clock draw complete frames at once, not a tick
    later.

    The compositor of a page reads the held clock, by which the deadline of a frame is over when it
    has begun (`envs.settle.virtual_time`). With ``--run-all-compositor-stages-before-draw`` it
    waits for no deadline. The process that draws may not have that flag: it then does not wait for
    the request to copy a frame, which comes a tick later. For renderers alone there is a prefix of
    their command line, split at blanks: the executable and the flag. The executable then follows
    once more, as an argument that is not read.

    It costs: such a page asks for 60 frames a second also while it stands (0.8 % of a core), has 8
    MB more, since its process is not forked, and is never idle, so its idle callbacks have to be
    timers (``determinism.js``).

    There are none for a path with a blank, and for a script that starts Chromium, which may do more
    than that.
    """
    if not _is_program(executable) or any(map(str.isspace, str(executable))):
        return ()
    return (f"--renderer-cmd-prefix={executable} --run-all-compositor-stages-before-draw",)


def _is_program(executable: Path) -> bool:
    """True for a program, False for a script.

    False also where it cannot be read: starting it then says why.
    """
    try:
        with executable.open("rb") as file:
            return file.read(len(ELF)) == ELF
    except OSError:
        return False


def find_chromium() -> Path:
    """Find the Chromium executable.

    The order is ``ROLLWRIGHT_CHROMIUM``, the pinned one, Debian's headless shell, full Chromium,
    Playwright's downloads.

    Raises:
        BrowserError: None is installed, or the variable names no executable file.
    """
    named = os.environ.get(CHROMIUM_VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or not Path(named).is_file():
            raise BrowserError(f"{CHROMIUM_VARIABLE}={named} is no executable file; name a Chromium or unset it")
        return Path(named)
    on_path = (shutil.which(name) for name in ("chromium-headless-shell", "chromium", "chromium-browser"))
    for candidate in (PINNED_FOLDER / "chromium", *CANDIDATES, *on_path, *_downloaded()):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise BrowserError("no Chromium found; run `make setup`, or set " + CHROMIUM_VARIABLE + " to its executable")


def _downloaded() -> list[str]:
    """List the executables of ``playwright install``: headless shells first, newest version
    first."""
    root = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    shells = sorted(root.glob("chromium_headless_shell-*/*/*headless*shell"), reverse=True)
    full = sorted(root.glob("chromium-*/chrome-linux*/chrome"), reverse=True)
    return [str(path) for path in (*shells, *full)]


class ChromiumProcess:
    """One Chromium process tree that we started. Made by `start`."""

    def __init__(self, process: psutil.Process, profile: Path, pipe: Pipe) -> None:
        self._process = process
        self._profile = profile
        self._pipe = pipe
        self._numbers = count(1)
        self.version = ("", "")
        """Product and revision, once it has answered."""

    @classmethod
    async def start(
        cls, executable: Path, args: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> ChromiumProcess:
        """Start Chromium and wait until it answers. ``environment`` is added to our own.

        Raises:
            BrowserError: It ended, or did not answer in time; the message has its last line of
                output.
        """
        profile = Path(tempfile.mkdtemp(prefix="rollwright-chromium-"))
        arguments = [*AUTOMATION_ARGS, *args, f"--user-data-dir={profile}"]
        try:
            pid, (reading, writing) = _spawn(executable, arguments, {**os.environ, **(environment or {})}, profile)
        except BaseException:
            shutil.rmtree(profile, ignore_errors=True)
            raise
        pipe = Pipe(reading, writing, max_size=MAX_MESSAGE)
        process = cls(psutil.Process(pid), profile, pipe)
        try:
            await pipe.open()
            await process._answer(executable)
        except BaseException:
            await process.stop()
            raise
        return process

    def client(self) -> CdpClient:
        """Return a client of the browser.

        There is one pipe: a new client takes it from the one before.
        """
        return CdpClient(self._pipe, CBOR, self._numbers)

    @property
    def pid(self) -> int:
        """Process id of the browser process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return _is_alive(self._process)

    def family(self) -> list[psutil.Process]:
        """The browser process and its children, the browser first; empty when it is gone."""
        try:
            return [self._process, *self._process.children(recursive=True)] if self.running else []
        except psutil.NoSuchProcess:
            return []

    def memory_mb(self) -> float:
        """Return the proportional set size of all processes in MiB (shared pages count once).

        Resident size where the system has no proportional one.
        """
        return sum(_memory(process) for process in self.family()) / 2**20

    async def stop(self) -> None:
        """Kill Chromium and its children, and remove its profile."""
        family = self.family()
        self._pipe.close()
        await asyncio.to_thread(_end, family or [self._process])
        # A child may still write while it dies; what is left then is a few files in the temporary
        # folder.
        await asyncio.to_thread(shutil.rmtree, self._profile, True)

    async def _answer(self, executable: Path) -> None:
        client = self.client()
        try:
            async with asyncio.timeout(START_SECONDS):
                version = await client.call("Browser.getVersion", None, None)
            self.version = str(version["product"]), str(version["revision"])
        except TimeoutError:
            raise BrowserError(
                f"{executable} did not start: it did not answer within {START_SECONDS:g} s{self._last_output()}"
            ) from None
        except ConnectionLost as error:
            raise BrowserError(f"{executable} did not start: {error}{self._last_output()}") from error
        finally:
            client.close()

    def _last_output(self) -> str:
        lines = (self._profile / "log").read_text(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


async def chromium_version(executable: Path) -> tuple[str, str]:
    """Start a Chromium as a pool does, ask it its product and revision, and stop it.

    ``("HeadlessChrome/140.0.7339.80", "@3f1cfd…")``.

    Raises:
        BrowserError: The same errors as `ChromiumProcess.start`.
    """
    process = await ChromiumProcess.start(executable, (*LAUNCH_ARGS, *EGRESS_ARGS), environment())
    await process.stop()
    return process.version


def _spawn(
    executable: Path, args: Sequence[str], environment: Mapping[str, str], profile: Path
) -> tuple[int, tuple[int, int]]:
    """Start the process; return its id and our ends of the pipe (to read from, to write to)."""
    try:
        with ExitStack() as kept, ExitStack() as theirs:  # each is closed also where the next one cannot be opened
            to_chromium, from_chromium = _pipe(theirs, kept), _pipe(kept, theirs)
            log = os.open(profile / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
            theirs.callback(os.close, log)
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            theirs.callback(os.close, null)
            # Chromium's debugging pipe is on descriptors 3 and 4.
            places = [(null, 0), (null, 1), (log, 2), (to_chromium[0], 3), (from_chromium[1], 4)]
            pid = os.posix_spawn(
                executable,
                [str(executable), *args],
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, ours, place) for ours, place in places],
                setpgroup=0,  # Ctrl-C is for us: what is under way is broken off by who began it
            )
            kept.pop_all()
    except OSError as error:
        raise BrowserError(f"{executable} did not start: {error}") from error
    return pid, (from_chromium[0], to_chromium[1])


def _pipe(*closed_by: ExitStack) -> tuple[int, int]:
    """Make a pipe and return its reading and writing ends.

    Both descriptors are above those that a child gets, so that none overwrites another.

    Args:
        closed_by: Stacks that close the reading end and the writing end.
    """
    ends = os.pipe()
    try:
        with suppress(
            PermissionError
        ):  # a user may have so many bytes in pipes; a smaller one is filled and read in turns
            fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        moved = []
        for end, stack in zip(ends, closed_by, strict=True):
            moved.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR))
            stack.callback(os.close, moved[-1])
    finally:
        for end in ends:
            os.close(end)
    return moved[0], moved[1]


def _end(family: list[psutil.Process]) -> None:
    """Kill the processes, the browser first, and wait until they are dead.

    The profile is thrown away, so there is nothing to save; an orderly end takes a second. Dead
    children of the browser are removed by the system's first process, some seconds later on some.
    """
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue  # it ended with its browser
    given_up = time.monotonic() + STOP_SECONDS
    psutil.wait_procs(family[:1], timeout=STOP_SECONDS)  # the browser is our child: only we can remove it
    while any(map(_is_alive, family)) and time.monotonic() < given_up:
        time.sleep(DEAD_POLL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _memory(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
        return int(getattr(full, "pss", 0) or full.rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0  # it ended while we looked
