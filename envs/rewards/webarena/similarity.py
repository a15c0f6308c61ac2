"""Structural similarity of two pictures as VisualWebArena measures it.

It is ``structural_similarity`` of scikit-image with its defaults: a flat window of 7 by 7 and the
sample covariance, where `envs.rewards.design2code` has the Gaussian window of the paper.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

WINDOW = 7
K1, K2, RANGE = 0.01, 0.03, 255.0


def picture_similarity(first: bytes, second: bytes) -> float:
    """Return the SSIM of two picture files in grey, in [-1, 1].

    As in the benchmark, both are first stretched to the larger width and height of the two.

    Raises:
        ValueError: One is no picture, or both are smaller than the window.
    """
    pictures = [opened(data) for data in (first, second)]
    size = (max(one.width for one in pictures), max(one.height for one in pictures))
    if min(size) < WINDOW:
        raise ValueError(f"pictures of {size[0]} x {size[1]} pixels: expected at least {WINDOW} x {WINDOW}")
    grey = [np.asarray(one.resize(size, Image.Resampling.LANCZOS).convert("L")) for one in pictures]
    return structural_similarity(grey[0], grey[1])


def opened(data: bytes) -> Image.Image:
    """Return the decoded picture of a file.

    Raises:
        ValueError: It is none that Pillow reads, or too large to be decoded.
    """
    try:
        picture = Image.open(BytesIO(data))
        picture.load()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"no picture that can be read: {error}") from error
    return picture


def structural_similarity(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    """Return the mean SSIM of two grey pictures of one size."""
    from scipy.ndimage import uniform_filter  # type: ignore[import-untyped]  # most runs compare no pictures

    x, y = first.astype(np.float64), second.astype(np.float64)
    mean_x, mean_y, squares_x, squares_y, products = (
        uniform_filter(one, size=WINDOW) for one in (x, y, x * x, y * y, x * y)
    )
    sample = WINDOW**2 / (WINDOW**2 - 1)
    variances = sample * (squares_x - mean_x**2 + squares_y - mean_y**2)
    covariance = sample * (products - mean_x * mean_y)
    c1, c2 = (K1 * RANGE) ** 2, (K2 * RANGE) ** 2
    likeness = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    likeness /= (mean_x**2 + mean_y**2 + c1) * (variances + c2)
    edge = WINDOW // 2
    return float(likeness[edge:-edge, edge:-edge].mean())
