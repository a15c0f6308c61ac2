"""Geometry of the page's charts: pure functions from measurements to positions in per cent.

The templates draw them as SVG whose lines stretch with the page while text, dots and stroke widths
keep their size. So one drawing serves a phone and a wide screen, in the page's own fonts and
colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
MaybePoint = tuple[float, float | None]
"""A point, or a gap in the line where the value is missing."""

PLOT = 1000.0
"""Side of the square that paths are drawn in; ``preserveAspectRatio="none"`` stretches it to the
plot."""


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A labelled position on an axis, in per cent from the left or the top."""

    position: float
    label: str
    minor: bool = False
    """True for a tick that a narrow screen leaves out."""


@dataclass(frozen=True, slots=True)
class Series:
    """A named line: ``style`` is its class in the style sheet."""

    name: str
    style: str
    points: tuple[MaybePoint, ...]
    dots: bool = False
    band: tuple[tuple[float, float, float], ...] = ()
    """(x, low, high) of the interval behind the line, which is not drawn in gaps of the line."""


@dataclass(frozen=True, slots=True)
class DrawnSeries:
    """A series in plot coordinates."""

    name: str
    style: str
    path: str
    band: str
    dots: tuple[Point, ...]
    """Positions in per cent of the plot."""
    whiskers: tuple[tuple[float, float, float], ...]
    """(x, top, bottom) in per cent: the interval at each dot."""


@dataclass(frozen=True, slots=True)
class LineChart:
    """A line chart, ready to draw."""

    title: str
    x_label: str
    y_label: str
    series: tuple[DrawnSeries, ...]
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]
    notes: tuple[tuple[float, str], ...] = ()
    """(x in per cent, the text that a pointer shows there, line by line)."""


SMALLEST = 1e-250
"""Smallest absolute value that is not drawn as zero."""


def nice_ticks(low: float, high: float, max_steps: int) -> list[float]:
    """Return round values that cover ``low..high`` in at most ``max_steps`` equal steps.

    A step is 1, 2 or 5 times a power of ten.

    >>> nice_ticks(0, 9, 5)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if _equal(low, high):
        high = low + (abs(low) if abs(low) > SMALLEST else 1.0)
    raw = (high - low) / max_steps
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def number(value: float | None) -> str:
    """Format a number with three significant digits; an en dash stands for an unmeasured one.

    There is no trailing zero.
    """
    if value is None:
        return "–"
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace(".0e", "e")
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_duration(seconds: float | None) -> str:
    """Format a duration for people: ``7.3 s``, ``9 min``, ``2 h 05 min``."""
    if seconds is None:
        return "–"
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def rolling_mean(points: Sequence[Point], window: int) -> tuple[Point, ...]:
    """Return the mean of the ``window`` points around each point.

    So a rise is not drawn late. ``window`` is odd; there are fewer points at both ends.
    """
    means = []
    for index, (x, _) in enumerate(points):
        near = [y for _, y in points[max(0, index - window // 2) : index + window // 2 + 1]]
        means.append((x, sum(near) / len(near)))
    return tuple(means)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str = "",
    y_range: tuple[float, float] | None = None,
    x_steps: int = 10,
    y_steps: int = 4,
    notes: dict[float, str] | None = None,
    whole: bool = False,
) -> LineChart:
    """Lay out ``series``.

    Args:
        y_range: fixed range; by default the data's, from zero when that wastes little.
        notes: text that a pointer shows at each x.
        whole: x counts things, so only whole ticks.
    """
    xs = [x for line in series for x, _ in line.points] or [0.0]
    ys = [y for line in series for _, y in line.points if y is not None] or [0.0]
    x_low, x_high = min(xs), max(xs)
    if x_high == x_low:
        x_high = x_low + 1
    x_values = [x for x in nice_ticks(x_low, x_high, x_steps) if x_low <= x <= x_high and not (whole and x % 1)]
    y_values = nice_ticks(*(y_range or _natural_range(ys)), y_steps)
    y_low, y_high = y_range or (y_values[0], y_values[-1])

    def across(x: float) -> float:
        return (x - x_low) / (x_high - x_low)

    def down(y: float) -> float:
        return 1 - (min(max(y, y_low), y_high) - y_low) / (y_high - y_low)

    def drawn(line: Series) -> DrawnSeries:
        band, path = [], []
        for stretch in _stretches(line.points):
            stretch_xs = {x for x, _ in stretch}
            sides = [side for side in line.band if side[0] in stretch_xs]
            top = [(across(x), down(high)) for x, _, high in sides]
            bottom = [(across(x), down(low)) for x, low, _ in reversed(sides)]
            band.append(_path(top + bottom, closed=True))
            path.append(_path([(across(x), down(y)) for x, y in stretch]))
        dotted = [(x, y) for x, y in line.points if y is not None] if line.dots else []
        dots = tuple((round(across(x) * 100, 3), round(down(y) * 100, 3)) for x, y in dotted)
        whiskers = [(across(x) * 100, down(high) * 100, down(low) * 100) for x, low, high in line.band]
        return DrawnSeries(line.name, line.style, "".join(path), "".join(band), dots, tuple(whiskers))

    return LineChart(
        title=title,
        x_label=x_label,
        y_label=y_label,
        series=tuple(drawn(line) for line in series),
        x_ticks=tuple(AxisTick(across(x) * 100, number(x), minor=bool(i % 2)) for i, x in enumerate(x_values)),
        y_ticks=tuple(AxisTick(down(y) * 100, number(y)) for y in y_values if y_low <= y <= y_high),
        notes=tuple((round(across(x) * 100, 3), text) for x, text in sorted((notes or {}).items())),
    )


def _natural_range(ys: Sequence[float]) -> tuple[float, float]:
    low, high = min(ys), max(ys)
    if _equal(low, high):
        return (0.0, high) if high > SMALLEST else (low, low)
    return (0.0, high) if 0 <= low < 0.6 * high else (low, high)


def _equal(low: float, high: float) -> bool:
    """Return True if the values are too close for ticks of twelve digits between them."""
    return not high - low > max(SMALLEST, 1e-9 * max(abs(low), abs(high)))


def _stretches(points: Sequence[MaybePoint]) -> list[list[Point]]:
    """Return the points between the gaps."""
    stretches: list[list[Point]] = [[]]
    for x, y in points:
        if y is None:
            stretches.append([])
        else:
            stretches[-1].append((x, y))
    return [stretch for stretch in stretches if stretch]


def _path(points: Sequence[Point], *, closed: bool = False) -> str:
    if not points:
        return ""
    return "M" + "L".join(f"{x * PLOT:.1f} {y * PLOT:.1f}" for x, y in points) + ("Z" if closed else "")
