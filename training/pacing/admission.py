"""Admission: the numbers of groups and of updates that may start, within the bound on staleness.

The formula is AReaL's (Fu et al. 2025, arXiv 2505.24298; ``StalenessManager.get_capacity``),
counted in groups.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_UNSERVED = 1
"""Trained versions that the engines do not serve yet, with which an update may still start.

One more is in training then. More would not make a slow publication faster.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """The three numbers that pace a run.

    Raises:
        ValueError: A batch or a number of running groups below 1, or a negative staleness.
    """

    batch: int
    """Groups of a batch (B)."""
    staleness: int
    """Largest number of versions between a group's admission and the batch that consumes it (eta);
    0 is synchronous."""
    running: int
    """Largest number of groups under way at once (R_max)."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.running < 1 or self.staleness < 0:
            raise ValueError(f"batch and running are at least 1, staleness at least 0: {self}")


def capacity(pace: Pace, *, version: int, accepted: int, running: int) -> int:
    """Return the number of groups that may start now.

    ``min(R_max - running, (eta + version + 1) * B - (accepted + running))``, not below 0. AReaL
    counts the same in samples or groups; here everything is a group. The first term is the
    machine's limit. The second keeps groups that are not yet consumed to ``(eta + 1) * B``.
    `window.next_batch` shows that with this no group is consumed later than eta versions after its
    admission.

    Where the bound on staleness limits admission, groups are consumed eta versions after it, and
    their mean staleness is near eta. For fresher ones admit with a smaller staleness than the
    window's.

    Args:
        pace: B, eta and R_max.
        version: Newest policy version that every engine serves. It is also stored as the version of
            each group that is admitted now. At version v the trainer has consumed v batches, or
            more where its last version is not yet published.
        accepted: Groups that finished with something to learn from, since the first version,
            consumed ones included. Groups that are left out (zero variance, abstained, too few
            episodes) count neither here nor in `running`, and so are replaced. A batch that was
            closed with fewer than B groups counts as B, else the groups that it lacked would start
            too early. After a restart: counted from the ledger.
        running: Groups under way: admitted, not yet finished.
    """
    by_machine = pace.running - running
    by_staleness = (pace.staleness + version + 1) * pace.batch - (accepted + running)
    return max(0, min(by_machine, by_staleness))


def update_may_start(trained: int, served: int) -> bool:
    """Return True if the trainer may go on with the next batch while versions are published.

    Args:
        trained: Newest version that the trainer has written.
        served: Newest version that every engine serves; versions are published in order.
    """
    return trained - served <= MAX_UNSERVED
