"""Browser signals of a page: paint, layout shifts, work, memory and failures.

A value that could not be measured is ``None`` and its reason is in ``absent``; zero always means
that zero was measured.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from envs.types.record import Record


class Trouble(StrEnum):
    """Kind of failure on a page; metrics use these values."""

    CONSOLE_ERROR = "console_error"
    """``console.error`` or a failed ``console.assert``."""
    EXCEPTION = "exception"
    """An exception or rejection that the page did not catch."""
    FAILED_REQUEST = "failed_request"
    """A request without a response: refused, reset, against CORS…"""
    HTTP_ERROR = "http_error"
    """A response of status 400 or more."""
    BLOCKED_REQUEST = "blocked_request"
    """A response of our proxy that says that the host is not allowed."""


class PageTrouble(Record):
    """One failure."""

    kind: Trouble
    text: str
    """Message, status or network error, shortened."""
    url: str = ""
    """URL of the request or script, shortened, without its query."""


class LayoutShift(Record):
    """One movement of what was already shown (https://wicg.github.io/layout-instability)."""

    value: float
    """Impact fraction times distance fraction."""
    after_input: bool
    """True within 500 ms of an input: the shift is expected and not part of CLS."""
    sources: tuple[str, ...]
    """Elements that moved, as ``tag#id``; up to five, largest first."""


class LargestPaint(Record):
    """The largest element painted so far (https://www.w3.org/TR/largest-contentful-paint)."""

    element: str
    """``tag#id``; empty when it is gone."""
    size: float
    """Area in CSS pixels squared."""
    ms: float | None
    """Milliseconds since the navigation; ``None`` under a virtual clock."""


class Signals(Record):
    """A record whose ``None`` values have reasons."""

    absent: dict[str, str] = Field(default_factory=dict)
    """Reason why a field is ``None``, by its name."""

    @model_validator(mode="after")
    def _reasons_are_complete(self) -> Self:
        missing = {name for name in type(self).model_fields if getattr(self, name) is None}
        if missing != set(self.absent):
            raise ValueError(f"fields without a value {sorted(missing)} and reasons {sorted(self.absent)} differ")
        return self


class PageSignals(Signals):
    """The signals of one step: work and failures since the last reading, paint of the document that
    is shown.

    Durations are CPU milliseconds of the page's main thread, so they do not depend on the machine's
    load or on the page's clock.
    """

    document: int = Field(ge=1)
    """Number of the document in its tab, from 1; a reload is a new one."""
    status: int | None
    """HTTP status of the last document loaded in the tab."""
    first_paint_ms: float | None
    """Milliseconds since the navigation."""
    first_contentful_paint_ms: float | None
    largest_paint: LargestPaint | None
    layout_shift: float | None
    """Sum of the unexpected shifts of the step: its part of CLS."""
    input_shift: float | None
    """Sum of the shifts that followed an input."""
    shifts: tuple[LayoutShift, ...]
    """The first `MAX_SHIFTS` shifts of the reading, in order."""
    interaction_ms: float | None
    """Input delay, handlers and next paint of the step's slowest interaction (what INP is made of),
    to 8 ms."""
    long_task_ms: tuple[float, ...] | None
    """Durations of tasks above 50 ms of real time; empty when there was none."""
    layout_ms: float | None
    style_ms: float | None
    script_ms: float | None
    task_ms: float | None
    """All tasks, of which layout, style and script are parts."""
    layers: int | None
    """Compositor layers that draw."""
    heap_bytes: int | None
    """JavaScript heap in use."""
    nodes: int | None
    """DOM nodes that live, shown or not."""
    gpu_bytes: int | None
    counts: dict[Trouble, int]
    """Number of failures since the last reading, by kind; kinds without one are left out."""
    troubles: tuple[PageTrouble, ...]
    """The first `MAX_TROUBLES` failures."""


class EpisodeSignals(Signals):
    """The signals of an episode's steps together.

    Sums and extremes are of the steps that had a value.
    """

    steps: int = Field(ge=0)
    documents: int = Field(ge=0)
    known: dict[str, int]
    """Number of steps that had a value, by field of `PageSignals`."""
    first_contentful_paint_ms: float | None
    """Value of the slowest document."""
    largest_paint_ms: float | None
    """Value of the slowest document."""
    layout_shift: float | None
    """Sum of the unexpected shifts of all documents."""
    worst_layout_shift: float | None
    """Value of the worst step."""
    interaction_ms: float | None
    """INP: the slowest interaction, ignoring one in fifty (https://web.dev/articles/inp)."""
    long_tasks: int | None
    blocking_ms: float | None
    """Sum of what each long task took above 50 ms."""
    layout_ms: float | None
    style_ms: float | None
    script_ms: float | None
    task_ms: float | None
    most_layers: int | None
    peak_heap_bytes: int | None
    peak_nodes: int | None
    gpu_bytes: int | None
    counts: dict[Trouble, int]


MAX_SHIFTS = 20
"""Shifts of one reading that are kept one by one; their sums count all."""
MAX_TROUBLES = 20
"""Troubles of one reading that are kept one by one; the counts count all."""
