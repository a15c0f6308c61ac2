"""Points for models that name places: 0 to 1000 over the width and the height, whatever the viewport is.

1000 is the far edge, so that a model may name the whole range; it is taken for the last pixel.
"""

from __future__ import annotations

from math import ceil

SCALE = 1000
"""As in Qwen2.5-VL's relative and Gemini's coordinates."""


def to_normalised(point: tuple[float, float], viewport: tuple[int, int]) -> tuple[int, int]:
    """CSS pixels to whole thousandths, at the middle of the pixel."""
    x, y = ((int(value) + 0.5) * SCALE / side for value, side in zip(point, viewport, strict=True))
    return min(SCALE, max(0, ceil(x - 0.5))), min(SCALE, max(0, ceil(y - 0.5)))


def to_pixels(point: tuple[float, float], viewport: tuple[int, int]) -> tuple[float, float]:
    """Thousandths to the CSS pixel that they lie in; what lies outside is moved to the edge."""
    x, y = (min(side - 1, max(0, int(value * side / SCALE))) for value, side in zip(point, viewport, strict=True))
    return float(x), float(y)
