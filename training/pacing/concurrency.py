"""Adaptive concurrency: keeps as many episodes under way as engines and browsers can take.

Additive increase, multiplicative decrease, as in TCP (Chiu and Jain 1989), on measured load;
prime-rl's controller does the like with the use of the KV cache. Three things keep it from
swinging: between ``low`` and ``high`` nothing moves; after a move it waits until the load has
settled; and a limit that was too much is remembered for a while and not tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Load:
    """One measurement."""

    at: float
    """When it was made, in seconds of any clock that does not run backwards."""
    engine_queue: float
    """Requests that wait in the engines' queues, as a share of those being generated."""
    browser_load: float
    """Use of the browsers' machines: the larger share of CPU and memory, 1 for full."""
    running: int
    """Episodes (or groups) under way, in the unit of the limit."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How the limit may move. The defaults are for episodes.

    Raises:
        ValueError: Bounds in the wrong order.
    """

    floor: int
    """Least limit."""
    ceiling: int
    """Largest limit, R_max."""
    max_queue: float = 0.25
    """A queue of this share counts as full load: a turn then waits about a quarter of its own
    time."""
    max_browser: float = 0.9
    """Use of the browsers' machines that counts as full load."""
    low: float = 0.6
    """Below this share of full load the limit grows."""
    high: float = 1.0
    """Above this share of full load it is cut."""
    step: int = 4
    """What is added at a time."""
    cut: float = 0.8
    """What it is multiplied with."""
    settle: float = 30.0
    """Seconds after a move in which nothing moves: about the length of an episode's few turns."""
    forget: float = 600.0
    """Seconds for which a limit that was too much is not tried again."""

    def __post_init__(self) -> None:
        if not (1 <= self.floor <= self.ceiling and 0 < self.low < self.high and 0 < self.cut < 1 and self.step >= 1):
            raise ValueError(f"1 <= floor <= ceiling, 0 < low < high, 0 < cut < 1 and step >= 1: {self}")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The limit and what it depends on; made by `start`, changed by `adjust`."""

    limit: int
    """Episodes (or groups) to keep under way."""
    measured_at: float = float("-inf")
    """The last measurement that was looked at."""
    moved_at: float = float("-inf")
    """The measurement that moved the limit last."""
    refused: int | None = None
    """The lowest limit that was too much, while it is remembered."""
    refused_at: float = float("-inf")
    """When it was."""


def start(bounds: Bounds, limit: int | None = None) -> Concurrency:
    """The state before the first measurement: ``limit``, by default the floor, within the
    bounds."""
    return Concurrency(min(bounds.ceiling, max(bounds.floor, bounds.floor if limit is None else limit)))


def pressure(bounds: Bounds, load: Load) -> float:
    """Share of full load of what is fullest."""
    return max(load.engine_queue / bounds.max_queue, load.browser_load / bounds.max_browser)


def adjust(bounds: Bounds, state: Concurrency, load: Load) -> Concurrency:
    """The state after one more measurement. One that is no newer than the last changes nothing.

    The limit grows only where it is used (``running >= limit``): an idle one says nothing about
    what the machines can take.
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


def _cut(bounds: Bounds, state: Concurrency, at: float) -> Concurrency:
    limit = max(bounds.floor, min(state.limit - 1, int(state.limit * bounds.cut)))
    if limit == state.limit:
        return state
    return replace(state, limit=limit, moved_at=at, refused=state.limit, refused_at=at)


def _grow(bounds: Bounds, state: Concurrency, at: float) -> Concurrency:
    top = bounds.ceiling
    if state.refused is not None and at - state.refused_at < bounds.forget:
        top = min(top, state.refused - 1)
    limit = min(top, state.limit + bounds.step)
    return state if limit <= state.limit else replace(state, limit=limit, moved_at=at)
