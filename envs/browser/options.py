"""Options of devices, browser contexts and pools, and a pool's counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.browser.dispatcher import CORES
from envs.browser.process.connection import ConnectionTimes
from envs.cdp import Cdp
from envs.settle import BUDGET_MS
from envs.types import BrowserError, read_date

STEP_DEADLINE = 60.0
"""Real seconds for a reset or a step. They take 0.05 s alone; a dozen first page loads on a machine
whose file cache was cold took over 20."""

RECYCLE_AFTER = 500
"""Episodes after which a context is closed: pages leak slowly, and opening one costs about what
four episodes cost."""

RETIRE_AFTER = 20_000
"""Episodes after which a Chromium is replaced: the browser process keeps a little of each
context."""

MAX_MEMORY_MB = 3000.0
"""Proportional memory at which a Chromium is replaced; it has 100 MB at first and about 20 MB for
each page."""

PROMPT_PER_CORE = 2
"""Sessions a core up to which it pays that frames are drawn at once. With one session on two cores
a step then takes 50 ms instead of 67, with four there are an eighth more steps; with eight, which
keep the cores busy anyway, 3 to 5 % fewer."""


@dataclass(frozen=True)
class Device:
    """The screen that a page is shown on."""

    viewport: tuple[int, int]
    """Width and height in CSS pixels."""
    scale: float = 1.0
    """Device pixels per CSS pixel. Screenshots have the viewport's size times this."""
    mobile: bool = False
    """Meta viewport, overlay scroll bars, touch events."""
    user_agent: str = ""
    """Empty: the browser's own."""


@dataclass(frozen=True)
class ContextOptions:
    """Options of a browser context."""

    owner: str
    """Name of the site that it is opened for."""
    device: Device
    style: str = ""
    """The site's style sheet for all pages."""
    proxy: str = ""
    """Address of the egress proxy's listener; empty for the browser's own way out."""
    downloads: Path | None = None
    """The episode's folder; ``None`` denies downloads."""
    seed: int | None = None
    """Seed of the pages' random numbers; ``None`` leaves them random."""
    signals: bool = False
    """Have the browser's signals read."""
    background: bool = False
    """Wait for the browser's stores (IndexedDB, caches) when pages settle."""
    virtual: bool = True
    """Hold the pages' clocks."""
    fields: bool = True
    """Read the states of fields when pages settle."""
    drawn: bool = True
    """Have pages drawn, for pictures."""


@dataclass
class PoolCounters:
    """Counters of a pool since it was made."""

    launches: int = 0
    """Chromium processes started; more than ``browsers`` means that some died or were replaced."""
    browsers_lost: int = 0
    """Chromium processes that went away by themselves, or would not be spoken to any more."""
    browsers_retired: int = 0
    """Replaced because of age or memory."""
    contexts_opened: int = 0
    contexts_recycled: int = 0
    """Closed because they were old."""
    contexts_broken: int = 0
    """Closed because something failed on them."""
    navigations: int = 0
    episodes: int = 0


@dataclass(frozen=True)
class PoolOptions:
    """Options of a pool: sizes, deadlines, and when browsers and contexts are replaced."""

    max_sessions: int = 16
    """Leases at a time; more wait."""
    browsers: int = 1
    """Chromium processes that share the contexts."""
    browser_per_episode: bool = False
    """A Chromium for each episode instead, given to no other one and ended with it. Isolates fully;
    costs 0.2 s and 100 MB each."""
    browser_address: str = ""
    """Debugging address of a browser that somebody else started; it is used instead of own ones and
    left running."""
    step_deadline: float = STEP_DEADLINE
    """Real seconds for each reset and step."""
    settle_budget_ms: float = BUDGET_MS
    """Virtual milliseconds that a page gets after an action."""
    virtual_time: bool | None = None
    """Hold the pages' clocks; else they are waited for until they are quiet. Not given: hold those
    of own browsers only, whose processes were started for it."""
    recycle_after: int = RECYCLE_AFTER
    retire_after: int = RETIRE_AFTER
    most_memory_mb: float = MAX_MEMORY_MB
    prewarm: int = 0
    """Contexts that are kept ready beyond ``max_sessions``, so that an episode on a site that keeps
    state does not wait for its own."""
    marks: bool = False
    """Draw the elements' numbers on the screenshots (set of marks)."""
    screenshots: bool = True
    """Make them; without, ``PageStep.screenshot`` is empty and a step costs a fifth."""
    signals: bool = False
    """Read the browser's signals after each step."""
    inspect: Callable[[Cdp], Awaitable[Any]] | None = None
    """Called with the shown tab's session at each look; what it gives is ``PageStep.inspected``. It
    only reads."""
    page_seed: int | None = None
    """Seed of the pages' ``Math.random`` and ``crypto``; ``None`` leaves them random."""
    page_date: str = ""
    """Date of the pages' clocks when an episode begins, written as `WebTask.date`, which wins.
    Empty means the real time on live sites and `EPOCH_SECONDS` on others."""
    device: Device | None = None
    """Screen of the pages; a plain one of the site's size if not given."""
    files: Path | None = None
    """Folder in which tasks' own folders of files (`WebTask.files`) lie; without it there is
    nothing to upload."""
    downloads: Path | None = None
    """Folder that downloads go to; ``None`` denies them."""
    executable: Path | None = None
    """Chromium; found by `find_chromium` if not given."""
    times: ConnectionTimes | None = None

    @property
    def holds_clocks(self) -> bool:
        """True if the pages' clocks are held."""
        return not self.browser_address if self.virtual_time is None else self.virtual_time

    @property
    def prompt_frames(self) -> bool:
        """True if pages draw a frame as soon as it is complete
        (`envs.browser.process.chromium.prompt_frames`)."""
        return self.screenshots and self.holds_clocks and self.max_sessions <= PROMPT_PER_CORE * CORES

    def __post_init__(self) -> None:
        least = {"max_sessions": 1, "browsers": 1, "recycle_after": 1, "retire_after": 1, "prewarm": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise BrowserError(f"{name} must be at least {bound}, not {getattr(self, name)}")
        if self.step_deadline <= 0 or self.most_memory_mb <= 0:
            raise BrowserError("step_deadline and most_memory_mb must be above 0")
        try:
            self.page_date and read_date(self.page_date)
        except ValueError as error:
            raise BrowserError(f"page_date: {error}") from error
        if self.browser_address and self.browser_per_episode:
            raise BrowserError(
                "an external browser cannot be started for each episode; choose browser_address or browser_per_episode"
            )
