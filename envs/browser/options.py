"""Options of devices, browser contexts and pools, and a pool's counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from envs.browser.operations import CORES
from envs.browser.process.connection import ConnectionTimes
from envs.cdp import Cdp
from envs.settle import BUDGET_MS
from envs.types import PageDate, Record

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


PageWork = Literal["reset", "restart", "navigate", "execute", "settle", "observe", "screenshot"]
"""Work that a session does for its episode; `WebSession.tell` is called when it begins."""

Inspect = Callable[[Cdp], Awaitable[Any]]
"""Reads something of a shown tab by its session, and changes nothing."""


class Device(Record):
    """The device that pages are shown on, instead of each site's viewport."""

    width: int = Field(ge=100, le=4096, examples=[390], description="Viewport width in CSS pixels.")
    height: int = Field(ge=100, le=4096, examples=[844], description="Viewport height in CSS pixels.")
    scale: float = Field(1.0, ge=0.25, le=4, description="Device pixels per CSS pixel.")
    """Screenshots have the viewport's size times this."""
    mobile: bool = Field(False, description="Meta viewport, overlay scroll bars, touch events.")
    user_agent: str = Field("", description="User agent; empty: the browser's.")

    @property
    def viewport(self) -> tuple[int, int]:
        """Width and height in CSS pixels."""
        return self.width, self.height


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
    network: bool = False
    """Keep the requests (`NetworkLog`)."""
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


class BrowserOptions(Record):
    """Options of browsers that a configuration has too, as keys of ``rollout``."""

    step_deadline: float = Field(60.0, gt=0, le=600, description="Seconds for each reset and step of a page.")
    """Real seconds. A step takes 0.05 s alone; a dozen first page loads on a machine whose
    file cache was cold took over 20."""
    browsers: int = Field(1, ge=1, le=64, description="Chromium processes of a worker.")
    """They share the contexts."""
    browser_per_episode: bool = Field(False, description="A Chromium for each episode.")
    """It is given to no other one and ended with it. That isolates fully, and costs 0.2 s and
    100 MB each."""
    browser_address: str = Field(
        "", description="Debugging address of a running browser to use (ws://… or http://host:port)."
    )
    """It is used instead of own ones and left running."""
    device: Device | None = Field(None, description="Device to emulate; null: the site's viewport.")
    page_seed: int | None = Field(
        None, ge=0, lt=2**32, description="Seed of the pages' Math.random and crypto.getRandomValues; null: random."
    )
    page_date: PageDate = Field(
        "",
        examples=["2024-05-01"],
        description="Time of the pages' clocks when an episode begins (UTC); a task's date wins. Empty: now on live sites, 2023-11-14 on others.",
    )
    signals: bool = Field(False, description="Record the browser's signals with each step.")
    record_network: bool = Field(
        False, description="Record an episode's requests with their bodies, as HTTP archive entries."
    )
    """They are in `WebSession.network` and `envs.WebEnv.har`, and in the trajectory for grading."""

    @model_validator(mode="after")
    def _address_has_one_browser(self) -> Self:
        if self.browser_address and self.browser_per_episode:
            raise ValueError(
                "browser_address: an external browser cannot be started for each episode; "
                "choose browser_address or browser_per_episode"
            )
        return self


class PoolOptions(BrowserOptions):
    """Options of a pool: sizes, deadlines, and when browsers and contexts are replaced."""

    max_sessions: int = Field(16, ge=1)
    """Leases at a time; more wait."""
    lease_deadline: float | None = Field(None, gt=0)
    """Real seconds that a lease waits for another one's end; ``None``: as long as it takes."""
    settle_budget_ms: float = BUDGET_MS
    """Virtual milliseconds that a page gets after an action."""
    virtual_time: bool | None = None
    """Hold the pages' clocks; else they are waited for until they are quiet. Not given: hold those
    of own browsers only, whose processes were started for it."""
    recycle_after: int = Field(RECYCLE_AFTER, ge=1)
    retire_after: int = Field(RETIRE_AFTER, ge=1)
    most_memory_mb: float = Field(MAX_MEMORY_MB, gt=0)
    prewarm: int = Field(0, ge=0)
    """Contexts that are kept ready beyond ``max_sessions``, so that an episode on a site that keeps
    state does not wait for its own. Runs keep some ready; beside a single episode they would be
    opened in vain."""
    marks: bool = False
    """Draw the elements' numbers on the screenshots (set of marks)."""
    screenshots: bool = True
    """Make them; without, ``PageStep.screenshot`` is empty and a step costs a fifth."""
    inspect: Inspect | None = None
    """Called at each look, where a lease names no other; its result is ``PageStep.inspected``."""
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
