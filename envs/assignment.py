"""Maximum-weight assignment between rows and columns of a score matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_pairs(scores: NDArray[np.float64]) -> list[tuple[int, int]]:
    """The optimal assignment of (rows, columns) ``scores``, by row; of the shorter side everything
    is in a pair, whatever its score."""
    # SciPy takes half a second or more to import, and every process of a run imports what can
    # compare.
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    rows, columns = linear_sum_assignment(scores, maximize=True)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))
