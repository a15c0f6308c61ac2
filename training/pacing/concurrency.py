"""Adaptive concurrency: keeps as many episodes under way as engines and browsers can take.

Additive increase, multiplicative decrease, as in TCP (Chiu and Jain 1989), on measured load.
prime-rl's controller does the same with the use of the KV cache. Three rules keep it from
oscillating: between ``low`` and ``high`` the limit does not change; after a change it waits until
the load has settled; a limit that overloaded the machines is remembered for a while and not tried
again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Load:
    """A measurement of the load."""

    at: float
    """Time of the measurement, in seconds of a monotonic clock."""
    engine_queue: float
    """Requests that wait in the engines' queues, as a share of those being generated."""
    browser_load: float
    """Use of the browsers' machines: the larger share of CPU and memory, 1 for full."""
    running: int
    """Episodes (or groups) under way, in the unit of the limit."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds and steps of the adaptive limit. The defaults are for episodes.

    Raises:
        ValueError: Bounds in the wrong order.
    """

    floor: int
    """Smallest limit."""
    ceiling: int
    """Largest limit, R_max."""
    max_queue: float = 0.25
    """Share of queued requests that counts as full load: a turn then waits about a quarter of its
    own time."""
    max_browser: float = 0.9
    """Use of the browsers' machines that counts as full load."""
    low: float = 0.6
    """Share of full load below which the limit grows."""
    high: float = 1.0
    """Share of full load above which the limit is cut."""
    step: int = 4
    """Episodes added to the limit at a time."""
    cut: float = 0.8
    """Factor of the limit when it is cut."""
    settle: float = 30.0
    """Seconds after a change in which the limit stays: about the length of an episode's few
    turns."""
    forget: float = 600.0
    """Seconds for which a limit that overloaded the machines is not tried again."""

    def __post_init__(self) -> None:
        if not (1 <= self.floor <= self.ceiling and 0 < self.low < self.high and 0 < self.cut < 1 and self.step >= 1):
            raise ValueError(f"1 <= floor <= ceiling, 0 < low < high, 0 < cut < 1 and step >= 1: {self}")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """State of the adaptive limit; made by `start`, changed by `adjust`."""

    limit: int
    """Episodes (or groups) to keep under way."""
    measured_at: float = float("-inf")
    """Time of the last measurement."""
    moved_at: float = float("-inf")
    """Time of the measurement that changed the limit last."""
    refused: int | None = None
    """Lowest limit that overloaded the machines; ``None`` when it is forgotten or there was
    none."""
    refused_at: float = float("-inf")
    """Time at which that limit was cut."""


def start(bounds: Bounds, limit: int | None = None) -> Concurrency:
    """Return the state before the first measurement.

    Args:
        limit: First limit, kept within the bounds; ``None``: the floor.
    """
    return Concurrency(min(bounds.ceiling, max(bounds.floor, bounds.floor if limit is None else limit)))


def pressure(bounds: Bounds, load: Load) -> float:
    """Return the load of the fullest resource as a share of its full load."""
    return max(load.engine_queue / bounds.max_queue, load.browser_load / bounds.max_browser)


def adjust(bounds: Bounds, state: Concurrency, load: Load) -> Concurrency:
    """Return the state after one more measurement.

    A measurement that is no newer than the last changes nothing. The limit grows only where it is
    used (``running >= limit``): an idle one says nothing about what the machines can take.
    """
    if load.at <= state.measured_at:
        return state
    state = replace(state, measured_at=load.at)
    if load.at - state.moved_at < bounds.settle:
        return state
    share = pressure(bounds, load)
    if share > bounds.high:
        return _cut(bounds, state, load.at)
    if share < bounds.low and load.running >= state.limit:
        return _grow(bounds, state, load.at)
    return state


def _cut(bounds: Bounds, state: Concurrency, now: float) -> Concurrency:
    limit = max(bounds.floor, min(state.limit - 1, int(state.limit * bounds.cut)))
    if limit == state.limit:
        return state
    return replace(state, limit=limit, moved_at=now, refused=state.limit, refused_at=now)


def _grow(bounds: Bounds, state: Concurrency, now: float) -> Concurrency:
    top = bounds.ceiling
    if state.refused is not None and now - state.refused_at < bounds.forget:
        top = min(top, state.refused - 1)
    limit = min(top, state.limit + bounds.step)
    return state if limit <= state.limit else replace(state, limit=limit, moved_at=now)
