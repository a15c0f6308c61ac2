"""Which of the groups that are ready make up the next batch.

Groups are taken as they were admitted. One that is ready may overtake an older one that is still under way, as long as every group
that is left can be taken in time: a group that was admitted at version ``a`` has to be in a batch that is trained on version ``a + eta``
at the latest, and a batch has B places. So after the batch of version ``v``, for each ``u >= v``, at most ``(u - v) B`` groups may be left
whose last version is at most ``u``.

Why this is always possible, and no group is ever too old. Call it P(v) that, before the batch of version v, at most ``(u - v + 1) B`` live
groups have a last version up to u, for each ``u >= v``. Admission at version v adds groups whose last version is ``v + eta``, and allows
``(eta + 1) B`` live groups in all, so P(v) stays true. If P(v) is true and all groups are ready, the B oldest may be taken, so waiting for
those under way ends. What is left after a batch gives P(v + 1). By P(v) with ``u = v - 1`` no live group is past its last version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from training.pacing.admission import Pace


class LiveGroup(NamedTuple):
    """A group that was admitted and is in no batch yet."""

    number: int
    """In the order of admission."""
    version: int
    """Policy version at its admission."""
    ready: bool
    """It ended."""


def next_batch(pace: Pace, version: int, live: Sequence[LiveGroup]) -> tuple[int, ...] | None:
    """Numbers of the groups that the batch of ``version`` is made of, in their order; ``None``: the trainer has to wait."""
    ready = sorted((group for group in live if group.ready), key=lambda group: (group.version, group.number))
    taken = ready[: pace.batch]
    if len(taken) < pace.batch or not may_be_left(pace, version, set(live) - set(taken)):
        return None
    return tuple(sorted(group.number for group in taken))


def may_be_left(pace: Pace, version: int, groups: Iterable[LiveGroup]) -> bool:
    """Whether all of these groups can still be taken in time by the batches after that of ``version``."""
    last = Counter(max(group.version + pace.staleness - version, 0) for group in groups)
    left = 0
    for batches in range(max(last, default=-1) + 1):
        left += last[batches]
        if left > batches * pace.batch:
            return False
    return True
