"""Structural similarity of two screenshots (Wang, Bovik, Sheikh and Simoncelli 2004)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.types import JudgeError

Image = NDArray[np.uint8]
"""(height, width, 3), RGB; or (height, width), grey."""

WINDOW, SIGMA = 11, 1.5
"""The paper's Gaussian window, pixels."""
K1, K2, RANGE = 0.01, 0.03, 255.0
BAND = 128
"""Rows of windows at a time: the ten arrays of a band stay in a processor's cache, and a long page
takes no more memory than a short one."""
LUMA = (0.299, 0.587, 0.114)
"""Grey of RGB (ITU-R BT.601)."""
BLANK = 255
"""Value that pads a smaller page: white."""


def ssim(first: Image, second: Image) -> float:
    """Mean SSIM of the grey images, in [-1, 1]; 1 for equal ones. Symmetric.

    Images of different size are filled up with white to the right and below, so that a missing part
    counts as different.

    Raises:
        JudgeError: not an image, or smaller than the window of 11 by 11.
    """
    shapes = [np.shape(image)[:2] for image in (first, second)]
    for image, shape in zip((first, second), shapes, strict=True):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
            raise JudgeError(
                f"screenshot of shape {image.shape} and type {image.dtype}: expected (height, width, 3) or (height, width) of uint8"
            )
        if min(shape) < WINDOW:
            raise JudgeError(f"screenshot of {shape[1]} x {shape[0]} pixels: expected at least {WINDOW} x {WINDOW}")
    height, width = (max(shape[axis] for shape in shapes) for axis in (0, 1))
    rows = height - WINDOW + 1
    total = 0.0
    for top in range(0, rows, BAND):
        last = min(top + BAND, rows) + WINDOW - 1
        x, y = (_grey(image[top:last], last - top, width) for image in (first, second))
        # Windows on equal rows are 1, and good pages have many of them.
        total += len(x) - WINDOW + 1 if np.array_equal(x, y) else float(_similarity(x, y).mean(axis=1).sum())
    return float(total / rows)


def _similarity(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """SSIM of each window."""
    mean_x, mean_y = _blur(x), _blur(y)
    product, squares = mean_x * mean_y, mean_x**2 + mean_y**2
    variances = _blur(x * x + y * y) - squares
    covariance = _blur(x * y) - product
    c1, c2 = (K1 * RANGE) ** 2, (K2 * RANGE) ** 2
    likeness: NDArray[np.float64] = (2 * product + c1) * (2 * covariance + c2)
    likeness /= (squares + c1) * (variances + c2)
    return likeness


def _grey(image: Image, height: int, width: int) -> NDArray[np.float64]:
    grey = np.full((height, width), BLANK, dtype=np.float64)
    shown = image if image.ndim == 2 else image @ np.array(LUMA)
    grey[: image.shape[0], : image.shape[1]] = shown
    return grey


def _window() -> NDArray[np.float64]:
    index = np.arange(WINDOW) - WINDOW // 2
    bell = np.exp(-(index**2) / (2 * SIGMA**2))
    weights: NDArray[np.float64] = bell / bell.sum()
    return weights


def _blur(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weighted means where the whole window lies in the image."""
    from scipy.ndimage import correlate1d  # type: ignore[import-untyped]  # most runs compare no pictures

    window, edge = _window(), WINDOW // 2
    blurred: NDArray[np.float64] = correlate1d(correlate1d(image, window, axis=0), window, axis=1)
    return blurred[edge:-edge, edge:-edge]
