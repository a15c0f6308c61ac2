"""Finds the Chromium executable and makes its command line."""

from __future__ import annotations

import logging
import os
import shutil
from functools import cache
from pathlib import Path

from envs.egress import chromium_args
from envs.settle import FONTS_CONF, PROCESS_ARGS
from envs.types import BrowserError

logger = logging.getLogger(__name__)

CHROMIUM_VARIABLE = "ROLLWRIGHT_CHROMIUM"
"""Environment variable that names the executable; it wins over everything that is found."""

CANDIDATES = (
    # Debian's raw binaries. The wrappers in /usr/bin add a shell process (its pid is not Chromium's) and, for the full
    # browser, extra flags. The shell opens pages six times faster and needs a third of the memory.
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/chromium",
)

AUTOMATION_ARGS = (
    # Run without a window, over a pipe.
    "--headless",
    "--remote-debugging-pipe=cbor",
    "--no-startup-window",
    "--disable-dev-shm-usage",
    # Its own sandbox needs rights that containers do not give; a task's pages are kept in by the egress proxy.
    "--no-sandbox",
    # No first-run pages, updates, accounts or reports.
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
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
    # Frames of other origins live in their page's process: one snapshot reads them, one clock stops them.
    "IsolateOrigins",
    "site-per-process",
    "Translate",
    # With it every navigation, also of one site, gets a new frame host, and steps that come after take a seventh more switches between threads.
    "RenderDocument",
)

LAUNCH_ARGS = (
    "--disable-site-isolation-trials",
    *PROCESS_ARGS,
    # There is none; without the flag a GPU process is started only to fail.
    "--disable-gpu",
    # Equal pages must give equal screenshots: the same text on every machine, and no tile that is drawn over what was
    # there before (a repainted rounded corner differs from a newly painted one).
    "--disable-partial-raster",
    "--disable-checker-imaging",  # nor a frame without its pictures, which come with a later one
    "--disable-lcd-text",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
)
"""For `launch_args`, which adds the way out."""

ELF = b"\x7fELF"
"""What a program of Linux begins with."""

FONTS = Path("/usr/share/fonts")
"""Where the pinned fonts are looked for; see ``envs/settle/fonts.conf``."""


@cache
def environment() -> dict[str, str]:
    """Environment variables of a Chromium.

    The same fonts by name on every machine that has Liberation's.
    """
    if any(FONTS.rglob("LiberationSans-Regular.*")):
        return {"FONTCONFIG_FILE": str(FONTS_CONF)}
    logger.warning(
        "no Liberation fonts under %s: pages are drawn with this machine's own, and screenshots differ from other machines'",
        FONTS,
    )
    return {}


def launch_args(proxy: str) -> tuple[str, ...]:
    """Command-line arguments of a Chromium that uses ``proxy``.

    ``proxy`` is the address of a listener of the egress proxy.
    """
    return (*LAUNCH_ARGS, *chromium_args(proxy, disable_features=DISABLED_FEATURES))


def prompt_frames(executable: Path) -> tuple[str, ...]:
    """Arguments that make pages with a held clock draw frames at once.

    At once: as soon as a frame is complete, not a tick of the display later.

    The compositor of a page reads the held clock, by which the deadline of a frame is over when it has begun (`envs.settle.clock`). With
    ``--run-all-compositor-stages-before-draw`` it waits for no deadline. The process that draws may not have that flag: it then does not wait for the
    request to copy a frame, which comes a tick later. For renderers alone there is a prefix of their command line, split at blanks: the
    executable and the flag. The executable then follows once more, as an argument that nobody reads.

    It costs: such a page asks for 60 frames a second also while it stands (0.8 % of a core), has 8 MB more, since its process is not forked, and is
    never idle, so its idle callbacks have to be timers (``determinism.js``).

    Nothing for a path with a blank, and for a script that starts Chromium, which may do more than that.
    """
    if not _is_program(executable) or any(map(str.isspace, str(executable))):
        return ()
    return (f"--renderer-cmd-prefix={executable} --run-all-compositor-stages-before-draw",)


def _is_program(executable: Path) -> bool:
    """Whether it is no script.

    Returns false where it cannot be read, which who starts it says.
    """
    try:
        with executable.open("rb") as file:
            return file.read(len(ELF)) == ELF
    except OSError:
        return False


def find_chromium() -> Path:
    """The Chromium executable.

    ``ROLLWRIGHT_CHROMIUM``, the raw headless shell, full Chromium, then what Playwright downloaded.

    Raises:
        BrowserError: none is installed, or the variable names something that is no executable file.
    """
    named = os.environ.get(CHROMIUM_VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or not Path(named).is_file():
            raise BrowserError(f"{CHROMIUM_VARIABLE}={named} is no executable file; name a Chromium or unset it")
        return Path(named)
    on_path = (shutil.which(name) for name in ("chromium-headless-shell", "chromium", "chromium-browser"))
    for candidate in (*CANDIDATES, *on_path, *_downloaded()):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise BrowserError("no Chromium found; run `make setup`, or set " + CHROMIUM_VARIABLE + " to its executable")


def _downloaded() -> list[str]:
    """Executables of ``playwright install``, newest last version first; headless shells before full browsers."""
    root = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    shells = sorted(root.glob("chromium_headless_shell-*/*/*headless*shell"), reverse=True)
    full = sorted(root.glob("chromium-*/chrome-linux*/chrome"), reverse=True)
    return [str(path) for path in (*shells, *full)]
