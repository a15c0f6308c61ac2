"""Staleness of episodes."""

from __future__ import annotations

import pytest

from training.pacing.staleness import staleness, staleness_histogram


def test_staleness_counts_from_the_oldest_token_to_the_update() -> None:
    assert staleness(7, 7) == 0
    assert staleness(7, 5) == 2
    with pytest.raises(ValueError, match="version 8"):
        staleness(7, 8)


def test_the_histogram_has_no_gaps() -> None:
    assert staleness_histogram([3, 0, 3]) == {0: 1, 1: 0, 2: 0, 3: 2}
    assert staleness_histogram([]) == {}
