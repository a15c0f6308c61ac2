"""The page after a reset or a step of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from envs.settle import Settled
from envs.types import ErrorCode, Observation, StopReason
from envs.types.signals import PageSignals


@dataclass(frozen=True)
class PageStep:
    """The page after a reset or a step, and what the step did."""

    observation: Observation
    screenshot: bytes
    """JPEG of the viewport, or ``b""`` at the end on a site that then shows nothing of the task."""
    done: bool
    """The page declared the end, or the policy did (``stop``)."""
    page_facts: dict[str, float | bool | str] = field(default_factory=dict)
    """What the page declares (MiniWoB: raw_reward, done, reason)."""
    point: tuple[float, float] | None = None
    """Where the mouse went, in CSS pixels; ``None`` if the page was not touched."""
    error: ErrorCode | None = None
    """Why the action was not carried out; the whole message is ``observation.error``."""
    stop: StopReason | None = None
    """The policy's own end: ``answer`` or ``terminated``."""
    said: str = ""
    """Its answer, or its status."""
    settled: Settled | None = None
    """How the page came to rest; ``None`` if it was not touched."""
    earlier_notices: tuple[str, ...] = ()
    """Notices since the last look at the page that an earlier observation has shown to the policy. For the grading they hold until
    the next look."""
    hash_dom: Callable[[], str] = str
    """Makes `dom_hash`, which few steps need."""
    status: int | None = None
    """HTTP status of the document."""
    frames: tuple[str, ...] = ()
    """Addresses of the frames that can be seen."""
    signals: PageSignals | None = None
    """What the browser says of the step, when it is asked for."""

    inspected: Any = None
    """What `PoolOptions.inspect` gave; ``None`` without it, and where nothing could be read."""

    @property
    def dom_hash(self) -> str:
        """Of structure, text and form state; empty where nothing was read."""
        return self.hash_dom()
