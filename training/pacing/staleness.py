"""Staleness of episodes: versions between their oldest token and the batch that trains on them.

It is counted for each episode, so that a late one does not exclude its whole group. Time in queues
counts too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def staleness(version: int, oldest: int) -> int:
    """Return the versions between an episode's oldest token and its batch.

    Args:
        version: Version that the batch updates (it makes ``version + 1``).
        oldest: Version of the episode's oldest token.

    Raises:
        ValueError: The token is of a later version than the one that is updated.
    """
    if oldest > version:
        raise ValueError(f"a token of version {oldest} in the batch that updates version {version}")
    return version - oldest


def staleness_histogram(lags: Iterable[int]) -> dict[int, int]:
    """Return the number of episodes by staleness, from 0 to the largest without gaps.

    >>> staleness_histogram([0, 2, 0])
    {0: 2, 1: 0, 2: 1}
    """
    counts = Counter(lags)
    return {lag: counts[lag] for lag in range(max(counts, default=-1) + 1)}
