"""The page after a reset or a step of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from envs.settle import Settled
from envs.types import ErrorCode, Observation, StopReason
from envs.types.signals import PageSignals

if TYPE_CHECKING:
    from envs.actions import ActionError


@dataclass(frozen=True)
class PageStep:
    """The page after a reset or a step, and what the step did."""

    observation: Observation
    screenshot: bytes
    """JPEG of the viewport, or ``b""`` at the end on a site that then shows nothing of the task."""
    done: bool
    """The page declared the end, or the policy did (``stop``)."""
    page_facts: dict[str, float | bool | str] = field(default_factory=dict)
    """Facts that the page declares (MiniWoB: raw_reward, done, reason)."""
    point: tuple[float, float] | None = None
    """Point to which the mouse went, in CSS pixels; ``None`` if the page was not touched."""
    error: ErrorCode | None = None
    """Reason why the action was not carried out; ``observation.error`` has the message."""
    stop: StopReason | None = None
    """The policy's own end: ``answer`` or ``terminated``."""
    said: str = ""
    """Its answer, or its status."""
    settled: Settled | None = None
    """Result of the wait for the page; ``None`` if it was not touched."""
    earlier_notices: tuple[str, ...] = ()
    """Notices since the last look at the page that an earlier observation has shown to the policy.
    For the grading they hold until the next look."""
    hash_dom: Callable[[], str] = str
    """Makes `dom_hash`, which few steps need."""
    status: int | None = None
    """HTTP status of the document."""
    unreachable: bool = False
    """Nothing answers at its address: the status is the egress proxy's own."""
    site_problem: str = ""
    """Reason why the site's server could not answer: it has ended, or reached a limit."""
    frames: tuple[str, ...] = ()
    """Addresses of the frames that can be seen."""
    signals: PageSignals | None = None
    """Browser signals of the step, when they are asked for."""

    inspected: Any = None
    """Result of `PoolOptions.inspect`; ``None`` without it, and where nothing could be read."""

    list_nodes: Callable[[], Mapping[int, int]] = dict
    """Makes DevTools' ``backendNodeId`` of each element by its number."""

    @property
    def dom_hash(self) -> str:
        """Hash of structure, text and form state; empty where nothing was read."""
        return self.hash_dom()

    def unchanged(self, error: ActionError | None = None) -> PageStep:
        """Return the step after an action that was refused or did not touch the page.

        Effects of the last step are not reported again.
        """
        before = self.observation
        news = {"error": error.line() if error else None, "notices": ()}
        return replace(
            self,
            observation=before.model_copy(update=news),
            earlier_notices=(*self.earlier_notices, *before.notices),
            point=None,
            error=error.code if error else None,
            settled=None,
            signals=None,
        )
