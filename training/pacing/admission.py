"""Admission: how many more groups may start.

The formula is that of AReaL's staleness manager (Fu et al. 2025, arXiv 2505.24298), counted in groups.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """The limits of a run."""

    batch: int
    """Groups of a batch (B)."""
    staleness: int
    """Most versions between a group's admission and the version that its batch is trained on (eta)."""
    running: int
    """Most groups under way at once (R_max)."""


def capacity(pace: Pace, *, version: int, accepted: int, running: int) -> int:
    """Groups that may start now: min(R_max - running, (eta + version + 1) B - (accepted + running)), at least 0.

    Args:
        version: That new groups are played with.
        accepted: Groups that ended and count for a batch, those of batches that were made included. A group that is left out
            counts neither here nor as running, so another one may take its place.
        running: Groups under way.
    """
    ahead = (pace.staleness + version + 1) * pace.batch - (accepted + running)
    return max(0, min(pace.running - running, ahead))
